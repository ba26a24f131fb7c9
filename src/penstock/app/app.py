# SPDX-License-Identifier: Apache-2.0
"""What a user defines and calls: an application, its queue, and its runs.

To define tasks needs no store and no worker. So what the queue and a run are made of is imported
here, in two places, when it is first asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from penstock.app.registry import DatasetDefinitions
from penstock.clock import Duration, SystemClock, to_micros
from penstock.definitions.dataset import Dataset, Moment
from penstock.definitions.request import Enqueued, EnqueuedMany, JobRequest, to_new_job
from penstock.errors import UsageError
from penstock.model.job import Edge, NewJob

if TYPE_CHECKING:
    import pyarrow

    from penstock.app.build import BuildOptions
    from penstock.app.queue import Queue
    from penstock.app.run import Runner
    from penstock.config.load import Loaded
    from penstock.config.settings import Settings
    from penstock.model.plan import BuildPlan, BuildReport, BuildRequest
    from penstock.outputs.root import OutputRoot
    from penstock.planning.units import DaemonPlan
    from penstock.stores.protocol import Store
    from penstock.worker.embedded import RunReport

R = TypeVar("R")


class Penstock(DatasetDefinitions):
    """An application: its tasks, its providers, and the store that its jobs are kept in."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        super().__init__(name, store=store)
        self._kept_queue: Queue | None = None
        self._kept_runner: Runner | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.tasks)} tasks>"

    @property
    def _queue(self) -> Queue:
        from penstock.app.queue import Queue

        with self._lock:
            if self._kept_queue is None:
                self._kept_queue = Queue(self)
            return self._kept_queue

    @property
    def _runner(self) -> Runner:
        from penstock.app.run import Runner

        if self._kept_runner is None:
            self._kept_runner = Runner(self, self._queue)
        return self._kept_runner

    async def _queue_async(self) -> Queue:
        """The same on a loop, which must not stand still while it is imported."""
        if self._kept_queue is None:
            return await asyncio.to_thread(lambda: self._queue)
        return self._kept_queue

    async def _runner_async(self) -> Runner:
        if self._kept_runner is None:
            return await asyncio.to_thread(lambda: self._runner)
        return self._kept_runner

    def load(
        self,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Loaded:
        """All settings of this app, with where each came from; refuses what counts nothing."""
        return self._queue.load(flags, environ, folder)

    def store_url(self, loaded: Loaded) -> str:
        """Where the store is, with its password if it has one: to connect with, not to print."""
        return self._queue.store_url(loaded)

    @property
    def store(self) -> Store:
        """The store, opened when first needed, once per process."""
        return self._queue.store

    def use_store(self, store: Store) -> None:
        """Use a store that is open already."""
        self._queue.use_store(store)

    def close(self) -> None:
        """Close the store; it opens again when needed."""
        if self._kept_queue is not None:
            self._kept_queue.close()

    def use_root(self, root: OutputRoot) -> None:
        """Keep slices in a root that is known already."""
        self._queue.use_root(root)

    def root(self, loaded: Loaded) -> OutputRoot:
        """Where slices are kept; made if it is not there."""
        return self._queue.root(loaded)

    def read_slices(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> pyarrow.Table:
        """What is committed of a dataset, as a table."""
        return self._queue.committed(dataset).table(start, end)

    def read_range(self, dataset: Dataset[..., Any], first: int, last: int) -> pyarrow.Table:
        """What is committed in [first, last), microseconds since 1970 UTC, as a table."""
        return self._queue.committed(dataset).table_of(first, last)

    def slice_files(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> list[Path]:
        """The files of what is committed of a dataset."""
        return self._queue.committed(dataset).files(start, end)

    def enqueue(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> Enqueued:
        """Accept one job. When this returns, the job survives a crash, and power loss."""
        return self._queue.enqueue(
            _accepted(request, key=key, after=after, priority=priority, delay=delay, group=group)
        )

    async def enqueue_async(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> Enqueued:
        """The same on an event loop."""
        job = _accepted(request, key=key, after=after, priority=priority, delay=delay, group=group)
        return await (await self._queue_async()).enqueue_async(job)

    def enqueue_many(self, requests: Iterable[JobRequest[Any]]) -> EnqueuedMany:
        """Accept many jobs, streaming in batches; each batch is all or nothing."""
        if isinstance(requests, JobRequest):
            raise UsageError("enqueue_many takes many jobs; for one, write app.enqueue(job).")
        return self._queue.enqueue_many(_accepted(request) for request in requests)

    def plan_daemon(self, settings: Settings, now: int) -> DaemonPlan:
        """Multiply preflights and schedules by partitions: what a daemon checks and arms.

        Evaluates every dimension once. UsageError lists everything that is wrong.

        Args:
            settings: of this app.
            now: microseconds since 1970 UTC; new units tick first from then on.
        """
        return self._queue.plan_daemon(settings, now)

    def run(
        self, *, daemon: bool = False, drain: bool = False, slots: int | None = None
    ) -> RunReport:
        """Work on the queue inside this program until it is drained or interrupted.

        Args:
            daemon: run preflights first, and then schedules together with the queue, as
                `penstock run` does. PreflightFailed if a check does not pass.
            drain: end when no job is left; schedules do not count.
            slots: how many tasks may run at once.
        """
        return self._runner.wait(lambda: self.run_async(daemon=daemon, drain=drain, slots=slots))

    async def run_async(
        self, *, daemon: bool = False, drain: bool = False, slots: int | None = None
    ) -> RunReport:
        """The same on an event loop; cancelling it stops gracefully."""
        runner = await self._runner_async()
        return await runner.run(daemon=daemon, drain=drain, slots=slots)

    def plan_build(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        **options: Unpack[BuildOptions],
    ) -> BuildPlan:
        """What a build of the same arguments would do now; changes nothing."""
        self.load()
        now = to_micros(SystemClock().now())
        return self.plan_request(self._runner.request(targets, start, end, now, **options), now)

    def plan_request(self, request: BuildRequest, now: int) -> BuildPlan:
        """The same for a request, at a moment (microseconds since 1970 UTC)."""
        return self._runner.plan(request, now)

    def build(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        slots: int | None = None,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """Bring datasets up to date, with all that they need, inside this program.

        Args:
            targets: datasets, or their names.
            start: the first moment; a date is its midnight by the clocks of each calendar.
            end: the first moment that is not asked for; "now" is one, too.
            slots: how many tasks may run at once.
            options: `force` builds what is up to date as well. `eager` starts each job as soon as
                what it needs is there, and commits it by itself; otherwise it goes level by level,
                and a level becomes visible as a whole. `fail_fast` begins nothing more after a
                level in which something failed. `yes`: however many slices it may be.
        """
        return self._runner.wait(
            lambda: self.build_async(*targets, start=start, end=end, slots=slots, **options)
        )

    async def build_async(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        slots: int | None = None,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """The same on an event loop; cancelling it stops gracefully."""
        runner = await self._runner_async()
        return await runner.build(targets, start, end, slots, **options)


def _accepted(request: JobRequest[R], **options: Any) -> NewJob:  # noqa: ANN401 (passed on)
    if not isinstance(request, JobRequest):
        raise UsageError(
            f"enqueue takes a job, got {type(request).__name__}; write app.enqueue(task.job(...))."
        )
    return to_new_job(request.with_options(**options) if options else request)

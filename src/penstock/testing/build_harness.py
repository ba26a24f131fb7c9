# SPDX-License-Identifier: Apache-2.0
"""How does a test build datasets, in memory and in virtual time?"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from penstock.app.app import Penstock
from penstock.app.build import BuildOptions, build_request, build_tasks, made_build
from penstock.builds.embedded_build import EmbeddedBuild
from penstock.clock import to_micros
from penstock.config.settings import Settings
from penstock.definitions.dataset import Dataset
from penstock.definitions.moments import Moment
from penstock.definitions.task import Task
from penstock.ids import IdSource
from penstock.model.plan import BuildReport, BuildRequest
from penstock.outputs.root import OutputRoot
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing.virtual_loop import VirtualClock, VirtualLoop
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


class BuildHarness(ABC):
    """The part of a harness that builds and reads datasets."""

    app: Penstock
    store: InProcessStore
    clock: VirtualClock
    _loop: VirtualLoop
    _ids: IdSource
    _settings: Settings
    _root: OutputRoot

    @abstractmethod
    def _run(
        self,
        tasks: Mapping[str, Task[..., Any]],
        *,
        drain: bool,
        run_id: str | None = None,
        until: str | None = None,
    ) -> AbstractContextManager[Worker]:
        """A worker of the store, on the loop."""

    def build(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """Bring datasets up to date, as `app.build` does; nothing that is asked for is too new."""
        self.app.check_datasets()
        names = [self.app.find_dataset(one).name for one in targets]
        now = to_micros(self.clock.now())
        request = build_request(self.app.datasets, names, start, end, now, **options)
        return self._loop.run_until_complete(self._build(request))

    def read(
        self,
        dataset: str | Dataset[..., Any],
        start: Moment | None = None,
        end: Moment | None = None,
    ) -> pyarrow.Table:
        """What is committed of a dataset, as an Arrow table."""
        return self.app.find_dataset(dataset).read(start, end)

    async def _build(self, request: BuildRequest) -> BuildReport:
        run_id = self._ids.new_id("run")
        build = made_build(
            self.app.name,
            run_id,
            self.app.datasets,
            request,
            self._root,
            self.store,
            self.clock,
            self._settings,
            rand=self._ids.random,
            mark=run_id,
            aside=_at_once,
            now_at=max(to_micros(self.clock.now()), *(end for _, end in request.ranges)),
        )
        tasks = build_tasks(self.app.datasets, self._root, build.names)

        async def work(end_key: str, begun: Callable[[Worker], None]) -> str | None:
            with self._run(tasks, drain=True, run_id=run_id, until=end_key) as worker:
                begun(worker)
                await worker.run()
            return " ".join(stop.sentence for stop in worker.stops) or None

        embedded = EmbeddedBuild(build)
        times = self._settings.runtime
        beat = _VirtualLocks(self.store, self.clock, run_id, embedded, times.lease_ttl_seconds)
        return await embedded.run(beat, work)


async def _at_once(call: Callable[[], T], /) -> T:
    return call()


class _VirtualLocks:
    """Renews the locks of a run on the loop, where nothing can block."""

    def __init__(
        self,
        store: InProcessStore,
        clock: VirtualClock,
        run_id: str,
        build: EmbeddedBuild,
        ttl_seconds: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._run_id = run_id
        self._build = build
        self._ttl_seconds = ttl_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(self._ttl_seconds / 3)
            ours = await self._store.beat_locks(self._run_id, self._ttl_seconds)
            if self._build.has_locks() and not ours:
                self._build.lost()

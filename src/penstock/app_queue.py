# SPDX-License-Identifier: Apache-2.0
"""How does an app reach its settings, its store and its queue?"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import wiring
from penstock.app_datasets import DatasetDefinitions
from penstock.builds import found_root, new_root
from penstock.clock import Duration, SystemClock, blocking_sleep
from penstock.committed_slices import CommittedSlices
from penstock.config.budgets import check_budgets
from penstock.config.daemon_plan import check_partitions
from penstock.config.load import Loaded, load_settings
from penstock.config.provider_policies import check_providers
from penstock.definitions.dataset import Dataset
from penstock.definitions.moments import Moment
from penstock.definitions.request import (
    Enqueued,
    EnqueuedMany,
    JobRequest,
    check_name,
    to_new_job,
)
from penstock.errors import UsageError
from penstock.ids import SystemIds
from penstock.model.job import Edge, NewJob
from penstock.model.views import EnqueueReport
from penstock.outputs.root import OutputRoot
from penstock.stores.reply import Reply
from penstock.stores.retry import open_when_reachable, repeat_unknown, repeat_unknown_async
from penstock.stores.store import Store

if TYPE_CHECKING:
    import pyarrow

ENQUEUE_CHARACTERS = 4 * 1024 * 1024  # of payloads of one transaction, and one more job
GIVE_WAY_JOBS = 50  # after so many the writer's thread may have the interpreter at once
GIVE_WAY_SECONDS = 1e-6  # the shortest that there is; without, the writer waits 5 ms for it
ENQUEUE_AHEAD = 4  # batches on their way while the next is made
UNCHANGED = "nothing was changed. Try again, or find what it waits for."
KEPT_BEFORE = "the jobs before are kept. Do the same again."  # keys make that safe

log = logging.getLogger("penstock.app")

R = TypeVar("R")


class QueuedApp(DatasetDefinitions):
    """An application with the store that its jobs are kept in."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        check_name("app name", name)
        if "/" in name or name.startswith("."):
            raise UsageError(f"The app name {name!r} must be usable as a file name.")
        super().__init__(name)
        self._code_settings: dict[str, Any] = {} if store is None else {"store": store}
        self._store: Store | None = None
        self._store_pid = 0
        self._root: OutputRoot | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.tasks)} tasks>"

    @property
    def code_settings(self) -> dict[str, Any]:
        """What the app says in code, as it would stand in a file of settings."""
        tables = {name: provider.options.table() for name, provider in self.providers.items()}
        return {**self._code_settings, "providers": tables}

    def load(
        self,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Loaded:
        """All settings of this app, with where each came from; refuses what counts nothing."""
        loaded = load_settings(
            flags or {},
            os.environ if environ is None else environ,
            folder or Path.cwd(),
            self.code_settings,
        )
        check_providers(loaded, self.all_tasks, self.providers)
        check_budgets(loaded, self.all_tasks, self.providers)
        check_partitions(loaded, self.dimensions)
        self.check_datasets()
        return loaded

    def store_url(self, loaded: Loaded) -> str:
        """Where the store is, with its password if it has one: to connect with, not to print."""
        named = loaded.settings.store
        return wiring.default_store_url(self.name) if named is None else named.reveal()

    @property
    def store(self) -> Store:
        """The store, opened when first needed, once per process."""
        with self._lock:
            if self._store is None or self._store_pid != os.getpid():
                self._store = self._open_store()
                self._store_pid = os.getpid()
            return self._store

    def _open_store(self) -> Store:
        loaded = self.load()
        url, durability = self.store_url(loaded), loaded.settings.durability
        return open_when_reachable(
            lambda: wiring.open_store(url, durability=durability),
            SystemClock(),
            SystemIds().random,
            log,
            blocking_sleep,
        )

    async def _store_async(self) -> Store:
        """The store; a server is a network away, so it is not opened on the loop."""
        if self._store is None or self._store_pid != os.getpid():
            return await asyncio.to_thread(lambda: self.store)
        return self._store

    def use_store(self, store: Store) -> None:
        """Use a store that is open already."""
        with self._lock:
            self._store, self._store_pid = store, os.getpid()

    def use_root(self, root: OutputRoot) -> None:
        """Keep slices in a root that is known already."""
        self._root = root

    def root(self, loaded: Loaded) -> OutputRoot:
        """Where slices are kept; made if it is not there."""
        return self._root or new_root(loaded.settings, SystemIds())

    def read_slices(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> pyarrow.Table:
        """What is committed of a dataset, as a table."""
        return self._committed(dataset).table(start, end)

    def read_range(self, dataset: Dataset[..., Any], first: int, last: int) -> pyarrow.Table:
        """What is committed in [first, last), microseconds since 1970 UTC, as a table."""
        return self._committed(dataset).table_of(first, last)

    def slice_files(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> list[Path]:
        """The files of what is committed of a dataset."""
        return self._committed(dataset).files(start, end)

    def _committed(self, dataset: Dataset[..., Any]) -> CommittedSlices:
        return CommittedSlices(dataset, self.store, self._root or found_root(self.load().settings))

    def close(self) -> None:
        """Close the store; it opens again when needed."""
        self._root = None
        with self._lock:
            if self._store is not None and self._store_pid == os.getpid():
                self._store.close()
            self._store = None

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
        job = self._accept(
            request, key=key, after=after, priority=priority, delay=delay, group=group
        )
        store = self.store
        ask = partial(store.enqueue, [job])
        report = repeat_unknown(ask, store, UNCHANGED, ask())
        return Enqueued(job.key, job.key in report.created)

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
        job = self._accept(
            request, key=key, after=after, priority=priority, delay=delay, group=group
        )
        store = await self._store_async()
        report = await repeat_unknown_async(lambda: store.enqueue([job]))
        return Enqueued(job.key, job.key in report.created)

    def enqueue_many(self, requests: Iterable[JobRequest[Any]]) -> EnqueuedMany:
        """Accept many jobs, streaming in batches; each batch is all or nothing."""
        if isinstance(requests, JobRequest):
            raise UsageError("enqueue_many takes many jobs; for one, write app.enqueue(job).")
        store = self.store
        created = existing = 0
        waiting: deque[tuple[list[NewJob], Reply[EnqueueReport]]] = deque()
        source = (self._accept(request) for request in requests)
        while batch := _next_batch(source, store.bulk_jobs):
            waiting.append((batch, store.enqueue(batch)))
            if len(waiting) > ENQUEUE_AHEAD:
                new, known = _counts_of(waiting.popleft(), store)
                created, existing = created + new, existing + known
        while waiting:
            new, known = _counts_of(waiting.popleft(), store)
            created, existing = created + new, existing + known
        return EnqueuedMany(created, existing)

    def _accept(self, request: JobRequest[R], **options: Any) -> NewJob:  # noqa: ANN401 (passed on)
        if not isinstance(request, JobRequest):
            raise UsageError(
                f"enqueue takes a job, got {type(request).__name__}; write "
                f"app.enqueue(task.job(...))."
            )
        return to_new_job(request.with_options(**options) if options else request)


def _next_batch(source: Iterator[NewJob], most: int) -> list[NewJob]:
    """The next jobs of one transaction, bounded in number and in size."""
    batch: list[NewJob] = []
    size = 0
    for job in source:
        batch.append(job)
        size += len(job.payload)
        if len(batch) % GIVE_WAY_JOBS == 0:
            blocking_sleep(GIVE_WAY_SECONDS)
        if len(batch) == most or size > ENQUEUE_CHARACTERS:
            break
    return batch


def _counts_of(sent: tuple[list[NewJob], Reply[EnqueueReport]], store: Store) -> tuple[int, int]:
    """How many jobs of a batch were new, and how many known (or twice in it)."""
    batch, reply = sent
    report = repeat_unknown(lambda: store.enqueue(batch), store, KEPT_BEFORE, reply)
    return len(report.created), len(batch) - len(report.created)

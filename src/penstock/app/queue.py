# SPDX-License-Identifier: Apache-2.0
"""The settings of an app, its store, the root of its outputs, and how its jobs are accepted."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any

from penstock.app.dataset_reader import CommittedSlices, found_root, new_root
from penstock.app.registry import Registry
from penstock.clock import SystemClock, blocking_sleep
from penstock.config.budgets import check_budgets
from penstock.config.find_app import DEFAULT_FILE
from penstock.config.load import LoadedSettings, load_settings
from penstock.config.provider_policy import check_providers, check_tables
from penstock.config.settings import Settings
from penstock.definitions.dataset import Dataset
from penstock.definitions.request import (
    AsyncConnection,
    Enqueued,
    EnqueuedMany,
    SyncConnection,
)
from penstock.ids import SystemIds
from penstock.model.job import NewJob
from penstock.model.views import EnqueueReport
from penstock.outputs.root import OutputRoot
from penstock.planning.units import DaemonPlan
from penstock.schedules.plan import check_partitions, plan_daemon
from penstock.sentences import repeat_flags
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.stores.retry import open_when_reachable, repeat_unknown, repeat_unknown_async
from penstock.stores.store_future import Reply
from penstock.stores.url import default_store_url

ENQUEUE_CHARACTERS = 4 * 1024 * 1024  # of payloads of one transaction, and one more job
GIVE_WAY_JOBS = 50  # after so many the writer's thread may have the interpreter at once
GIVE_WAY_SECONDS = 1e-6  # the shortest that there is; without, the writer waits 5 ms for it
ENQUEUE_AHEAD = 4  # batches on their way while the next is made
UNCHANGED = "nothing was changed. Try again, or find what it waits for."
KEPT_BEFORE = "the jobs before it are kept. Repeat the call."  # keys make that safe

log = logging.getLogger("penstock.app")


def warn_of_other_store(registry: Registry, loaded: LoadedSettings, folder: Path) -> None:
    """Say so if the store is about to be made here, and the folder of the app's code has one."""
    here = folder / ".penstock" / f"{registry.name}.db"
    if loaded.settings.store is not None or here.exists():
        return
    codes = (getattr(unwrap(task.function), "__code__", None) for task in registry.tasks.values())
    places = {Path(code.co_filename).resolve().parent for code in codes if code is not None}
    for place in sorted(places - {folder.resolve()}):
        other = place / here.relative_to(folder)
        if other.exists():
            log.warning(
                "The store %s is not used, since the current folder is another: the store is %s. "
                "Run it in %s, or set store = 'sqlite:///%s'.",
                other,
                here,
                place,
                other,
            )


def _name_script(registry: Registry, loaded: LoadedSettings) -> None:
    """Let commands that messages suggest name the script that runs, if it defines the app."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    values = [*vars(main).values()]
    if file is None or not any(
        getattr(one, "__dict__", {}).get("registry") is registry for one in values
    ):
        return
    script, here = Path(file).resolve(), Path.cwd().resolve()
    if loaded.settings.app is None and script != here / DEFAULT_FILE:
        repeat_flags({"--app": os.path.relpath(script, here)})


class Queue:
    """Owns the store that the jobs of an app are kept in: opened when needed, once per process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store | None = None
        self._store_pid = 0
        self._root: OutputRoot | None = None
        self._lock = threading.Lock()

    def load(
        self,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> LoadedSettings:
        """All settings of the app, with where each came from; refuses what counts nothing."""
        registry = self._registry
        loaded = load_settings(
            flags or {},
            os.environ if environ is None else environ,
            folder or Path.cwd(),
            registry.code_settings,
        )
        check_providers(loaded, registry.all_tasks, registry.providers)
        check_budgets(loaded, registry.all_tasks, registry.providers)
        check_partitions(loaded, registry.dimensions)
        registry.check_datasets()
        check_tables(loaded, registry.tables, registry.providers)
        return loaded

    def plan_daemon(self, settings: Settings, now: int) -> DaemonPlan:
        """Multiply preflights and schedules by partitions: what a daemon checks and arms."""
        from penstock.app.build import schedule_problems  # builds are no business of a queue

        registry = self._registry
        return plan_daemon(
            registry.preflights,
            registry.schedules,
            registry.dimensions,
            settings,
            now,
            schedule_problems(registry, now),
        )

    def store_url(self, loaded: LoadedSettings) -> str:
        """Where the store is, with its password if it has one: to connect with, not to print."""
        named = loaded.settings.store
        return default_store_url(self._registry.name) if named is None else named.reveal()

    @property
    def store(self) -> Store:
        with self._lock:
            if self._store is None or self._store_pid != os.getpid():
                self._store = self._open_store()
                self._store_pid = os.getpid()
            return self._store

    def _open_store(self) -> Store:
        loaded = self.load()
        url, durability = self.store_url(loaded), loaded.settings.durability
        warn_of_other_store(self._registry, loaded, Path.cwd())
        _name_script(self._registry, loaded)
        return open_when_reachable(
            lambda: open_store(
                url, app=self._registry.name, tasks=(*self._registry.tasks,), durability=durability
            ),
            SystemClock(),
            SystemIds().random,
            log,
            blocking_sleep,
        )

    async def store_async(self) -> Store:
        """The store; a server is a network away, so it is not opened on the loop."""
        if self._store is None or self._store_pid != os.getpid():
            return await asyncio.to_thread(lambda: self.store)
        return self._store

    def use_store(self, store: Store) -> None:
        """Use a store that is open already."""
        with self._lock:
            self._store, self._store_pid = store, os.getpid()

    def close(self) -> None:
        """Close the store; it opens again when needed."""
        self._root = None
        with self._lock:
            if self._store is not None and self._store_pid == os.getpid():
                self._store.close()
            self._store = None

    def use_root(self, root: OutputRoot) -> None:
        """Keep slices in a root that is known already."""
        self._root = root

    def root(self, loaded: LoadedSettings) -> OutputRoot:
        """Where slices are kept; made if it is not there."""
        return self._root or new_root(loaded.settings, SystemIds())

    def found_root(self, loaded: LoadedSettings | None = None) -> OutputRoot | None:
        """The same; None if nothing was ever built."""
        return self._root or found_root((loaded or self.load()).settings)

    def committed(self, dataset: Dataset[..., Any]) -> CommittedSlices:
        """What readers may see of a dataset."""
        return CommittedSlices(dataset, self.store, self.found_root())

    def enqueue(self, job: NewJob, connection: SyncConnection | None = None) -> Enqueued:
        """Accept one job. When this returns, the job survives a crash, and power loss.

        With a connection it is there when the user commits.
        """
        store = self.store
        if connection is not None:
            return enqueued(job, store.enqueue_within(connection, [job]))
        ask = partial(store.enqueue, [job])
        report = repeat_unknown(ask, store, UNCHANGED, ask())
        return enqueued(job, report)

    async def enqueue_async(
        self, job: NewJob, connection: AsyncConnection | None = None
    ) -> Enqueued:
        """The same on an event loop."""
        store = await self.store_async()
        if connection is not None:
            return enqueued(job, await store.enqueue_within_async(connection, [job]))
        report = await repeat_unknown_async(lambda: store.enqueue([job]))
        return enqueued(job, report)

    def enqueue_many(
        self, jobs: Iterable[NewJob], connection: SyncConnection | None = None
    ) -> EnqueuedMany:
        """Accept many jobs, streaming in batches; each batch is all or nothing."""
        store = self.store
        total = EnqueuedMany(0, 0)
        waiting: deque[tuple[list[NewJob], Reply[EnqueueReport]]] = deque()
        source = iter(jobs)
        while connection is not None and (batch := _next_batch(source, store.bulk_jobs)):
            total = _added(total, batch, store.enqueue_within(connection, batch))
        while batch := _next_batch(source, store.bulk_jobs):
            waiting.append((batch, store.enqueue(batch)))
            if len(waiting) > ENQUEUE_AHEAD:
                total = _answered(total, waiting.popleft(), store)
        while waiting:
            total = _answered(total, waiting.popleft(), store)
        return total

    async def enqueue_many_async(
        self, jobs: Iterable[NewJob], connection: AsyncConnection | None = None
    ) -> EnqueuedMany:
        """The same on an event loop, where a batch is made when the one before is accepted."""
        store = await self.store_async()
        total, source = EnqueuedMany(0, 0), iter(jobs)
        while batch := _next_batch(source, store.bulk_jobs):
            if connection is not None:
                report = await store.enqueue_within_async(connection, batch)
            else:
                report = await repeat_unknown_async(partial(store.enqueue, batch))
            total = _added(total, batch, report)
        return total


def enqueued(job: NewJob, report: EnqueueReport) -> Enqueued:
    """What became of one job of a batch."""
    return Enqueued(job.key, job.key in report.created, job.key in report.differing)


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


def _answered(
    total: EnqueuedMany, sent: tuple[list[NewJob], Reply[EnqueueReport]], store: Store
) -> EnqueuedMany:
    """The counts with those of a batch that was sent."""
    batch, reply = sent
    report = repeat_unknown(lambda: store.enqueue(batch), store, KEPT_BEFORE, reply)
    return _added(total, batch, report)


def _added(total: EnqueuedMany, batch: Sequence[NewJob], report: EnqueueReport) -> EnqueuedMany:
    """The counts with those of a batch: jobs that were new, and known (or twice in it)."""
    return EnqueuedMany(
        total.created + len(report.created),
        total.existing + len(batch) - len(report.created),
        total.differing + len(report.differing),
    )

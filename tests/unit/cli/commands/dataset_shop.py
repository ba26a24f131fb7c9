# SPDX-License-Identifier: Apache-2.0
"""How do tests of commands get datasets, builds that ended, and plans that are on their way?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.app.app import Penstock
from penstock.app.build import build_request, build_scope
from penstock.builds.build import Build, Prepared
from penstock.builds.locks import LockHolder
from penstock.clock import SystemClock, to_micros
from penstock.config.find_app import find_app
from penstock.ids import SeededIds
from penstock.model.job import AttemptError, ErrorCategory, JobState, LeasedJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.model.plan import BuildReport
from penstock.process_identity import own_identity
from penstock.stores.sqlite.store import SqliteStore

DATASETS = """
from pathlib import Path

from penstock import Context, Penstock
from penstock.calendars import Daily, Hourly

app = Penstock("shop")
VERSION = 1

def made(name, at):
    if Path(f"{name}@{at:%Y-%m-%d} fails").exists():
        raise ValueError(f"{name} of {at:%d} shall fail")
    return [{"day": at.day}]

@app.dataset(calendar=Daily(), version=VERSION, max_attempts=1, limits={"feed": "one"})
async def prices(ctx: Context, at):
    return made("prices", at)

@app.dataset(calendar=Daily(), needs=[prices.lookback(2)])
async def mean(ctx: Context, at, prices):
    return made("mean", at)

@app.dataset(calendar=Daily(), needs=[mean], batch=2)
async def total(ctx: Context, at, mean):
    return {one: made("total", one) for one in at}

@app.dataset(calendar=Hourly())
async def hours(ctx: Context, at):
    return made("hours", at)
"""

BROKEN = AttemptError(ErrorCategory.OWN, "ValueError", "shall fail")
TTL_SECONDS = 600.0


class Shop:
    """A project with datasets, whose store is open here as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(DATASETS)
        self._worker: WorkerId | None = None
        self._workers = 0
        self._store: SqliteStore | None = None

    def write(self, source: str) -> None:
        """The app is this from now on."""
        for name in [one for one in sys.modules if one.startswith(("pipeline", "penstock_app_"))]:
            del sys.modules[name]
        (self.folder / "pipeline.py").write_text(source)

    def app(self) -> Penstock:
        app: Penstock = find_app("pipeline.py", self.folder, Penstock)
        return app

    def build(self, *targets: str, start: str, end: str, force: bool = False) -> BuildReport:
        """Build to the end, in this process."""
        app = self.app()
        try:
            return app.build(*targets, start=start, end=end, force=force)
        finally:
            app.close()

    def fails(self, name: str) -> None:
        (self.folder / f"{name} fails").touch()

    @property
    def store(self) -> SqliteStore:
        if self._store is None:
            (self.folder / ".penstock").mkdir(exist_ok=True)
            path = self.folder / ".penstock" / "shop.db"
            self._store = SqliteStore.open(path, durability="normal")
        return self._store

    def plan(
        self,
        *targets: str,
        start: str,
        end: str,
        run_id: str = "run-a",
        mark: str | None = None,
        eager: bool = False,
    ) -> Prepared:
        """Take the locks and enqueue the jobs of a plan; nobody works."""
        app = self.app()
        loaded = app.load({}, folder=self.folder)
        now = to_micros(SystemClock().now())
        build = Build(
            build_scope(app.name, app.datasets, app.root(loaded)),
            build_request(app.datasets, targets, start, end, now, eager=eager),
            LockHolder(
                run_id,
                own_identity() if mark is None else mark,
                loaded.settings.runtime.lease_ttl_seconds,
            ),
            self.store,
            SystemClock(),
            rand=SeededIds(0).random,
            aside=asyncio.to_thread,
        )

        async def prepare() -> Prepared | None:
            await build.lock()
            return await build.prepare()

        prepared = asyncio.run(prepare())
        assert prepared is not None
        self.store.beat_locks(run_id, TTL_SECONDS).result()
        return prepared

    def worker(self, tasks: Sequence[str] | None = None, run_id: str = "run-a") -> WorkerId:
        """A worker that knows all tasks of the store's jobs, or some."""
        known = tuple(self.store.stats().result().tasks) if tasks is None else tuple(tasks)
        self._workers += 1
        name = WorkerId(f"w{self._workers}")
        info = WorkerInfo(id=name, run_id=run_id, tasks=known, host="here", pid=42)
        self.store.register(info, TTL_SECONDS).result()
        return name

    def lease(self, worker: WorkerId, limit: int = 1) -> list[LeasedJob]:
        tasks = tuple(self.store.stats().result().tasks)
        request = LeaseRequest(worker=worker, tasks=tasks, limit=limit, caps=ConfiguredCaps({}))
        return self.store.lease(request).result().jobs

    def end(self, worker: WorkerId, job: LeasedJob, state: JobState = JobState.DONE) -> None:
        now = to_micros(SystemClock().now())
        error = None if state is JobState.DONE else BROKEN
        end = JobEnd(job=job, state=state, started_at=now - 1, ended_at=now, error=error)
        self.store.ack(worker, [end]).result()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

# SPDX-License-Identifier: Apache-2.0
"""Runs and builds of an app inside the user's program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from penstock.app import wiring
from penstock.app.build import (
    BuildOptions,
    Datasets,
    build_request,
    build_scope,
    build_tasks,
    check_parquet,
    rows_request,
    served_schedules,
    served_tasks,
)
from penstock.app.daemon import begun_now, checked_values, plan_of_now, preflight_run
from penstock.app.queue import Queue
from penstock.app.registry import Registry
from penstock.builds.build import Build, BuildScope, EmbeddedBuild
from penstock.builds.changed_code import ChangedCode
from penstock.builds.locks import LockHeartbeat, LockHolder
from penstock.clock import SystemClock, to_micros
from penstock.config.find_app import import_path_of, refuse_import
from penstock.config.load import LoadedSettings
from penstock.definitions.dataset import Dataset, Moment
from penstock.definitions.task import PROCESS, Task
from penstock.ids import SystemIds
from penstock.model.dataset import SliceMarks, built_as
from penstock.model.plan import BuildPlan, BuildReport, BuildRequest
from penstock.model.run import OnProgress, RunReport
from penstock.planning.build_plan import check_build, plan_build
from penstock.planning.graph import closure
from penstock.planning.units import DaemonPlan
from penstock.process_identity import own_identity
from penstock.schedules.daemon_start import Arming, DaemonStart
from penstock.worker import embedded
from penstock.worker.embedded import EmbeddedRun
from penstock.worker.event_loop import refuse_running_loop, run_on_new_loop
from penstock.worker.log_lines import StatisticsLine
from penstock.worker.parts import LeaseKeeper
from penstock.worker.run_progress import ProgressReporter, check_on_progress
from penstock.worker.slot_table import SlotTable
from penstock.worker.start_budget import start_budget
from penstock.worker.task_protocol import TaskOrder
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.tables.row_group import TableDataset

T = TypeVar("T")


class Runner:
    """Works on the queue of an app in this process. Keeps nothing between two calls."""

    def __init__(self, app: object, registry: Registry, queue: Queue) -> None:
        """Work for this app, which other processes find by where it stands in a module."""
        self._app = app
        self._registry = registry
        self._queue = queue

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do it on an event loop of its own; UsageError if this thread runs one already."""
        refuse_import("app.run() or app.build()")
        refuse_running_loop()
        with embedded.tuned():
            return run_on_new_loop(work())

    async def run(
        self,
        *,
        daemon: bool,
        drain: bool,
        max_jobs: int | None,
        flags: Mapping[str, object],
        signals: bool,
        on_progress: OnProgress | None,
    ) -> RunReport:
        """Work on the queue until it is drained, interrupted (with `signals`) or cancelled."""
        check_on_progress(on_progress)
        ids, registry = SystemIds(), self._registry
        options = wiring.RunOptions(
            run_id=ids.new_id("run"), app=registry.name, drain=drain, signals=signals
        )
        with start_budget(max_jobs) as starts:
            options = replace(options, starts=starts)
            return await self._run(options, self._loaded(flags), ids, on_progress, daemon=daemon)

    async def _run(
        self,
        options: wiring.RunOptions,
        loaded: LoadedSettings,
        ids: SystemIds,
        on_progress: OnProgress | None,
        *,
        daemon: bool,
    ) -> RunReport:
        """The same with what was asked for; a daemon runs its preflights first."""
        registry, settings, clock = self._registry, loaded.settings, SystemClock()
        plan = self._queue.plan_daemon(settings, to_micros(clock.now())) if daemon else None
        if plan is None:
            tasks = {**registry.tasks, **served_tasks(registry.datasets, settings)}
            return await self._work(loaded, options, tasks, on_progress)
        store = await self._queue.store_async()
        schedules = served_schedules(
            registry,
            partial(self._queue.root, loaded),
            settings,
            store,
            clock,
            ids,
            asyncio.to_thread,
        )
        served = served_tasks(registry.datasets, settings)
        checks = preflight_run(
            plan,
            registry.preflights,
            settings,
            clock,
            ids,
            policy=registry.retry_policy,
            providers=registry.providers,
        )
        start = DaemonStart(
            checks,
            Arming(registry.name, store, clock, ids.random),
            lambda: begun_now(plan, registry.schedules, to_micros(clock.now())),
        )
        tasks = {**registry.tasks, **served, **schedules}
        return await self._work(loaded, options, tasks, on_progress, plan, start)

    def _loaded(self, flags: Mapping[str, object]) -> LoadedSettings:
        loaded = self._queue.load(flags)
        wiring.check_dimensions(loaded, self._registry.all_tasks)
        return loaded

    async def _work(
        self,
        loaded: LoadedSettings,
        options: wiring.RunOptions,
        tasks: Mapping[str, Task[..., Any]],
        on_progress: OnProgress | None,
        plan: DaemonPlan | None = None,
        start: DaemonStart | None = None,
        begun: Callable[[Worker], None] = lambda _: None,
    ) -> RunReport:
        """Run a worker in this program; `begun` is told of it."""
        registry, settings = self._registry, loaded.settings
        task_order = self._task_order()
        clock = SystemClock()
        store = await self._queue.store_async()
        every = settings.runtime.statistics_seconds
        statistics = StatisticsLine(every, options.run_id, store, clock)

        def build(keeper: LeaseKeeper, table: SlotTable) -> Worker:
            worker = wiring.build_worker(
                options,
                tasks,
                settings,
                store,
                keeper,
                table,
                clock=clock,
                task_order=task_order,
                events=statistics.events,
                providers=registry.providers,
                sources=loaded.sources,
                policy=registry.retry_policy,
                preflights=registry.preflights.values(),
                checked=checked_values(registry.name, registry.preflights, plan),
                plan=plan_of_now(plan, registry.schedules, clock),
            )
            begun(worker)
            return worker

        run = EmbeddedRun(store, clock, settings.runtime, signals=options.signals)
        slots = wiring.slot_count(settings, registry.providers)
        progress = ProgressReporter(options.run_id, store, clock, on_progress)
        return await run.run(build, slots, options.run_id, statistics, progress, start)

    def request(
        self,
        targets: Iterable[str | Dataset[..., Any]],
        start: Moment,
        end: Moment,
        now: int,
        **options: Unpack[BuildOptions],
    ) -> BuildRequest:
        """What is asked for; UsageError for a target that is none."""
        names = [self._registry.find_dataset(one).name for one in targets]
        return build_request(self._registry.datasets, names, start, end, now, **options)

    def plan(self, request: BuildRequest, now: int) -> BuildPlan:
        """What a build would do at this moment; changes nothing."""
        store, root = self._queue.store, self._queue.found_root()
        root_id = "" if root is None else root.id
        code = ChangedCode(store, lambda name: self._registry.datasets[name].code)

        def marks(dataset: str, first: int, last: int, version: str) -> SliceMarks:
            return code.marks(dataset, first, last, built_as(version, root_id))

        plan = plan_build(self._registry.dataset_specs, request, marks, now)
        if not request.force:
            code.warn()
        return plan

    async def build(
        self,
        targets: Iterable[str | Dataset[..., Any]],
        start: Moment,
        end: Moment,
        flags: Mapping[str, object],
        signals: bool,
        on_progress: OnProgress | None,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """Bring datasets up to date, with all that they need; `signals` stop its jobs."""
        check_on_progress(on_progress)
        registry, loaded = self._registry, self._loaded(flags)
        now = to_micros(SystemClock().now())
        request = self.request(targets, start, end, now, **options)
        check_build(registry.dataset_specs, request, now)
        check_parquet(registry.datasets, closure(registry.dataset_specs, request.targets))
        scope = build_scope(registry.name, registry.datasets, self._queue.root(loaded))
        return await self._bring(request, scope, registry.datasets, loaded, signals, on_progress)

    async def generate(
        self,
        dataset: TableDataset,
        rows: int,
        flags: Mapping[str, object],
        signals: bool,
        on_progress: OnProgress | None,
        *,
        retry_dropped: bool = False,
    ) -> BuildReport:
        """Make the rows of a table that are not there; `signals` stop its jobs."""
        check_on_progress(on_progress)
        loaded, root = self._loaded(flags), self._queue.root
        request, datasets = rows_request(dataset.name, rows), {dataset.name: dataset}
        scope = build_scope(
            self._registry.name, datasets, root(loaded), rows, retry_dropped=retry_dropped
        )
        return await self._bring(request, scope, datasets, loaded, signals, on_progress)

    async def _bring(
        self,
        request: BuildRequest,
        scope: BuildScope,
        datasets: Datasets,
        loaded: LoadedSettings,
        signals: bool,
        on_progress: OnProgress | None,
    ) -> BuildReport:
        """Do what a request asks for, whatever it is of."""
        registry, times = self._registry, loaded.settings.runtime
        ids, clock = SystemIds(), SystemClock()
        run_id = ids.new_id("run")
        store = await self._queue.store_async()
        ttl = times.lease_ttl_seconds
        build = Build(
            scope,
            request,
            LockHolder(run_id, own_identity(), ttl),
            store,
            clock,
            rand=ids.random,
            aside=asyncio.to_thread,
        )
        embedded = EmbeddedBuild(build)
        beat = LockHeartbeat(
            store, run_id, clock, ttl, times.beat_seconds, embedded.has_locks, embedded.lost
        )

        async def work(end_key: str, begun: Callable[[Worker], None]) -> str | None:
            tasks = build_tasks(datasets, scope.root, build.names)
            options = wiring.RunOptions(
                run_id=run_id, app=registry.name, until=end_key, signals=signals
            )
            ran = await self._work(loaded, options, tasks, on_progress, begun=begun)
            return ran.over_budget or ran.closed_account

        return await embedded.run(beat, work)

    def _task_order(self) -> TaskOrder | None:
        """How other processes get at this app; None if no task asks for one."""
        if all(task.slot_kind != PROCESS for task in self._registry.all_tasks.values()):
            return None
        address = import_path_of(self._app, self._registry.name)
        return TaskOrder(app=address, folder=str(Path.cwd()), path=tuple(sys.path))

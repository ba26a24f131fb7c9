# SPDX-License-Identifier: Apache-2.0
"""What does a user define and call? An application: its registry, its queue, and its runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

from penstock import wiring
from penstock.app_queue import QueuedApp
from penstock.builds import (
    BuildOptions,
    build_request,
    build_tasks,
    found_root,
    made_build,
    served_tasks,
)
from penstock.clock import SystemClock, to_micros
from penstock.config.daemon_plan import plan_daemon
from penstock.config.find_app import address_of
from penstock.config.load import Loaded
from penstock.config.settings import Settings
from penstock.daemon import begun_now, preflight_run
from penstock.definitions.dataset import Dataset
from penstock.definitions.moments import Moment
from penstock.definitions.task import PROCESS, Task
from penstock.ids import SystemIds
from penstock.model.dataset import SliceMarks, built_as
from penstock.model.plan import BuildPlan, BuildReport, BuildRequest
from penstock.planning.build_plan import check_build, plan_build
from penstock.planning.daemon import DaemonPlan
from penstock.process_mark import own_mark
from penstock.runtime import interpreter
from penstock.runtime.arming import Arming
from penstock.runtime.checked_values import CheckedValues
from penstock.runtime.embedded import EmbeddedRun, RunReport, refuse_running_loop, run_and_close
from penstock.runtime.embedded_build import EmbeddedBuild
from penstock.runtime.lock_beat import LockBeat
from penstock.runtime.remote import TaskOrder
from penstock.runtime.slot_table import SlotTable
from penstock.runtime.starting import DaemonStart
from penstock.runtime.statistics_line import StatisticsLine
from penstock.runtime.worker import Worker
from penstock.runtime.worker_config import LeaseKeeper


class Penstock(QueuedApp):
    """An application: its tasks, its providers, and the store that its jobs are kept in."""

    def plan_daemon(self, settings: Settings, now: int) -> DaemonPlan:
        """Multiply preflights and schedules by partitions: what a daemon checks and arms.

        Evaluates every dimension once. UsageError lists everything that is wrong.

        Args:
            settings: of this app.
            now: microseconds since 1970 UTC; new units tick first from then on.
        """
        return plan_daemon(self.preflights, self.schedules, self.dimensions, settings, now)

    def checked_values(self, plan: DaemonPlan | None) -> CheckedValues | None:
        """What its preflights have returned, still to be read; None if it has none."""
        if not self.preflights:
            return None
        shares = {} if plan is None else plan.shares
        return CheckedValues(self.name, self.preflights.values(), shares)

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
        refuse_running_loop()
        with interpreter.tuned():
            return run_and_close(
                wiring.new_event_loop(), self.run_async(daemon=daemon, drain=drain, slots=slots)
            )

    async def run_async(
        self, *, daemon: bool = False, drain: bool = False, slots: int | None = None
    ) -> RunReport:
        """The same on an event loop; cancelling it stops gracefully."""
        loaded = self.load({} if slots is None else {"--slots": slots})
        wiring.check_dimensions(loaded, self.all_tasks)
        settings = loaded.settings
        ids, clock = SystemIds(), SystemClock()
        options = wiring.RunOptions(run_id=ids.new_id("run"), drain=drain)
        plan = self.plan_daemon(settings, to_micros(clock.now())) if daemon else None
        tasks = {**self.tasks, **served_tasks(self.datasets, settings)}
        if plan is None:
            return await self._work(loaded, options, tasks)
        store = await self._store_async()
        checks = preflight_run(
            plan,
            self.preflights,
            settings,
            clock,
            ids,
            policy=self.retry_policy,
            providers=self.providers,
        )
        start = DaemonStart(
            checks,
            Arming(self.name, store, clock, ids.random),
            lambda: begun_now(plan, self.schedules, to_micros(clock.now())),
        )
        return await self._work(loaded, options, {**tasks, **self.schedules}, plan, start)

    async def _work(
        self,
        loaded: Loaded,
        options: wiring.RunOptions,
        tasks: Mapping[str, Task[..., Any]],
        plan: DaemonPlan | None = None,
        start: DaemonStart | None = None,
        begun: Callable[[Worker], None] = lambda _: None,
    ) -> RunReport:
        """Run a worker in this program; `begun` is told of it."""
        settings = loaded.settings
        task_order = self._task_order()
        clock = SystemClock()
        store = await self._store_async()
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
                providers=self.providers,
                sources=loaded.sources,
                policy=self.retry_policy,
                preflights=self.preflights.values(),
                checked=self.checked_values(plan),
            )
            begun(worker)
            return worker

        run = EmbeddedRun(store, clock, settings.runtime)
        slots = wiring.slot_count(settings, self.providers)
        return await run.run(build, slots, options.run_id, statistics, start)

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
        return self.plan_request(self._request(targets, start, end, now, **options), now)

    def plan_request(self, request: BuildRequest, now: int) -> BuildPlan:
        """The same for a request, at a moment (microseconds since 1970 UTC)."""
        store = self.store
        root = self._root or found_root(self.load().settings)
        root_id = "" if root is None else root.id

        def marks(dataset: str, first: int, last: int, version: str) -> SliceMarks:
            built = built_as(version, root_id)
            return store.slice_marks(dataset, first, last, built).result()

        return plan_build(self.dataset_specs, request, marks, now)

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
        refuse_running_loop()
        with interpreter.tuned():
            return run_and_close(
                wiring.new_event_loop(),
                self.build_async(*targets, start=start, end=end, slots=slots, **options),
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
        loaded = self.load({} if slots is None else {"--slots": slots})
        wiring.check_dimensions(loaded, self.all_tasks)
        now = to_micros(SystemClock().now())
        request = self._request(targets, start, end, now, **options)
        check_build(self.dataset_specs, request, now)
        settings, times = loaded.settings, loaded.settings.runtime
        ids, clock = SystemIds(), SystemClock()
        run_id = ids.new_id("run")
        store = await self._store_async()
        root = self.root(loaded)
        build = made_build(
            self.name,
            run_id,
            self.datasets,
            request,
            root,
            store,
            clock,
            settings,
            rand=ids.random,
            mark=own_mark(),
            aside=asyncio.to_thread,
        )
        embedded = EmbeddedBuild(build)
        ttl = times.lease_ttl_seconds
        beat = LockBeat(
            store,
            run_id,
            clock,
            ttl,
            times.beat_seconds,
            embedded.has_locks,
            embedded.lost,
        )

        async def work(end_key: str, begun: Callable[[Worker], None]) -> str | None:
            tasks = build_tasks(self.datasets, root, build.names)
            options = wiring.RunOptions(run_id=run_id, until=end_key)
            return (await self._work(loaded, options, tasks, begun=begun)).over_budget

        return await embedded.run(beat, work)

    def _request(
        self,
        targets: tuple[str | Dataset[..., Any], ...],
        start: Moment,
        end: Moment,
        now: int,
        **options: Unpack[BuildOptions],
    ) -> BuildRequest:
        names = [self.find_dataset(one).name for one in targets]
        return build_request(self.datasets, names, start, end, now, **options)

    def _task_order(self) -> TaskOrder | None:
        """How other processes get at this app; None if no task asks for one."""
        if all(task.kind != PROCESS for task in self.all_tasks.values()):
            return None
        address = address_of(self, self.name)
        return TaskOrder(app=address, folder=str(Path.cwd()), path=tuple(sys.path))

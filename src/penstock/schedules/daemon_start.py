# SPDX-License-Identifier: Apache-2.0
"""The start of a daemon: preflights first, then the units of its plan are armed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from penstock.clock import Clock, to_micros
from penstock.errors import PreflightFailed
from penstock.model.job import SCHEDULE, JobKind, kind_of_name
from penstock.model.schedule import ARM_UNITS_MAX, ArmReport, PreflightResult, UnitPlan, UnitView
from penstock.model.views import WorkerView
from penstock.model.worker import is_abandoned, read_status
from penstock.planning.units import DaemonPlan, plan_mark
from penstock.process_identity import is_gone
from penstock.sentences import counted
from penstock.stores.protocol import ScheduleStore
from penstock.stores.retry import StoreRetry
from penstock.stores.store_future import Reply

PAGE = 1_000  # units that are read at once
LEFT_OUT_TOLD_MAX = 20  # preflights that are not required and failed; the rest is counted
WAITS = "Arming schedules has to wait"

log = logging.getLogger("penstock.daemon")

T = TypeVar("T")


class DaemonStore(ScheduleStore, Protocol):
    """What arming asks of a store."""

    def workers(self) -> Reply[list[WorkerView]]: ...


class OtherDaemon(NamedTuple):
    """A living run that ticks units of the app, too."""

    run_id: str
    plan: str | None  # the mark of its plan; None: it has not told yet, or cannot


class Armed(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a plan."""

    units: int
    schedules: int
    report: ArmReport
    retired: int


class Arming:
    """Owns the way from a plan to the store. Belongs to one loop."""

    def __init__(
        self,
        app: str,
        store: DaemonStore,
        clock: Clock,
        rand: Callable[[], float],
        *,
        insists: bool = True,
    ) -> None:
        """Nothing is armed.

        Args:
            app: whose units they are.
            store: where they are.
            clock: the time.
            rand: gives numbers in [0, 1), for back-offs.
            insists: waits for a store that is unreachable; else its error is raised.
        """
        self._app = app
        self._store = store
        self._clock = clock
        self._insists = insists
        self._retry = StoreRetry(log, clock, rand)

    async def keep(self, results: Sequence[PreflightResult]) -> None:
        """Keep what checks came to; if all that must have passed, what is older is forgotten.

        Of one that is left out nothing is kept: so it counts as one that has not passed.
        """
        oldest_at = min((x.checked_at for x in results), default=to_micros(self._clock.now()))
        results = [result for result in results if not result.is_left_out]
        for start in range(0, len(results), ARM_UNITS_MAX):
            part = results[start : start + ARM_UNITS_MAX]
            await self._ask(partial(self._store.keep_preflights, self._app, part))
        if all(result.error is None for result in results):
            await self._ask(partial(self._store.forget_preflights, self._app, oldest_at))

    async def arm(self, plan: DaemonPlan) -> Armed:
        """Let the units of a plan tick, and no others of this app, unless others may plan them."""
        units = plan.schedules
        await self._warn_of_others(units)
        report = await self.arm_units(units)
        retired, others = 0, await self.others("")
        if all(mark == plan_mark(plan) for _, mark in others):
            retired = await self.retire(plan)
        else:
            log.info(
                "Another daemon of this app runs that may plan other units (%s): none is retired "
                "while it lives.",
                ", ".join(sorted({run_id for run_id, _ in others})),
            )
        schedules = len({unit.task for unit in units})
        if report.new or report.retimed or report.revived or retired:
            log.info(
                "Units of schedules, %d: %d new, %d as before, %d with another timing, %d armed "
                "again, %d retired.",
                len(units),
                report.new,
                report.kept,
                report.retimed,
                report.revived,
                retired,
            )
        return Armed(units=len(units), schedules=schedules, report=report, retired=retired)

    async def arm_units(self, units: Sequence[UnitPlan]) -> ArmReport:
        """Let these tick as they are planned."""
        report = ArmReport()
        for start in range(0, len(units), ARM_UNITS_MAX):
            part = units[start : start + ARM_UNITS_MAX]
            report = _sum(report, await self._ask(partial(self._store.arm, self._app, part)))
        return report

    async def others(self, run_id: str) -> frozenset[OtherDaemon]:
        """The living daemons that may plan units of this app, but for one run."""
        workers = await self._ask(self._store.workers)
        return frozenset(
            OtherDaemon(worker.run_id, None if status is None else status.plan)
            for worker in workers
            if worker.alive and worker.run_id != run_id and not is_abandoned(worker, is_gone)
            if any(kind_of_name(task) is JobKind.TICK for task in worker.tasks)
            if (status := read_status(worker.status)) is None or status.app == self._app
        )

    async def _warn_of_others(self, units: Sequence[UnitPlan]) -> None:
        """Say which schedules were another app's: there is one unit of a name in a store."""
        first = {unit.task: unit.key for unit in reversed(units)}
        asked = (self._ask(partial(self._store.unit, key)) for key in first.values())
        for task, known in zip(first, await asyncio.gather(*asked), strict=True):
            if known is not None and known.app != self._app and known.retired_at is None:
                log.warning(
                    "The schedule %r was of the app %r and is now of %r. If both run on this "
                    "store, each runs ticks of the other: rename one, or give it its own store.",
                    task.removeprefix(SCHEDULE),
                    known.app,
                    self._app,
                )

    async def _ask(self, ask: Callable[[], Reply[T]]) -> T:
        return await self._retry.until_answered(WAITS, ask, wanted=lambda: self._insists)

    async def retire(self, plan: DaemonPlan) -> int:
        """Page through what the store has; what nobody planned ticks no more."""
        planned, count = {unit.key for unit in plan.schedules}, 0
        async for page in self._pages():
            gone = [x.key for x in page if x.key not in planned and x.retired_at is None]
            if gone:
                count += await self._ask(partial(self._store.retire_units, gone))
        return count

    async def bring_back(self, plan: DaemonPlan) -> int:
        """Let those of a plan tick again that somebody else has retired; how many."""
        planned, count = {unit.key: unit for unit in plan.schedules}, 0
        async for page in self._pages():
            gone = [planned[x.key] for x in page if x.key in planned and x.retired_at is not None]
            count += (await self.arm_units(gone)).revived
        return count

    async def _pages(self) -> AsyncIterator[list[UnitView]]:
        last = ""
        while page := await self._ask(partial(self._store.units, self._app, last, PAGE)):
            last = page[-1].key
            yield page


def _sum(one: ArmReport, other: ArmReport) -> ArmReport:
    return ArmReport(
        new=one.new + other.new,
        kept=one.kept + other.kept,
        retimed=one.retimed + other.retimed,
        revived=one.revived + other.revived,
    )


class Checks(Protocol):
    """Whatever says what each check comes to."""

    async def run(self) -> list[PreflightResult]: ...


class DaemonStart:
    """Owns the first phase and what comes between it and the second. Belongs to one loop."""

    def __init__(
        self,
        checks: Checks | None,
        arming: Arming,
        plan: Callable[[], DaemonPlan],
        told: Callable[[Sequence[PreflightResult]], None] = lambda _: None,
        *,
        check_only: bool = False,
    ) -> None:
        """Nothing has begun.

        Args:
            checks: None: there are none.
            arming: the way to the store.
            plan: what is to be armed, when that is due.
            told: hears what the checks came to, as soon as they have.
            check_only: nothing is kept or armed.
        """
        self._checks = checks
        self._arming = arming
        self._plan = plan
        self._told = told
        self._check_only = check_only
        self._task: asyncio.Task[Armed | None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End it at once, wherever it is."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> Armed | None:
        """Check and arm; None if it was stopped, or nothing is to be armed.

        Raises:
            PreflightFailed: with all that have not passed; then no unit was armed.
        """
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self._stopped:
            self._task.cancel()
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._stopped and self._task.cancelled():
                return None
            raise

    async def _run(self) -> Armed | None:
        results = [] if self._checks is None else await self._checks.run()
        self._told(results)
        if not self._check_only:
            await self._arming.keep(results)
        failures = {
            result.unit: f"{result.error.kind}: {result.error.message}"
            for result in results
            if result.error is not None and result.required
        }
        _tell_left_out([result for result in results if result.is_left_out])
        if failures:
            raise PreflightFailed(failures, len(results))
        return None if self._check_only else await self._arming.arm(self._plan())


def _tell_left_out(results: Sequence[PreflightResult]) -> None:
    """Say once which partitions are left out."""
    for result in results[:LEFT_OUT_TOLD_MAX]:
        if result.error is not None:
            log.warning(
                "%s did not pass and is not required, so the units that it is about are left out "
                "until it does; each of their ticks checks again: %s",
                result.unit,
                result.error.format(),
            )
    more = len(results) - LEFT_OUT_TOLD_MAX
    if more > 0:
        log.warning("%s that are not required did not pass.", counted(more, "more preflight"))

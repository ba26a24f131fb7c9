# SPDX-License-Identifier: Apache-2.0
"""What the first worker of a daemon does before the work: preflights, then arming schedules."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.app.app import Penstock
from penstock.app.daemon import begun_now, preflight_run
from penstock.clock import Clock, to_micros
from penstock.config.settings import Settings
from penstock.definitions.preflight import Preflight
from penstock.errors import PreflightFailed
from penstock.ids import SystemIds
from penstock.model.job import PREFLIGHT, AttemptError, ErrorCategory
from penstock.model.schedule import PreflightResult
from penstock.planning.units import DaemonPlan, PreflightPlan
from penstock.schedules.daemon_start import Arming, DaemonStart
from penstock.schedules.preflight_run import CheckTable
from penstock.supervisor import protocol
from penstock.supervisor.protocol import unit_name

CHECKS_TOLD_MAX = 10_000  # failures that are told one by one
NAMES_AT_ONCE = 500
DIED = "died"  # the kind of error of a check that ends its process

HINTS = {
    ErrorCategory.NODE: "Is the host up, and can this machine reach it?",
    ErrorCategory.SERVICE: "It asked for patience for longer than preflight_timeout.",
    ErrorCategory.TIMEOUT: "It did not answer within preflight_timeout.",
}


class DaemonLead:
    """Owns the way of one daemon from its plan to its work, and tells the supervisor of it."""

    def __init__(
        self,
        app: Penstock,
        plan: DaemonPlan,
        settings: Settings,
        clock: Clock,
        channel: socket.socket,
        table: CheckTable,
        order: protocol.WorkerOrder,
    ) -> None:
        self.plan_id: str | None = None  # a daemon builds nothing
        self._app = app
        self._plan = plan
        self._settings = settings
        self._clock = clock
        self._channel = channel
        self._table = table
        self._check_only = order.spec.check
        self._alone = frozenset(order.alone)
        self._crashed = {one.unit: one.problem for one in order.crashed}
        self._ended = [0, 0]  # how many have passed and failed in earlier rounds
        self._start = DaemonStart(
            _Rounds(self._look) if plan.preflights else None,
            Arming(app.name, app.store, clock, SystemIds().random),
            lambda: begun_now(plan, app.schedules, to_micros(clock.now())),
            self._told,
            check_only=self._check_only,
        )

    async def _look(self) -> list[PreflightResult]:
        """All together; after a death those that ran then come last, one by one."""
        found = {
            plan.unit: self._died(plan, self._crashed[shown])
            for plan in self._plan.preflights
            if (shown := unit_name(plan.name, plan.partition)) in self._crashed
        }
        left = [plan for plan in self._plan.preflights if plan.unit not in found]
        alone = [plan for plan in left if unit_name(plan.name, plan.partition) in self._alone]
        together = [plan for plan in left if plan not in alone] if alone else left
        self._count(found.values())
        for plans in (together, *([plan] for plan in alone)):
            if not plans:
                continue
            results = await self._round(plans)
            found.update((result.unit, result) for result in results)
            self._count(results)
            if plans is not together:
                for result in results:
                    protocol.send(self._channel, check_message(result, self._app.preflights))
        return [found[plan.unit] for plan in self._plan.preflights]

    async def _round(self, plans: Sequence[PreflightPlan]) -> list[PreflightResult]:
        """Run these, and say before which they are."""
        self._table.clear()  # a body that was given up in an earlier one may still be in it
        names = [unit_name(plan.name, plan.partition) for plan in plans]
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = tuple(names[start : start + NAMES_AT_ONCE])
            protocol.send(self._channel, protocol.ToCheck(part, first=start == 0))
        checks = preflight_run(
            msgspec.structs.replace(self._plan, preflights=tuple(plans)),
            self._app.preflights,
            self._settings,
            self._clock,
            SystemIds(),
            policy=self._app.registry.retry_policy,
            providers=self._app.providers,
            progress=self._progress,
            table=self._table,
        )
        return [] if checks is None else await checks.run()

    def _died(self, plan: PreflightPlan, problem: str) -> PreflightResult:
        return PreflightResult(
            unit=plan.unit,
            name=plan.name,
            partition=plan.partition,
            error=AttemptError(ErrorCategory.OWN, DIED, problem),
            checked_at=to_micros(self._clock.now()),
        )

    def _count(self, results: Iterable[PreflightResult]) -> None:
        for result in results:
            self._ended[result.error is not None] += 1

    def _progress(self, passed: int, failed: int, _: int) -> None:
        message = protocol.Checking(
            passed=self._ended[0] + passed,
            failed=self._ended[1] + failed,
            total=len(self._plan.preflights),
        )
        protocol.send(self._channel, message)

    def stop(self) -> None:
        """End it at once, wherever it is."""
        self._start.stop()

    async def run(self) -> bool:
        """Check and arm; False if there is no work to go on with."""
        try:
            armed = await self._start.run()
        except PreflightFailed:
            return False  # the supervisor was told of each
        if armed is None:
            return False
        message = protocol.Armed(
            schedules=armed.schedules,
            units=armed.units,
            new=armed.report.new,
            retimed=armed.report.retimed,
            revived=armed.report.revived,
            retired=armed.retired,
        )
        protocol.send(self._channel, message)
        return True

    def _told(self, results: Sequence[PreflightResult]) -> None:
        failed = [result for result in results if result.error is not None]
        for result in (results if self._check_only else failed)[:CHECKS_TOLD_MAX]:
            protocol.send(self._channel, check_message(result, self._app.preflights))
        protocol.send(
            self._channel, protocol.Checked(passed=len(results) - len(failed), failed=len(failed))
        )


class _Rounds:
    """Lets a lead look."""

    def __init__(self, look: Callable[[], Awaitable[list[PreflightResult]]]) -> None:
        self._look = look

    async def run(self) -> list[PreflightResult]:
        return await self._look()


def check_message(
    result: PreflightResult, preflights: Mapping[str, Preflight[..., Any]]
) -> protocol.Check:
    """What the supervisor is told of one check."""
    error = result.error
    if error is None:
        return protocol.Check(name=result.name, partition=result.partition, passed=True)
    said = error.message.partition(chr(10))[0]
    hint = preflights[PREFLIGHT + result.name].hint or HINTS.get(error.category, "")
    return protocol.Check(
        name=result.name,
        partition=result.partition,
        passed=False,
        problem=said if error.kind == DIED else f"{error.kind}: {said}".removesuffix(": "),
        hint=hint,
    )

# SPDX-License-Identifier: Apache-2.0
"""What does the first worker of a daemon do before anybody works, and what does it tell of it?"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.app import Penstock
from penstock.clock import Clock, to_micros
from penstock.config.settings import Settings
from penstock.daemon import begun_now, preflight_run
from penstock.definitions.preflight import Preflight
from penstock.errors import PreflightFailed
from penstock.ids import SystemIds
from penstock.model.job import ErrorCategory
from penstock.model.schedule import PREFLIGHT, PreflightResult
from penstock.planning.daemon import DaemonPlan
from penstock.runtime import messages
from penstock.runtime.arming import Arming
from penstock.runtime.messages import unit_name
from penstock.runtime.preflights import CheckTable
from penstock.runtime.starting import DaemonStart

CHECKS_TOLD_MAX = 10_000  # failures that are told one by one
NAMES_AT_ONCE = 500

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
        *,
        check_only: bool,
    ) -> None:
        self._plans = plan.preflights
        self._preflights = app.preflights
        self._channel = channel
        self._check_only = check_only
        checks = preflight_run(
            plan,
            app.preflights,
            settings,
            clock,
            SystemIds(),
            policy=app.retry_policy,
            providers=app.providers,
            progress=self._progress,
            table=table,
        )
        self._start = DaemonStart(
            checks,
            Arming(app.name, app.store, clock),
            lambda: begun_now(plan, app.schedules, to_micros(clock.now())),
            self._told,
            check_only=check_only,
        )

    def _progress(self, passed: int, failed: int, total: int) -> None:
        message = messages.Checking(passed=passed, failed=failed, total=total)
        messages.send(self._channel, message)

    def stop(self) -> None:
        """End it at once, wherever it is."""
        self._start.stop()

    async def run(self) -> bool:
        """Check and arm; False if there is no work to go on with."""
        names = [unit_name(plan.name, plan.partition) for plan in self._plans]
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = tuple(names[start : start + NAMES_AT_ONCE])
            messages.send(self._channel, messages.ToCheck(part))
        try:
            armed = await self._start.run()
        except PreflightFailed:
            return False  # the supervisor was told of each
        if armed is None:
            return False
        message = messages.Armed(
            schedules=armed.schedules,
            units=armed.units,
            new=armed.report.new,
            retimed=armed.report.retimed,
            revived=armed.report.revived,
            retired=armed.retired,
        )
        messages.send(self._channel, message)
        return True

    def _told(self, results: Sequence[PreflightResult]) -> None:
        failed = [result for result in results if result.error is not None]
        for result in (results if self._check_only else failed)[:CHECKS_TOLD_MAX]:
            messages.send(self._channel, check_message(result, self._preflights))
        messages.send(
            self._channel, messages.Checked(passed=len(results) - len(failed), failed=len(failed))
        )


def check_message(
    result: PreflightResult, preflights: Mapping[str, Preflight[..., Any]]
) -> messages.Check:
    """What the supervisor is told of one check."""
    error = result.error
    if error is None:
        return messages.Check(name=result.name, partition=result.partition, passed=True)
    hint = preflights[PREFLIGHT + result.name].hint or HINTS.get(error.category, "")
    return messages.Check(
        name=result.name,
        partition=result.partition,
        passed=False,
        problem=f"{error.kind}: {error.message.partition(chr(10))[0]}",
        hint=hint,
    )

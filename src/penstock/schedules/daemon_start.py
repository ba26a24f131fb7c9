# SPDX-License-Identifier: Apache-2.0
"""How does a daemon come from its plan to its work? Checks first; then what is planned is armed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import PreflightFailed
from penstock.model.schedule import PreflightResult
from penstock.planning.daemon import DaemonPlan
from penstock.schedules.arming import Armed, Arming


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
            plan: as it shall be armed, when that is due.
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
            if result.error is not None
        }
        if failures:
            raise PreflightFailed(failures, len(results))
        return None if self._check_only else await self._arming.arm(self._plan())

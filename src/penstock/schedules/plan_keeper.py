# SPDX-License-Identifier: Apache-2.0
"""Keeps the units of a daemon's plan ticking while it runs, beside daemons that plan others.

A unit ticks as long as a living daemon plans it: a daemon that finds a unit of its plan retired
brings it back, and one that plans the same as all others that live retires what it does not plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import MICROSECONDS
from penstock.errors import StoreError
from penstock.model.schedule import CLOCKS_APART
from penstock.planning.units import DaemonPlan, plan_mark
from penstock.schedules.daemon_start import Arming, OtherDaemon
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.parts import WorkerParts

LOOK_SECONDS = 10.0  # between two looks for daemons that have come or gone

log = logging.getLogger("penstock.daemon")


class PlanKeeper(WorkerObserver):
    """Owns what one run knows of the other daemons of its app. Belongs to one loop."""

    def __init__(
        self, app: str, run_id: str, plan: Callable[[], DaemonPlan], parts: WorkerParts
    ) -> None:
        """Nobody was looked for yet; `plan` is this run's, its first ticks counted from now."""
        self._run_id = run_id
        self._plan = plan
        self._clock = parts.clock
        self._loop = parts.loop
        self._arming = Arming(app, parts.store, parts.clock, parts.ids.random, insists=False)
        self._known: frozenset[OtherDaemon] | None = None  # the others, when it last followed them
        self._next_monotonic = parts.clock.monotonic() + LOOK_SECONDS
        self._wall_ahead = self._ahead()
        self._is_looking = False

    def ticked(self, tick: Tick) -> None:
        is_due = self._clock.monotonic() >= self._next_monotonic
        if is_due and tick.is_registered and not (tick.is_stopping or self._is_looking):
            self._loop.spawn(self._look())

    async def _look(self) -> None:
        """Follow what has changed; a store that is unreachable is asked again later."""
        self._is_looking = True
        try:
            others = await self._arming.others(self._run_id)
            ahead = self._ahead()
            if ahead < self._wall_ahead - CLOCKS_APART / MICROSECONDS:
                await self._arming.arm_units(self._plan().schedules)  # it was set back
            self._wall_ahead = ahead
            if others != self._known:
                await self._follow(others)
                self._known = others
        except StoreError as error:
            log.debug("Nobody looked for other daemons: %s", error)
        finally:
            self._next_monotonic = self._clock.monotonic() + LOOK_SECONDS
            self._is_looking = False

    async def _follow(self, others: frozenset[OtherDaemon]) -> None:
        """Daemons have come or gone since the last look."""
        plan = self._plan()
        back = await self._arming.bring_back(plan)
        gone = 0
        if all(one.plan == plan_mark(plan) for one in others):
            gone = await self._arming.retire(plan)
        if back or gone:
            log.info(
                "Units of schedules: %d that another daemon had retired tick again, %d that no "
                "living daemon plans any more are retired.",
                back,
                gone,
            )

    def _ahead(self) -> float:
        """Seconds by which the clock on the wall is ahead of the one that is never set."""
        return self._clock.now() - self._clock.monotonic()

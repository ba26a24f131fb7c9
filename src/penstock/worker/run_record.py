# SPDX-License-Identifier: Apache-2.0
"""The record that a worker saves of its part of a run, with the capacity that it observed.

It saves as soon as it has a name, so that the run is known whatever becomes of it; then after a
second, two, four, eight, and every ten if anything is new; and at its end. So whoever is killed
takes little with it. A store that cannot take it hurts nobody: the next word has everything that
this one had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import islice

from penstock.clock import MICROSECONDS
from penstock.model.job import WorkerId
from penstock.model.lease import JobFailure
from penstock.model.run import (
    GATES_SHOWN,
    AsyncCapacityPlan,
    CapacityValue,
    LimitKind,
    ModelFigures,
    RunDocument,
    RunPart,
    missing,
)
from penstock.model.spending import BudgetStop
from penstock.model.worker import WorkerStatus
from penstock.worker.attempt import Attempt, AttemptEnd
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.status import StatusRow

GROUPS_KEPT = 1_000  # whose most is known; whoever comes beyond is not told
GROUPS_SHOWN = 20  # of a plan, those with most tasks first
MODELS_SHOWN = 50
NO_TABLES = "this version has no tables, so there are no row groups"
NO_PROVIDERS = "the app has no providers"
NOBODY_ASKED = "no request was sent"

_HERE = "this worker"


class CapacityRecord(WorkerObserver):
    """Owns the maxima of one worker. Belongs to one loop."""

    def __init__(self, core: WorkerCore, status: StatusRow) -> None:
        self._executor = core.executor
        self._status = status
        self._configured = dict(core.config.capacity)
        self._controller = core.window.scheduler.controller
        self._providers = providers = core.parts.providers
        for where, said in providers.declared().items() if providers is not None else ():
            aliases = CapacityValue({**said}, "code and settings; the least counts")
            self._configured[f"static_caps.{where}.aliases"] = aliases
        self._leases: dict[str, int] = {}  # by resource
        self._queued: dict[str, int] = {}  # by group
        self._running = 0
        self._seen: WorkerStatus | None = None

    def turned(self, goes_on: bool) -> None:
        """Only a turn can leave more held than before."""
        running = len(self._executor.running)
        if running > self._running:
            self._running = running
        leases = self._leases
        for resource, amount in self._controller.leased.items():
            if amount > leases.get(resource, 0):
                leases[resource] = amount

    def ticked(self, tick: Tick) -> None:
        """The worker looks at itself once a second; what it saw then counts."""
        status = self._status.looked
        if status is self._seen or status is None:
            return
        self._seen = status
        for name, group in status.groups.items():
            known = self._queued.get(name)
            if known is None and len(self._queued) >= GROUPS_KEPT:
                continue
            self._queued[name] = max(known or 0, group.waiting)

    def plan(self, models: Sequence[ModelFigures]) -> AsyncCapacityPlan:
        """The plan as it stands."""
        return AsyncCapacityPlan(self._configured, self._snapshot(models), self._maxima(models))

    def _snapshot(self, models: Sequence[ModelFigures]) -> dict[str, CapacityValue]:
        limits = self._controller.limits
        found = {
            "task_resource_limits": CapacityValue(
                {name: float(limit) for name, limit in limits.items()}, _HERE
            )
        }
        if self._providers is None:
            names = ("request_limits", "request_effective_max", "cooldown_seconds", "in_flight")
            return found | dict.fromkeys(names, missing(NO_PROVIDERS))
        cooling = self._providers.cooldowns()
        return found | {
            "request_limits": _by_model(models, lambda one: one.limit),
            "request_effective_max": _by_model(models, lambda one: one.limit_max),
            "cooldown_seconds": CapacityValue(cooling, _HERE),
            "in_flight": CapacityValue(self._providers.in_flight, _HERE),
        }

    def _maxima(self, models: Sequence[ModelFigures]) -> dict[str, CapacityValue]:
        groups = nlargest(GROUPS_SHOWN, self._queued.items(), key=lambda one: one[1])
        found = {
            "row_groups_in_flight": missing(NO_TABLES),
            "tasks_running": CapacityValue(self._running, _HERE),
            "task_leases": CapacityValue(
                {name: float(count) for name, count in self._leases.items()}, _HERE
            ),
            "queued_by_group": CapacityValue(
                {name: float(count) for name, count in groups if count}, f"{_HERE}, once a second"
            ),
        }
        if self._providers is None:
            names = ("request_waiters", "request_in_flight", "request_limits", "in_flight")
            return found | dict.fromkeys(names, missing(NO_PROVIDERS))
        return found | {
            "request_waiters": _by_model(models, lambda one: one.waiting_max),
            "request_in_flight": _by_model(models, lambda one: one.in_flight_max),
            "request_limits": _by_model(models, lambda one: one.limit_reached),
            "in_flight": CapacityValue(self._providers.in_flight_max, _HERE),
        }


def _by_model(
    models: Sequence[ModelFigures], value: Callable[[ModelFigures], int]
) -> CapacityValue:
    if not models:
        return missing(NOBODY_ASKED)
    shown = models[:MODELS_SHOWN]
    return CapacityValue({f"{one.provider}/{one.model}": float(value(one)) for one in shown}, _HERE)


FIRST_SECONDS = 1.0  # between the first two words of a worker that has something new to say
SAVE_SECONDS = 10.0  # the most between two; each time it is twice as long
END_SECONDS = 2.0  # for its last word

log = logging.getLogger("penstock.worker")


class RunRecord(WorkerObserver):
    """Owns what one worker tells of its run. Belongs to one loop."""

    def __init__(self, core: WorkerCore, capacity: CapacityRecord) -> None:
        self._core = core
        self._config = core.config
        self._clock = clock = core.parts.clock
        self._totals = core.totals
        self.capacity = capacity
        self._bottleneck = core.window.scheduler.bottleneck
        self._began_at = self._now()
        self._next_monotonic = clock.monotonic()
        self._pause_seconds = FIRST_SECONDS
        self._worker = WorkerId("")  # its name now
        #: A lost lease makes a worker somebody else; its part of the run goes on under one name.
        self._name = WorkerId("")
        self._is_saving = False
        self._said: object = None
        self._cpu_began = clock.cpu()
        self._late_seconds = 0.0  # of the loop
        self._stops: tuple[BudgetStop, ...] = ()  # the budgets that end it

    def ticked(self, tick: Tick) -> None:
        self._late_seconds += tick.late_seconds
        if self.is_due(tick.worker):
            self._core.parts.loop.spawn(self.save(tick.worker))

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        if type(end) is JobFailure:
            if end.refused_by is None:
                self._totals.retries += 1
            else:
                self._totals.put_back += 1

    def is_due(self, worker: WorkerId) -> bool:
        """It is time, and something was not saved yet."""
        now = self._clock.monotonic()
        if now < self._next_monotonic or self._is_saving or not worker:
            return False
        self._next_monotonic = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, SAVE_SECONDS)
        return self._news() != self._said

    async def save(self, worker: WorkerId, *, over: bool = False) -> None:
        """Write it down; whatever goes wrong is told, and hurts nobody."""
        self._name, self._worker = self._name or worker, worker or self._worker
        if not self._name:
            return  # it never was anybody
        self._is_saving = True
        try:
            news, document = self._news(), self.document(over=over)
            part = RunPart(self._config.run_id, self._name, document.told_at, document.encoded())
            await self._core.parts.store.save_run(part)
            self._said = news
        except Exception as error:
            log.debug("The record of this run was not saved: %r", error)
        finally:
            self._is_saving = False

    async def end(self, worker: WorkerId, stops: Sequence[BudgetStop]) -> None:
        """The worker ends: its last word, if the store takes it soon."""
        self._stops = tuple(stops)
        try:
            await asyncio.wait_for(self.save(worker, over=True), END_SECONDS)
        except TimeoutError:
            log.debug("The last word of this worker about its run was not waited for.")

    def document(self, *, over: bool = False) -> RunDocument:
        """Everything up to now."""
        core, totals, bottleneck = self._core, self._totals, self._bottleneck
        models = () if core.parts.providers is None else core.parts.providers.figures()
        held = core.window.scheduler.controller.held_leases()
        return RunDocument(
            began_at=self._began_at,
            told_at=self._now(),
            over=over,
            within_seconds=max(self._next_monotonic - self._clock.monotonic(), 0.0),
            worker=self._worker,
            place=self._config.place,
            solo=self._config.solo,
            stops=self._stops,
            causes=bottleneck.causes(),
            doing=bottleneck.doing(),
            ended=totals.ended,
            refused=totals.refused,
            retries=totals.retries,
            put_back=totals.put_back,
            cpu_seconds=self._clock.cpu() - self._cpu_began,
            late_seconds=self._late_seconds,
            slots={kind: core.config.slots[kind] for kind in core.slot_kinds.values()},
            models=models,
            gates=dict(islice(bottleneck.gates().items(), GATES_SHOWN)),
            used=bottleneck.used(held),
            capacity=self.capacity.plan(models),
        )

    def _news(self) -> object:
        """What must differ for another word to be worth a write; time alone does not."""
        charged = sum(c.seconds for c in self._bottleneck.causes() if c.kind is not LimitKind.IDLE)
        totals = self._totals
        return charged, totals.ended, totals.refused, totals.retries, totals.put_back

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)

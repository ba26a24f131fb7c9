# SPDX-License-Identifier: Apache-2.0
"""How much of everything was there at once, at most, and how much is there now?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest

from penstock.admission.tasks.controller import TaskAdmissionController
from penstock.model.capacity import AsyncCapacityPlan, CapacityValue, missing
from penstock.model.run import ModelFigures
from penstock.model.worker import WorkerStatus
from penstock.worker.provider_run import ProviderRun

GROUPS_KEPT = 1_000  # whose most is known; whoever comes beyond is not told
GROUPS_SHOWN = 20  # of a plan, those with most tasks first
MODELS_SHOWN = 50
NO_TABLES = "this version has no tables, so there are no row groups"
NO_PROVIDERS = "the app has no providers"
NOBODY_ASKED = "no request was sent"

_HERE = "this worker"


class CapacityWatch:
    """Owns the maxima of one worker. Belongs to one loop."""

    def __init__(
        self,
        configured: Mapping[str, CapacityValue],
        controller: TaskAdmissionController,
        providers: ProviderRun | None,
    ) -> None:
        self._configured = dict(configured)
        self._controller = controller
        self._providers = providers
        for where, said in providers.declared().items() if providers is not None else ():
            aliases = CapacityValue({**said}, "code and settings; the least counts")
            self._configured[f"static_caps.{where}.aliases"] = aliases
        self._leases: dict[str, int] = {}  # by resource
        self._queued: dict[str, int] = {}  # by group
        self._running = 0
        self._status: WorkerStatus | None = None

    def note_turn(self, running: int) -> None:
        """A turn has started what it could: only here can more be held than before."""
        if running > self._running:
            self._running = running
        leases = self._leases
        for resource, amount in self._controller.leased.items():
            if amount > leases.get(resource, 0):
                leases[resource] = amount

    def note_status(self, status: WorkerStatus | None) -> None:
        """A worker has looked at itself, as it does once a second."""
        if status is self._status or status is None:
            return
        self._status = status
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

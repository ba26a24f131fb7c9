# SPDX-License-Identifier: Apache-2.0
"""Task admission: a ledger of scheduler resources that grants and releases task leases."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Literal

import msgspec

from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionBlockSummary,
    TaskAdmissionDecision,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    TaskAdmissionView,
    Until,
)
from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    BoundedBorrowTaskAdmissionPolicyConfig,
    PolicyDecision,
    PolicyStateDelta,
    TaskAdmissionPolicy,
)
from penstock.admission.tasks.queue import CapacityChanges, QueueView
from penstock.errors import InternalError, UsageError
from penstock.model.lease import ReleaseReason, ReleaseResult
from penstock.model.task import SUBMISSION, SchedulableTask, SchedulerResourceRequest

SUBMISSION_CAPACITY = 1_024  # tasks at once, if nobody says otherwise

_RELEASED = ReleaseResult(True, ReleaseReason.RELEASED)


class TaskAdmissionConfig(msgspec.Struct, frozen=True):
    """Limits of scheduler resources. A resource that is not named has no limit."""

    submission_capacity: int = SUBMISSION_CAPACITY
    resource_limits: Mapping[str, int] = {}
    bounded_borrow: BoundedBorrowTaskAdmissionPolicyConfig | None = None

    def __post_init__(self) -> None:
        for resource, limit in {
            SUBMISSION: self.submission_capacity,
            **self.resource_limits,
        }.items():
            check_limit(resource, limit)


def check_limit(resource: str, limit: int) -> None:
    """Refuse what cannot be a limit; 0 lets nothing start."""
    if type(limit) is not int or limit < 0:
        raise UsageError(
            f"The limit of resource {resource!r} is a whole number of at least 0, got {limit!r}."
        )


class TaskAdmissionController:
    """Owns the ledger of scheduler resources and the task leases. Belongs to one loop."""

    def __init__(
        self,
        config: TaskAdmissionConfig | None = None,
        policy: TaskAdmissionPolicy | None = None,
        *,
        monotonic: Callable[[], float],
        generation: str = "1",
    ) -> None:
        config = config or TaskAdmissionConfig()
        self._policy = policy or BoundedBorrowTaskAdmissionPolicy(config.bounded_borrow)
        self._monotonic = monotonic
        self._generation = generation
        self._limits = {SUBMISSION: config.submission_capacity, **config.resource_limits}
        self._leased: dict[str, int] = {}
        self._held: dict[str, dict[str, int]] = {}  # group → resource → amount
        self._running: dict[str, int] = {}  # group → tasks
        self._debt: dict[tuple[str, str], int] = {}
        self._leases: dict[int, TaskAdmissionLease] = {}
        self._last_lease_id = 0  # each id is given once: what is not held was released
        self._is_shut = False
        self._freed: dict[int, SchedulerResourceRequest] = {}  # what was given back, by identity
        self._capacity_changes = CapacityChanges()
        self._gates_due: dict[Hashable, float] = {}  # monotonic
        # What was found for a task, while neither queue nor ledger have changed.
        self._ledger_version = 0
        self._found: tuple[SchedulableTask, int, int, PolicyDecision] | None = None

    def __repr__(self) -> str:
        return f"<TaskAdmissionController {len(self._leases)} leases, {self._leased}>"

    # ── Deciding ──────────────────────────────────────────────────────────────────────────────

    def is_eligible(
        self, item: SchedulableTask, queue_view: QueueView
    ) -> Literal[True] | TaskAdmissionDenied:
        """Return True if it would get a lease now, or the denial, which is false."""
        if self._is_shut:
            return TaskAdmissionDenied(item, DenialReason.SHUTDOWN, Until.NEVER)
        limits, leased = self._limits, self._leased
        for resource, amount in item.resource_request.needs:
            if resource in limits and leased.get(resource, 0) + amount > limits[resource]:
                return self._no_capacity(item, resource, amount)
        decision = self._policy.evaluate(item, queue_view, self)
        if decision.reason is not None:
            return self._denied(item, decision.reason, decision)
        self._found = (item, self._ledger_version, queue_view.version, decision)
        return True

    def try_acquire(self, item: SchedulableTask, queue_view: QueueView) -> TaskAdmissionDecision:
        """Return a lease for a task, or the denial."""
        found = self._found
        if (
            found is None
            or found[0] is not item
            or found[1] != self._ledger_version
            or found[2] != queue_view.version
        ):
            answer = self.is_eligible(item, queue_view)
            if isinstance(answer, TaskAdmissionDenied):
                return answer
            found = self._found
            if found is None:
                raise InternalError("A task was found eligible without a recorded decision.")
        self._last_lease_id = lease_id = self._last_lease_id + 1
        lease = TaskAdmissionLease(lease_id, item, self._monotonic(), self._generation)
        self._leases[lease_id] = lease
        self._take(item)
        delta = self._policy.on_acquire(lease, found[3])
        if delta.debt_changes:
            self._apply(delta)
        return lease

    def release(self, lease: TaskAdmissionLease) -> ReleaseResult:
        """Give a lease back; anything but the one lease that is held changes nothing."""
        if lease.controller_generation != self._generation:
            return _refused(
                ReleaseReason.WRONG_CONTROLLER_GENERATION,
                f"lease {lease.lease_id} is of controller {lease.controller_generation}",
            )
        held = self._leases.pop(lease.lease_id, None)
        if held is None:
            known = 0 < lease.lease_id <= self._last_lease_id
            reason = ReleaseReason.DUPLICATE if known else ReleaseReason.UNKNOWN_LEASE
            return _refused(reason, f"lease {lease.lease_id} is not held")
        if held is not lease and held.item.task_id != lease.item.task_id:
            self._leases[held.lease_id] = held
            return _refused(
                ReleaseReason.STALE_LEASE,
                f"lease {lease.lease_id} is held for task {held.item.task_id!r}",
            )
        item = held.item
        self._give(item)
        delta = self._policy.on_release(held, self)
        if delta.debt_changes:
            self._apply(delta)
        request = item.resource_request
        self._freed[id(request)] = request
        self._capacity_changes.groups.add(item.group.key)
        return _RELEASED

    def _no_capacity(
        self, item: SchedulableTask, resource: str, amount: int
    ) -> TaskAdmissionDenied:
        limit = self._limits[resource]
        return TaskAdmissionDenied(
            item,
            DenialReason.NO_CAPACITY,
            Until.CAPACITY if amount <= limit else Until.NEVER,
            resource,
            numbers={"limit": limit, "leased": self._leased.get(resource, 0), "asked": amount},
        )

    def _denied(
        self, item: SchedulableTask, reason: DenialReason, decision: PolicyDecision
    ) -> TaskAdmissionDenied:
        after = decision.available_after
        if after is not None and decision.until is Until.GATE:
            self._gates_due[item.request_resource_key] = self._monotonic() + after
        return TaskAdmissionDenied(
            item, reason, decision.until, decision.resource, after, decision.numbers
        )

    # ── What has changed ──────────────────────────────────────────────────────────────────────

    def take_changes(self) -> CapacityChanges | None:
        """Return what may let a denied task start now; None if nothing has changed."""
        changes = self._capacity_changes
        if self._gates_due:
            now = self._monotonic()
            for gate in [gate for gate, due in self._gates_due.items() if due <= now]:
                del self._gates_due[gate]
                changes.gates.add(gate)
        if self._freed:
            resources = changes.resources
            for request in self._freed.values():
                for resource, _ in request.needs:
                    resources.add(resource)
            self._freed.clear()
        elif not (changes.everything or changes.groups or changes.gates):
            return None
        self._ledger_version += 1
        self._capacity_changes = CapacityChanges()
        return changes

    def pressure_changed(self, gate: Hashable) -> None:
        """Reopen what waits for a provider's resource whose pressure has changed."""
        self._gates_due.pop(gate, None)
        self._capacity_changes.gates.add(gate)

    def set_limit(self, resource: str, limit: int | None) -> None:
        """Change a limit; what is held beyond it stays held until it is released."""
        if limit is None:
            self._limits.pop(resource, None)
        else:
            check_limit(resource, limit)
            self._limits[resource] = limit
        self._capacity_changes.everything = True
        self._ledger_version += 1

    def shut(self) -> None:
        """Grant no more leases."""
        self._is_shut = True
        self._ledger_version += 1

    # ── Reading ───────────────────────────────────────────────────────────────────────────────

    def limit(self, resource: str) -> int | None:
        return self._limits.get(resource)

    @property
    def limits(self) -> Mapping[str, int]:
        """The limit of each resource; live, to be read."""
        return self._limits

    @property
    def leased(self) -> Mapping[str, int]:
        """How much is held of each resource; live, to be read."""
        return self._leased

    def held(self, group: str, resource: str) -> int:
        held = self._held.get(group)
        return held.get(resource, 0) if held is not None else 0

    def running(self, group: str) -> int:
        return self._running.get(group, 0)

    def debt(self, group: str, resource: str) -> int:
        return self._debt.get((group, resource), 0) if self._debt else 0

    @property
    def has_debts(self) -> bool:
        return bool(self._debt)

    @property
    def leases(self) -> int:
        """The number of leases held."""
        return len(self._leases)

    def held_leases(self) -> tuple[TaskAdmissionLease, ...]:
        """Return all leases that are held, oldest first."""
        return tuple(self._leases.values())

    def view(self) -> TaskAdmissionView:
        """Return a copy of the ledger."""
        leased = dict(self._leased)
        return TaskAdmissionView(
            resource_limits=dict(self._limits),
            resources_available={
                resource: limit - leased.get(resource, 0)
                for resource, limit in self._limits.items()
            },
            leased_resources=leased,
            leased_resources_by_group={
                group: {resource: amount for resource, amount in held.items() if amount}
                for group, held in self._held.items()
            },
            running_counts_by_group=dict(self._running),
            policy_debt_by_group_resource=dict(self._debt),
        )

    def explain_blocked(self, queue_view: QueueView) -> TaskAdmissionBlockSummary:
        """Summarise why nothing that is queued can start."""
        counts: dict[DenialReason, int] = {}
        numbers: dict[str, Mapping[str, float]] = {}
        for line in queue_view.blocked():
            denied = line.denied
            counts[denied.reason] = counts.get(denied.reason, 0) + line.tasks
            gate = denied.item.request_resource_key
            name = denied.resource or (str(denied.reason) if gate is None else str(gate))
            numbers[name] = {**denied.numbers, "tasks": line.tasks, "groups": line.groups}
        due = min(self._gates_due.values(), default=None)
        return TaskAdmissionBlockSummary(
            queued_count=queue_view.queued_total,
            dominant_denial_reasons=dict(
                sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
            ),
            available_after=None if due is None else max(0.0, due - self._monotonic()),
            diagnostics=numbers,
        )

    # ── The ledger ─────────────────────────────────────────────────────────────────────────────

    def _take(self, item: SchedulableTask) -> None:
        """Add the needs of a task to the ledger."""
        self._ledger_version += 1
        key, leased = item.group.key, self._leased
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = {}
        for resource, amount in item.resource_request.needs:
            leased[resource] = leased.get(resource, 0) + amount
            held[resource] = held.get(resource, 0) + amount
        self._running[key] = self._running.get(key, 0) + 1

    def _give(self, item: SchedulableTask) -> None:
        """Subtract the needs of a task from the ledger."""
        self._ledger_version += 1
        key, leased = item.group.key, self._leased
        held = self._held.get(key, {})
        for resource, amount in item.resource_request.needs:
            in_all, own = leased.get(resource, 0) - amount, held.get(resource, 0) - amount
            if in_all < 0 or own < 0:
                raise _impossible(resource, min(in_all, own))
            held[resource] = own
            if in_all:
                leased[resource] = in_all
            else:
                del leased[resource]
        running = self._running.get(key, 0) - 1
        if running < 0:
            raise _impossible(key, running)
        if running:
            self._running[key] = running
        else:
            del self._running[key]
            del self._held[key]

    def _apply(self, delta: PolicyStateDelta) -> None:
        for group, resource, change in delta.debt_changes:
            debt = self._debt.pop((group, resource), 0) + change
            if debt < 0:
                raise _impossible(resource, debt)
            if debt:
                self._debt[group, resource] = debt


def _impossible(resource: str, count: int) -> InternalError:
    return InternalError(
        f"The count of resource {resource!r} would fall to {count}: something was released that "
        "was never taken."
    )


def _refused(reason: ReleaseReason, text: str) -> ReleaseResult:
    return ReleaseResult(False, reason, {"lease": text})

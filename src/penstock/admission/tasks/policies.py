# SPDX-License-Identifier: Apache-2.0
"""Task admission policies: strict fair shares, bounded borrowing, pressure of providers.

Shares by weight: these bound what a group holds at once; `queue.py` orders the groups, and
`stores/sql/lease.py` divides what is leased between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Literal, Protocol

import msgspec

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease, Until
from penstock.admission.tasks.queue import QueueView
from penstock.errors import UsageError
from penstock.model.provider import SeveralResources, gate_name
from penstock.model.request import PressureSnapshot, RequestPressure
from penstock.model.task import SchedulableTask, TaskGroupSpec
from penstock.model.views import Diagnostic


class Ledger(Protocol):
    """The counts of an admission controller, live and read only."""

    def limit(self, resource: str) -> int | None:
        """Return the limit of a resource; None: no limit."""
        ...

    def held(self, group: str, resource: str) -> int: ...

    def running(self, group: str) -> int:
        """Return how many tasks of a group run."""
        ...

    def debt(self, group: str, resource: str) -> int: ...

    @property
    def has_debts(self) -> bool:
        """True if any group owes anything."""
        ...


class PolicyDecision(msgspec.Struct, frozen=True):
    """The answer of a policy: a task may start, or why not and until when."""

    reason: DenialReason | None = None  # None: it may
    until: Until = Until.NEVER
    resource: str | None = None
    available_after: float | None = None  # seconds from now
    numbers: Mapping[str, float] = {}
    borrows: tuple[tuple[str, int], ...] = ()  # what it takes ahead of its group's share

    @property
    def allowed(self) -> bool:
        return self.reason is None


ALLOWED = PolicyDecision()


class PolicyStateDelta(msgspec.Struct, frozen=True):
    """What a start or an end changes in the debts of groups; the controller applies it."""

    debt_changes: tuple[tuple[str, str, int], ...] = ()  # group, resource, how much


NO_CHANGE = PolicyStateDelta()


class TaskAdmissionPolicy(Protocol):
    """A rule about who may start while there is capacity. Pure: it may be asked at any time."""

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision: ...

    def on_acquire(
        self, lease: TaskAdmissionLease, decision: PolicyDecision
    ) -> PolicyStateDelta: ...

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta: ...


class StrictFairTaskAdmissionPolicy:
    """A group over its admitted limit yields to peers that could use the same; a lone one never."""

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        group = item.group
        if group.admitted_limit is None:
            return ALLOWED
        running = admission_view.running(group.key)
        if running < group.admitted_limit:
            return ALLOWED
        for resource, _ in item.resource_request.contested:
            rivals = queue_view.rivals(group.key, resource)
            if rivals or queue_view.is_behind(group.key, resource):
                return PolicyDecision(
                    DenialReason.GROUP_CAP,
                    Until.PEERS,
                    resource,
                    numbers={
                        "running": running,
                        "admitted_limit": group.admitted_limit,
                        "rivals": rivals,
                    },
                )
        return ALLOWED

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        return NO_CHANGE

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        return NO_CHANGE


RESERVED_SLOTS_MAX = 8  # of a resource, held back from a lone group if a fraction is configured


class BoundedBorrowTaskAdmissionPolicyConfig(msgspec.Struct, frozen=True):
    """How far a lone group may run ahead. The default: to the end, but it yields at once."""

    borrow_ceiling_by_group_resource: Mapping[tuple[str, str], int] = {}
    default_borrow_ceiling: int | None = None  # None: all but the reserve
    dynamic_borrow_reserve_fraction: float = 0.0  # of a resource, kept for whoever may come
    dynamic_borrow_max_reserved_slots: int = RESERVED_SLOTS_MAX
    strict_share_rounding: Literal["ceil", "floor"] = "ceil"
    repay_on_withheld_peer_pressure: bool = True  # each end pays back; False: the last ones do

    def __post_init__(self) -> None:
        ceilings = [*self.borrow_ceiling_by_group_resource.values()]
        if self.default_borrow_ceiling is not None:
            ceilings.append(self.default_borrow_ceiling)
        if any(ceiling < 0 for ceiling in ceilings):
            raise UsageError(f"A borrow ceiling is at least 0, got {min(ceilings)}.")
        if not 0 <= self.dynamic_borrow_reserve_fraction <= 1:
            raise UsageError(
                "dynamic_borrow_reserve_fraction lies between 0 and 1, got "
                f"{self.dynamic_borrow_reserve_fraction}."
            )
        if self.dynamic_borrow_max_reserved_slots < 0:
            raise UsageError(
                "dynamic_borrow_max_reserved_slots is at least 0, got "
                f"{self.dynamic_borrow_max_reserved_slots}."
            )
        if self.strict_share_rounding not in ("ceil", "floor"):
            raise UsageError(
                f"strict_share_rounding is 'ceil' or 'floor', got {self.strict_share_rounding!r}."
            )


class BoundedBorrowTaskAdmissionPolicy:
    """Shares by weight; ahead of them only up to a ceiling, and only while nobody waits."""

    def __init__(self, config: BoundedBorrowTaskAdmissionPolicyConfig | None = None) -> None:
        self._config = config or BoundedBorrowTaskAdmissionPolicyConfig()
        self._rounded = math.ceil if self._config.strict_share_rounding == "ceil" else math.floor

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        group, key = item.group, item.group.key
        if not admission_view.running(key):
            return ALLOWED  # whoever holds nothing yet is not ahead of anybody
        borrows: tuple[tuple[str, int], ...] = ()
        for resource, amount in item.resource_request.contested:
            held = admission_view.held(key, resource)
            limit = admission_view.limit(resource) if held else None
            if limit is None:
                continue  # without a limit, and for whoever holds nothing yet, there is no share
            rivals, weight = queue_view.rivalry(group, resource)
            share = self._share(group, limit, rivals, weight)
            debt = admission_view.debt(key, resource)
            ahead = held + amount - share
            if ahead <= 0 and not debt:
                continue
            if rivals or queue_view.is_behind(key, resource):
                return PolicyDecision(
                    DenialReason.BORROW_DEBT if debt else DenialReason.GROUP_CAP,
                    Until.PEERS,
                    resource,
                    numbers=_numbers(held, share, debt, limit, rivals),
                )
            ceiling = self._ceiling(key, resource, limit, share)
            if ahead > ceiling:
                numbers = _numbers(held, share, debt, limit, rivals)
                return PolicyDecision(
                    DenialReason.BORROW_DEBT,
                    Until.OWN,
                    resource,
                    numbers={**numbers, "ceiling": ceiling},
                )
            if ahead > debt:
                borrows += ((resource, min(amount, ahead - debt)),)
        return PolicyDecision(borrows=borrows) if borrows else ALLOWED

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        if not decision.borrows:
            return NO_CHANGE
        key = lease.item.group.key
        return PolicyStateDelta(tuple((key, resource, n) for resource, n in decision.borrows))

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        if not admission_view.has_debts:
            return NO_CHANGE
        key = lease.item.group.key
        changes: tuple[tuple[str, str, int], ...] = ()
        for resource, amount in lease.item.resource_request.needs:
            debt = admission_view.debt(key, resource)
            if not debt:
                continue
            paid = min(debt, amount)
            if not self._config.repay_on_withheld_peer_pressure:
                paid = debt - min(debt, admission_view.held(key, resource))
            if paid:
                changes += ((key, resource, -paid),)
        return PolicyStateDelta(changes) if changes else NO_CHANGE

    def _share(self, group: TaskGroupSpec, limit: int, rivals: int, weight: int) -> int:
        if rivals:
            share = self._rounded(limit * group.weight / weight) or 1
        else:
            share = self._rounded(limit / 2) or 1  # there may be an equal peer soon
        cap = group.admitted_limit
        return share if cap is None or cap > share else cap

    def _ceiling(self, group: str, resource: str, limit: int, share: int) -> int:
        config = self._config
        ceiling = config.borrow_ceiling_by_group_resource.get((group, resource))
        if ceiling is None:
            ceiling = config.default_borrow_ceiling
        if ceiling is not None:
            return ceiling
        reserved = math.ceil(limit * config.dynamic_borrow_reserve_fraction)
        return max(0, limit - share - min(reserved, config.dynamic_borrow_max_reserved_slots))


def _numbers(held: int, share: int, debt: int, limit: int, rivals: int) -> dict[str, float]:
    return {"held": held, "share": share, "debt": debt, "limit": limit, "rivals": rivals}


PRESSURE_UNREADABLE = "pressure_unreadable"


class ProviderAwareTaskAdmissionPolicy:
    """Holds back tasks that would wait for their provider; the inner policy decides the rest.

    The provider is asked first, so that who waits for it keeps nobody from anything.
    """

    def __init__(
        self,
        inner: TaskAdmissionPolicy,
        pressure: RequestPressure,
        passes: Callable[[SchedulableTask], bool] | None = None,
    ) -> None:
        self._inner = inner
        self._pressure = pressure
        self._passes = passes  # whether one may start though its provider has no room
        self._is_reported = False
        self._diagnostics: tuple[Diagnostic, ...] = ()

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        key = item.request_resource_key
        if key is not None:
            snapshot = self._read(key)
            pressed = snapshot is not None and is_pressed(snapshot)
            if snapshot is not None and pressed and not (self._passes and self._passes(item)):
                return _denied(key, snapshot)
        return self._inner.evaluate(item, queue_view, admission_view)

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        return self._inner.on_acquire(lease, decision)

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        return self._inner.on_release(lease, admission_view)

    def take_diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return diagnostics that were not reported yet."""
        taken, self._diagnostics = self._diagnostics, ()
        return taken

    def _read(self, key: Hashable) -> PressureSnapshot | None:
        """Read the pressure, which is advice: if it cannot be read, nobody is held back."""
        try:
            return self._pressure.snapshot(key)
        except Exception as error:
            if not self._is_reported:
                self._is_reported = True
                self._diagnostics = (
                    Diagnostic(
                        PRESSURE_UNREADABLE,
                        str(key),
                        f"The pressure of {key!r} cannot be read ({type(error).__name__}), so "
                        "tasks start whether their providers have room or not.",
                    ),
                )
            return None


def is_pressed(snapshot: PressureSnapshot) -> bool:
    """Return whether one more request would only wait there."""
    return snapshot.cooldown_seconds > 0 or snapshot.waiters >= max(1, snapshot.limit)


def _denied(key: Hashable, snapshot: PressureSnapshot) -> PolicyDecision:
    """Return the denial; of several providers it names the one without room."""
    rest, where = snapshot.cooldown_seconds, snapshot.resource
    is_one_of = isinstance(key, SeveralResources) and where is not None
    return PolicyDecision(
        DenialReason.POLICY,
        Until.GATE,
        gate_name(where) if is_one_of else None,
        available_after=rest if rest > 0 else None,
        numbers={
            "limit": snapshot.limit,
            "in_flight": snapshot.in_flight,
            "waiters": snapshot.waiters,
            "cooldown_seconds": rest,
        },
    )

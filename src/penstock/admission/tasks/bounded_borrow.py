# SPDX-License-Identifier: Apache-2.0
"""May a group run ahead of its share, how far, and how does it give back?

The share of a group is its weight's part of a resource, among the groups that compete for it. A
group that is alone counts one imaginary equal peer: what it takes beyond that is its debt, paid
back by its own ends. While a peer waits, a group in debt or at its share stands back. So a slow
root cannot keep its children out for longer than it takes to end some of it, and nobody is held
back from what nobody else can use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease, Until
from penstock.admission.tasks.policies import (
    ALLOWED,
    NO_CHANGE,
    Ledger,
    PolicyDecision,
    PolicyStateDelta,
)
from penstock.admission.tasks.queue_view import QueueView
from penstock.errors import UsageError
from penstock.model.task import SchedulableTask, TaskGroupSpec

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
            if ahead > self._ceiling(key, resource, limit, share):
                return PolicyDecision(
                    DenialReason.BORROW_DEBT,
                    Until.OWN,
                    resource,
                    numbers=_numbers(held, share, debt, limit, rivals),
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
        if not admission_view.anybody_owes:
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

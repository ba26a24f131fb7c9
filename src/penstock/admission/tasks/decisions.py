# SPDX-License-Identifier: Apache-2.0
"""Decisions of task admission: leases, denials with a reason, views of the ledger.

Every decision is a value with a reason from a closed list and the numbers behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from penstock.model.task import SchedulableTask


class DenialReason(StrEnum):
    """Why a task may not start now."""

    NO_CAPACITY = "no_capacity"  # too little of a resource is left
    GROUP_CAP = "group_cap"  # its group has its share, and somebody else waits for theirs
    BORROW_DEBT = "borrow_debt"  # its group has run ahead, and must give back first
    SHUTDOWN = "shutdown"  # nothing starts any more
    POLICY = "policy"  # a rule of its own, such as the pressure on its provider


class Until(StrEnum):
    """What has to change before a denied task is tried again."""

    CAPACITY = "capacity"  # somebody frees the resource
    PEERS = "peers"  # nobody else wants the resource, or the group gives some of it back
    OWN = "own"  # the group gives some of it back
    GATE = "gate"  # the provider's resource opens
    NEVER = "never"  # nothing but a change of limits


class TaskAdmissionDenied(msgspec.Struct, frozen=True, gc=False):
    """A denial: why, and what has to change. It is false, as an answer to whether one may start."""

    item: SchedulableTask
    reason: DenialReason
    until: Until
    resource: str | None = None
    available_after: float | None = None  # seconds from now, if it is known
    numbers: Mapping[str, float] = {}
    snapshot: TaskAdmissionView | None = None

    def __bool__(self) -> bool:
        return False


class TaskAdmissionLease(msgspec.Struct, frozen=True, gc=False):
    """The right to hold resources while a task runs; released exactly once."""

    lease_id: int
    item: SchedulableTask
    acquired_at: float  # monotonic
    controller_generation: str

    @property
    def resources(self) -> Mapping[str, int]:
        return self.item.resource_request.amounts


TaskAdmissionDecision = TaskAdmissionLease | TaskAdmissionDenied


class TaskAdmissionView(msgspec.Struct, frozen=True):
    """A copy of the ledger."""

    resource_limits: Mapping[str, int]
    resources_available: Mapping[str, int]
    leased_resources: Mapping[str, int]
    leased_resources_by_group: Mapping[str, Mapping[str, int]]
    running_counts_by_group: Mapping[str, int]
    policy_debt_by_group_resource: Mapping[tuple[str, str], int]


class TaskAdmissionBlockSummary(msgspec.Struct, frozen=True):
    """Why nothing of what is queued can start."""

    queued_count: int
    dominant_denial_reasons: Mapping[DenialReason, int]  # queued tasks by reason, most first
    available_after: float | None = None  # seconds from now
    diagnostics: Mapping[str, Mapping[str, float]] = {}  # resource or gate → numbers

    @property
    def dominant(self) -> DenialReason | None:
        return next(iter(self.dominant_denial_reasons), None)

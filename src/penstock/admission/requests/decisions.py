# SPDX-License-Identifier: Apache-2.0
"""Decisions of request admission: leases, denials with a reason, and pending events."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from penstock.admission.requests.algorithm import LimitChange
from penstock.events.kinds import Correlation, RequestEventKind
from penstock.model.provider import RequestResourceKey
from penstock.model.request import RequestAdmissionItem

#: The event of each change that an outcome makes to a limit.
CHANGES = {
    LimitChange.DECREASED: RequestEventKind.REQUEST_LIMIT_DECREASED,
    LimitChange.INCREASED: RequestEventKind.REQUEST_LIMIT_INCREASED,
    LimitChange.SOFT_CEILING_RECOVERED: RequestEventKind.REQUEST_SOFT_CEILING_RECOVERED,
    LimitChange.FULLY_RECOVERED: RequestEventKind.REQUEST_FULLY_RECOVERED,
}


class Note(NamedTuple):
    """An event that has no number yet."""

    kind: RequestEventKind
    resource: RequestResourceKey
    context: Correlation | None = None  # None: of no job
    reason: str | None = None
    numbers: dict[str, float] | None = None
    lease_id: int | None = None


class RequestNotes:
    """Owns what is still to be told. Nothing is kept unless somebody listens."""

    __slots__ = ("is_on", "pending")

    def __init__(self) -> None:
        self.is_on = False
        self.pending: list[Note] = []

    def of_item(
        self,
        kind: RequestEventKind,
        item: RequestAdmissionItem,
        numbers: dict[str, float] | None = None,
        lease_id: int | None = None,
    ) -> None:
        if self.is_on:
            note = Note(kind, item.resource, item.event_context, None, numbers, lease_id)
            self.pending.append(note)

    def of_resource(
        self,
        kind: RequestEventKind,
        resource: RequestResourceKey,
        reason: str | None = None,
        numbers: dict[str, float] | None = None,
    ) -> None:
        if self.is_on:
            self.pending.append(Note(kind, resource, None, reason, numbers))

    def take(self) -> list[Note]:
        taken, self.pending = self.pending, []
        return taken


class RequestDenialReason(StrEnum):
    """Why a request may not leave now."""

    NO_CAPACITY = "no_capacity"  # a static cap or the adaptive limit is reached
    COOLDOWN = "cooldown"  # the provider asked for a pause, or is ill
    BUDGET = "budget"  # of requests or tokens per time
    QUEUED_WAITERS_AHEAD = "queued_waiters_ahead"
    QUEUE_TIMEOUT = "queue_timeout"
    CANCELLATION = "cancellation"  # whoever waited has given up
    SHUTDOWN = "shutdown"
    HARD_POLICY_DENIAL = "hard_policy_denial"  # waiting would not help


class RequestAdmissionLease(msgspec.Struct, frozen=True, gc=False):
    """The right to have one request in flight; released exactly once."""

    lease_id: int
    item: RequestAdmissionItem
    acquired_at: float  # monotonic
    current_adaptive_limit: int
    effective_max: int
    controller_generation: str


class RequestAdmissionDenied(msgspec.Struct, frozen=True, gc=False):
    """No, why, and when it is worth to ask again."""

    item: RequestAdmissionItem
    reason: RequestDenialReason
    retry_after_seconds: float | None = None  # None: after the next release
    available_at: float | None = None  # monotonic
    numbers: Mapping[str, float] = {}


RequestAdmissionDecision = RequestAdmissionLease | RequestAdmissionDenied

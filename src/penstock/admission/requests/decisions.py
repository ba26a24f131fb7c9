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


class PendingEvent(NamedTuple):
    """A request event that is not emitted yet."""

    kind: RequestEventKind
    resource: RequestResourceKey
    context: Correlation | None = None  # None: of no job
    reason: str | None = None
    numbers: dict[str, float] | None = None
    lease_id: int | None = None


class PendingEvents:
    """Owns the events that are still to be emitted. Nothing is kept unless somebody listens."""

    __slots__ = ("is_on", "pending")

    def __init__(self) -> None:
        self.is_on = False
        self.pending: list[PendingEvent] = []

    def add(
        self,
        kind: RequestEventKind,
        about: RequestAdmissionItem | RequestResourceKey,
        numbers: dict[str, float] | None = None,
        *,
        reason: str | None = None,
        lease_id: int | None = None,
    ) -> None:
        """Keep an event about a request, or about a resource and no job."""
        if self.is_on:
            if isinstance(about, RequestAdmissionItem):
                event = PendingEvent(
                    kind, about.resource, about.event_context, reason, numbers, lease_id
                )
            else:
                event = PendingEvent(kind, about, None, reason, numbers, lease_id)
            self.pending.append(event)

    def take(self) -> list[PendingEvent]:
        taken, self.pending = self.pending, []
        return taken


class RequestDenialReason(StrEnum):
    """Why a request may not leave now."""

    NO_CAPACITY = "no_capacity"  # a static cap or the adaptive limit is reached
    COOLDOWN = "cooldown"  # the provider asked for a pause, or is unhealthy
    BUDGET = "budget"  # of requests or tokens per time
    QUEUED_WAITERS_AHEAD = "queued_waiters_ahead"
    QUEUE_TIMEOUT = "queue_timeout"
    CANCELLATION = "cancellation"  # whoever waited has given up
    SHUTDOWN = "shutdown"
    ACCOUNT_CLOSED = "account_closed"  # its key is dead or its account empty
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
    """A denial: why, and when to ask again."""

    item: RequestAdmissionItem
    reason: RequestDenialReason
    retry_after_seconds: float | None = None  # None: after the next release
    available_at: float | None = None  # monotonic
    numbers: Mapping[str, float] = {}


RequestAdmissionDecision = RequestAdmissionLease | RequestAdmissionDenied

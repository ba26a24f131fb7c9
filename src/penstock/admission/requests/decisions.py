# SPDX-License-Identifier: Apache-2.0
"""What can the answers of request admission be?"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from penstock.model.request import RequestAdmissionItem


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

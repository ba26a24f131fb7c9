# SPDX-License-Identifier: Apache-2.0
"""What is one outbound request to admission, and how can it end?"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.errors import UsageError
from penstock.events.correlation import Correlation
from penstock.model.provider import RequestResourceKey


class RequestOutcome(StrEnum):
    """How an attempt ended. The last three are our own doing and never change a limit."""

    SUCCESS = "success"
    RATE_LIMITED = "rate_limited"  # 429, or 503 with Retry-After
    PROVIDER_FAILURE = "provider_failure"  # 5xx, a reset connection, an unreadable body
    PROVIDER_TIMEOUT = "provider_timeout"
    LOCAL_CANCELLED = "local_cancelled"
    LOCAL_TIMEOUT = "local_timeout"
    UNEXPECTED_EXCEPTION = "unexpected_exception"


#: Our own doing: they free capacity and change no limit.
LOCAL_OUTCOMES = frozenset(
    {
        RequestOutcome.LOCAL_CANCELLED,
        RequestOutcome.LOCAL_TIMEOUT,
        RequestOutcome.UNEXPECTED_EXCEPTION,
    }
)


class Quota(StrEnum):
    """What a provider counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


class QuotaReading(msgspec.Struct, frozen=True, gc=False):
    """What the headers of one reply say of one of the provider's buckets."""

    quota: Quota
    limit: float  # in one window
    remaining: float
    window_seconds: float  # of the limit
    reset_seconds: float  # until it is full again


class RequestReleaseOutcome(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended, with what its reply said."""

    outcome: RequestOutcome
    retry_after_seconds: float | None = None  # 0 to 15 min; None: nothing was said
    readings: tuple[QuotaReading, ...] = ()
    tokens_used: int | None = None  # as the reply counts them
    was_sent: bool = True  # False: it never left, so nobody has counted it
    is_error: bool = False  # its status is 400 or more: whoever counts costs counts nothing

    def tokens_of(self, reserved: float) -> float:
        """What was used of so many; without a count all of them, unless it was not served."""
        if self.tokens_used is not None:
            return float(self.tokens_used)
        is_unserved = not self.was_sent or self.outcome is RequestOutcome.RATE_LIMITED
        return 0.0 if is_unserved else reserved

    def tokens_served(self, estimate: int | None) -> int:
        """What its answer has used, for people; nothing was answered, so nothing was used."""
        if self.tokens_used is not None:
            return self.tokens_used
        is_served = self.outcome is RequestOutcome.SUCCESS and not self.is_error
        return (estimate or 0) if is_served else 0


class RequestGroupSpec(msgspec.Struct, frozen=True):
    """Requests that share a limit fairly with other groups: a domain, a tenant, a column."""

    key: str
    weight: int = 1

    def __post_init__(self) -> None:
        if type(self.weight) is not int or self.weight <= 0:
            raise UsageError(
                f"The weight of request group {self.key!r} is a whole positive number, got "
                f"{self.weight!r}."
            )


class RequestAdmissionItem(msgspec.Struct, frozen=True):
    """One attempt that wants to leave."""

    resource: RequestResourceKey
    group: RequestGroupSpec
    queue_wait_timeout_seconds: float | None = None  # None: as long as it takes
    tokens_estimate: int | None = None
    event_context: Correlation | None = None
    refusals: int = 0  # of this request by the provider so far: the first resend goes ahead

    def __post_init__(self) -> None:
        tokens, patience = self.tokens_estimate, self.queue_wait_timeout_seconds
        if tokens is not None and tokens < 0:
            raise UsageError(f"A request has an estimate of 0 tokens or more, got {tokens!r}.")
        if patience is not None and not patience >= 0:
            raise UsageError(f"A request waits for 0 s or longer, got {patience!r}.")

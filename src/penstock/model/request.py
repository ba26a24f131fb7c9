# SPDX-License-Identifier: Apache-2.0
"""One outbound request in request admission: its outcome, quota readings and pressure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from penstock.errors import UsageError
from penstock.events.kinds import Correlation
from penstock.model.provider import ProviderModelKey, RequestResourceKey


class RequestOutcome(StrEnum):
    """How an attempt ended. The last four never change a limit; three are our own doing."""

    SUCCESS = "success"
    RATE_LIMITED = "rate_limited"  # 429, or 503 with Retry-After
    PROVIDER_FAILURE = "provider_failure"  # 5xx, a reset connection, an unreadable body
    PROVIDER_TIMEOUT = "provider_timeout"
    ACCOUNT_CLOSED = "account_closed"  # a dead key, an empty account: not about this request
    LOCAL_CANCELLED = "local_cancelled"
    LOCAL_TIMEOUT = "local_timeout"
    UNEXPECTED_EXCEPTION = "unexpected_exception"


#: Outcomes that free capacity and change no limit: our own doing, or about the account.
LOCAL_OUTCOMES = frozenset(
    {
        RequestOutcome.ACCOUNT_CLOSED,
        RequestOutcome.LOCAL_CANCELLED,
        RequestOutcome.LOCAL_TIMEOUT,
        RequestOutcome.UNEXPECTED_EXCEPTION,
    }
)


_REFUSALS = frozenset({RequestOutcome.RATE_LIMITED, RequestOutcome.ACCOUNT_CLOSED})


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
    used_up_seconds: float = 0.0  # until then nothing is left of it; 0: something is, or it refills


class RequestReleaseOutcome(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended, with what its reply said."""

    outcome: RequestOutcome
    retry_after_seconds: float | None = None  # 0 to 24 h; None: nothing was said
    readings: tuple[QuotaReading, ...] = ()
    tokens_used: int | None = None  # as the reply counts them
    was_sent: bool = True  # False: it never left, so nobody has counted it
    is_error: bool = False  # its status is 400 or more: whoever counts costs counts nothing
    status: int = 0  # of a reply about the account
    said: str = ""  # what the provider wrote then, redacted
    doubt: str = ""  # why the wait is not the one that it asks for

    @property
    def pause_seconds(self) -> float:
        """For how long the provider asks to be left alone; 0: it does not."""
        is_refused = self.outcome is RequestOutcome.RATE_LIMITED
        told = self.retry_after_seconds if is_refused else None
        return max([told or 0.0, *(reading.used_up_seconds for reading in self.readings)])

    def tokens_of(self, reserved: float) -> float:
        """What was used of so many; without a count all of them, unless it was not served."""
        if self.tokens_used is not None:
            return float(self.tokens_used)
        is_unserved = not self.was_sent or self.outcome in _REFUSALS
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


class ReplyFacts(msgspec.Struct, frozen=True):
    """What a user's classifier sees of a reply."""

    status_code: int
    headers: Mapping[str, str]  # names in lower case
    body_start: bytes  # decoded; all of a short body, the first event of a stream


#: A user's opinion about a reply: what it was really ("success", "rate_limited",
#: "provider_failure", …); None leaves it to its status.
ReplyClassifier = Callable[[ReplyFacts], str | RequestReleaseOutcome | None]


class LeakCounters(msgspec.Struct, frozen=True, gc=False):
    """Releases that were refused, and errors of a limit's own code: zero if all is well."""

    duplicate: int = 0
    stale_lease: int = 0
    unknown_lease: int = 0
    wrong_controller_generation: int = 0
    algorithm_errors: int = 0


class PressureSnapshot(msgspec.Struct, frozen=True):
    """The load of one provider's resource at one moment."""

    limit: int  # requests that may be in flight
    in_flight: int = 0
    waiters: int = 0  # requests that wait for their turn
    cooldown_seconds: float = 0.0  # until anything is sent again
    resource: RequestResourceKey | None = None  # with `*`: over all domains, or all models
    captured_at: float = 0.0  # monotonic
    sequence: int = 0  # grows with every change of any resource
    effective_max: int = 0  # of the static caps, this process's part
    active_leases: int = 0  # as many as are in flight, or something has leaked
    blocked_until: float | None = None  # monotonic; None: it does not cool down
    ceiling: float | None = None  # where it was refused; None: never
    consecutive_refusals: int = 0
    last_outcome: RequestOutcome | None = None
    leaks: LeakCounters = LeakCounters()


class DeclaredCap(msgspec.Struct, frozen=True):
    """What one name said about how many requests may be in flight at once."""

    alias: str
    cap: int


class ProviderModelPressure(msgspec.Struct, frozen=True):
    """The load of what a provider limits as one thing, over all domains."""

    key: ProviderModelKey
    captured_at: float  # monotonic
    sequence: int
    algorithm: str
    effective_max: int
    limit: int
    in_flight: int
    active_leases: int
    waiters: int
    cooldown_seconds: float
    blocked_until: float | None
    ceiling: float | None
    consecutive_refusals: int
    model_cap: int | None  # as declared, of all processes
    provider_cap: int | None
    provider_in_flight: int
    aliases: tuple[DeclaredCap, ...]  # who contributed to the model's cap; it is their least
    domains: Mapping[str, PressureSnapshot]


class RequestPressure(Protocol):
    """What request admission lets others read; nobody changes anything through it."""

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """The load of a resource; None: nothing is known of it, so nothing speaks against it."""
        ...

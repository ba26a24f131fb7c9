# SPDX-License-Identifier: Apache-2.0
"""The rules of a simulated provider (hidden rate limits, latency, failures), requests, replies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import msgspec

from penstock.errors import UsageError

_DUST = 1e-9  # what rounding may take from a level


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One call as the provider sees it when it arrives."""

    number: int  # from 1, in the order of arrival
    at_seconds: float  # since the first call
    method: str
    path: str  # without the query
    query: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    in_flight: int  # other calls that are being served

    def json(self) -> Any:  # noqa: ANN401 (whatever a client sent)
        """The body as JSON; None if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class Ending(StrEnum):
    """What happens when all parts of a body are sent."""

    COMPLETE = "complete"
    RESET = "reset"  # the connection is reset, and more was promised
    HANG = "hang"  # nothing more comes, until the client leaves


class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of a body, and how long after the one before it comes."""

    data: bytes
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a call is answered."""

    #: None: the connection ends, or hangs, before any answer.
    status: int | None = field(default=200, kw_only=False)
    headers: tuple[tuple[str, str], ...] = ()
    parts: Iterable[Part] = ()  # may be endless
    wait_seconds: float = 0.0  # until the first byte
    ending: Ending = Ending.COMPLETE
    length: int | None = field(default=None)  # of the whole body; None: it comes in chunks
    tokens: int = 0  # that it used

    @classmethod
    def of(
        cls,
        content: bytes | Mapping[str, Any],
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        wait_seconds: float = 0.0,
        tokens: int = 0,
    ) -> Reply:
        """A body in one piece; a mapping becomes JSON."""
        if isinstance(content, bytes):
            data, kind = content, "application/octet-stream"
        else:
            data, kind = msgspec.json.encode(content), "application/json"
        typed = tuple(headers)
        if not any(name.lower() == "content-type" for name, _ in typed):
            typed = (("content-type", kind), *typed)
        return cls(
            status=status,
            headers=typed,
            parts=(Part(data),),
            wait_seconds=wait_seconds,
            length=len(data),
            tokens=tokens,
        )


def bytewise(parts: Iterable[Part], wait_seconds: float) -> Iterator[Part]:
    """The same body, one byte at a time."""
    for part in parts:
        for index in range(len(part.data)):
            yield Part(part.data[index : index + 1], wait_seconds)


def first_half(parts: Iterable[Part]) -> tuple[Part, ...]:
    """What is sent before a body breaks off."""
    whole = tuple(parts)
    if len(whole) == 1:
        return (Part(whole[0].data[: len(whole[0].data) // 2], whole[0].wait_seconds),)
    return whole[: len(whole) // 2]


#: How rate limits are told in the headers of every reply.
HeaderStyle = Literal["openai", "anthropic", "github", "ietf", "ietf_three"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """So many in a second, and a burst after a rest; a burst of 1 is strict spacing."""

    per_second: float
    burst: float = 1.0
    refusals_count: bool = False  # whether a refused call uses up quota as well

    def __post_init__(self) -> None:
        if not (self.per_second > 0 and self.burst > 0):
            raise UsageError(
                f"A bucket has a positive rate and a positive burst, got {self.per_second!r} and "
                f"{self.burst!r}."
            )

    @classmethod
    def per_minute(cls, count: float, burst: float | None = None) -> Bucket:
        """So many in a minute; without a burst all of them may come at once."""
        return cls(count / 60, count if burst is None else burst)


@dataclass(frozen=True, slots=True)
class Window:
    """So many in each window of fixed length."""

    limit: float
    seconds: float = 60.0
    refusals_count: bool = False

    def __post_init__(self) -> None:
        if not (self.limit > 0 and self.seconds > 0):
            raise UsageError(
                f"A window has a positive limit and length, got {self.limit!r} and "
                f"{self.seconds!r}."
            )


Rate = Bucket | Window


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Latencies as services have them: most near the median, some much longer."""

    median_seconds: float
    sigma: float = 0.5

    def draw(self, dice: random.Random) -> float:
        return self.median_seconds * math.exp(dice.gauss(0.0, self.sigma))


#: Seconds until a reply is complete: a constant, a distribution, or a function of the request.
Latency = float | Lognormal | Callable[[SimulatedRequest], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """Everything that a provider does not tell its clients."""

    concurrency: int | None = None  # calls at once; 0 refuses everything
    requests: Rate | None = None
    tokens: Rate | None = None

    retry_after: Literal["seconds", "date"] | None = "seconds"  # of a refusal; None: not told
    retry_after_seconds: float | None = None  # None: when a call may pass; of concurrency: 1
    retry_after_text: str | None = None  # told in place of a sensible value
    headers: HeaderStyle | None = None
    refusal_status: int = 429
    refusal_seconds: float = 0.01  # how long a refusal takes

    latency: Latency = 0.1
    completion_tokens_max: int = 64  # of a chat call that does not limit them itself

    failure_rate: float = 0.0  # part of the calls that are answered with `failure_status`
    failure_status: int = 503
    outages: tuple[tuple[float, float], ...] = ()  # from, to; every call fails meanwhile
    reset_rate: float = 0.0  # connections reset in the middle of a body
    hang_rate: float = 0.0  # bodies that never end
    slow_rate: float = 0.0  # bodies that come byte by byte
    slow_byte_seconds: float = 10.0
    lie_rate: float = 0.0  # status 200 with an error for a body

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 0:
            raise UsageError(f"A concurrency is not negative, got {self.concurrency!r}.")
        for name in ("failure_rate", "reset_rate", "hang_rate", "slow_rate", "lie_rate"):
            rate: Any = getattr(self, name)
            if not 0 <= rate <= 1:
                raise UsageError(f"{name} is a part between 0 and 1, got {rate!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From a moment, or from a call, on, other rules hold."""

    rules: ProviderRules
    after_seconds: float | None = None  # since the first call
    after_calls: int | None = None

    def __post_init__(self) -> None:
        if (self.after_seconds is None) == (self.after_calls is None):
            raise UsageError("A change comes either after_seconds or after_calls.")

    def due(self, seconds: float, calls: int) -> bool:
        if self.after_seconds is not None:
            return seconds >= self.after_seconds
        return self.after_calls is not None and calls >= self.after_calls


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A rate as headers tell it."""

    limit: float  # in one window
    remaining: float
    window_seconds: float
    reset_seconds: float  # until all of it is there again


class RateState(Protocol):
    """How far a rate is used. Knows no other limit."""

    def wait(self, now: float, cost: float) -> float:
        """Seconds until so much may pass; 0 is now."""
        ...

    def take(self, now: float, cost: float) -> None: ...

    def state(self, now: float) -> QuotaState: ...


class BucketState:
    """A level that refills with time."""

    def __init__(self, rate: Bucket, now: float) -> None:
        self.rate = rate
        self._level = rate.burst
        self._at = now

    def wait(self, now: float, cost: float) -> float:
        self._refill(now)
        # A call that is larger than the bucket passes when the bucket is full.
        missing = min(cost, self.rate.burst) - self._level
        return missing / self.rate.per_second if missing > _DUST else 0.0

    def take(self, now: float, cost: float) -> None:
        self._refill(now)
        self._level -= cost

    def state(self, now: float) -> QuotaState:
        self._refill(now)
        rate = self.rate
        return QuotaState(
            rate.burst,
            max(0.0, self._level),
            rate.burst / rate.per_second,
            (rate.burst - self._level) / rate.per_second,
        )

    def _refill(self, now: float) -> None:
        grown = self._level + (now - self._at) * self.rate.per_second
        self._level = min(self.rate.burst, grown)
        self._at = now


class WindowState:
    """A count that begins anew with every window."""

    def __init__(self, rate: Window, now: float) -> None:
        self.rate = rate
        self._began = now
        self._used = 0.0

    def wait(self, now: float, cost: float) -> float:
        self._roll(now)
        if self._used + min(cost, self.rate.limit) <= self.rate.limit + _DUST:
            return 0.0
        return self._began + self.rate.seconds - now

    def take(self, now: float, cost: float) -> None:
        self._roll(now)
        self._used += cost

    def state(self, now: float) -> QuotaState:
        self._roll(now)
        left = max(0.0, self.rate.limit - self._used)
        rest = self._began + self.rate.seconds - now
        return QuotaState(self.rate.limit, left, self.rate.seconds, rest)

    def _roll(self, now: float) -> None:
        passed = int((now - self._began) // self.rate.seconds)
        if passed > 0:
            self._began += passed * self.rate.seconds
            self._used = 0.0


def begin_rate(rate: Rate, now: float) -> RateState:
    """A rate of which nothing is used."""
    if isinstance(rate, Bucket):
        return BucketState(rate, now)
    return WindowState(rate, now)

# SPDX-License-Identifier: Apache-2.0
"""Rate limits of a provider: detected, learned, mirrored from its headers, and paced.

Whatever the provider limits (requests in flight, requests or tokens per second) is alike each time
it refuses; the others are not. So between refusals all three are measured, and the mode is the one
that moves least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log, sqrt
from typing import NamedTuple

import msgspec

from penstock.admission.requests.adaptive.window import hold_seconds
from penstock.admission.requests.algorithm import LimitMode
from penstock.model.request import Quota, QuotaReading

SAMPLE_MIN = 15  # accepted requests between two refusals, to measure a rate
SAMPLE_MIN_QUICK = 5  # while a rate is only suspected
SECONDS_MIN = 1.0
SMOOTHING = 0.4
MOVED = 0.2  # if all three have moved more, the limit itself has
ERROR_MAX = 0.4
LEAD = 0.03  # by which another must be better
SUSPICION = 5  # measurements for which a suspected rate is kept
IDLE_REFUSALS = 3  # closed ones with answers between
UNKNOWN = {LimitMode.CONCURRENCY: 0.0, LimitMode.REQUESTS: 0.12, LimitMode.TOKENS: 0.16}
SUSPECTED = {LimitMode.CONCURRENCY: 0.3, LimitMode.REQUESTS: 0.05, LimitMode.TOKENS: 0.16}


class Rates(NamedTuple):
    """The rates that were accepted between two refusals."""

    requests: float  # per second
    tokens: float  # per second
    seconds: float

    def of(self, mode: LimitMode) -> float:
        return self.tokens if mode is LimitMode.TOKENS else self.requests


class ModeDetector:
    """Owns the mode: which of the three quantities is alike at every refusal."""

    def __init__(self) -> None:
        self.mode = LimitMode.CONCURRENCY
        self._errors = dict(UNKNOWN)
        self._kept = 0  # measurements for which the mode stays what it is
        self._since: float | None = None  # the last refusal that was measured from
        self._requests = 0.0
        self._tokens = 0.0
        self._previous: Rates | None = None
        self._level = 0
        self._idle_refusals = 0  # closed ones with answers between
        self._answers_when_idle = 0

    def resume(self, mode: LimitMode) -> None:
        """Start with the mode of an earlier run."""
        self.mode = mode
        self._errors = dict(UNKNOWN) | {mode: 0.0}

    def sent(self, tokens: float) -> None:
        self._requests += 1.0
        self._tokens += tokens

    def not_accepted(self, tokens: float) -> None:
        """Take back a request that was refused."""
        self._requests -= 1.0
        self._tokens -= tokens

    def refused_when_idle(self, answers: int) -> bool:
        """Count a refusal with nothing in flight, after so many answers; True: it is a rate."""
        self._idle_refusals = self._idle_refusals + 1 if answers > self._answers_when_idle else 0
        self._answers_when_idle = answers
        return self._idle_refusals >= IDLE_REFUSALS

    def suspect_rate(self) -> None:
        """Take the limit for a rate for a while: it is refused with almost nothing in flight."""
        self.mode = LimitMode.REQUESTS
        self._idle_refusals = 0
        self._errors = dict(SUSPECTED)
        self._kept = SUSPICION

    def reject_rate(self) -> None:
        """Take the limit for concurrency again."""
        self.mode = LimitMode.CONCURRENCY
        self._errors = dict(UNKNOWN)
        self._kept = 0

    def refused(
        self, now: float, level: int, *, is_quick: bool = False, has_moved: bool = False
    ) -> Rates | None:
        """Count a refusal with so many in flight; return the rates since the one before, if any.

        `has_moved`: a limit that was sure until now is another, so there is nothing to compare.
        """
        if self._since is None:
            self._restart(now)
            return None
        seconds = now - self._since
        quick = is_quick or self._kept > 0
        least = SAMPLE_MIN_QUICK if quick else SAMPLE_MIN
        if self._requests < least or seconds <= SECONDS_MIN:
            return None
        # One that was refused may have been sent before, with more tokens than all since.
        tokens = max(self._tokens, self._requests)
        rates = Rates(self._requests / seconds, tokens / seconds, seconds)
        if self._previous is not None and not has_moved:
            self._compare(rates, self._previous, level, 1.0 / self._requests)
        self._previous = rates
        self._level = level
        self._restart(now)
        self._kept = max(0, self._kept - 1)
        if not self._kept:
            best = min(self._errors, key=self._errors.__getitem__)
            if self._errors[best] + LEAD < self._errors[self.mode]:
                self.mode = best
        return rates

    def _compare(self, rates: Rates, previous: Rates, level: int, noise: float) -> None:
        moved = {
            LimitMode.CONCURRENCY: max(0.0, abs(log(level / self._level)) - 1.0 / level),
            LimitMode.REQUESTS: max(0.0, abs(log(rates.requests / previous.requests)) - noise),
            LimitMode.TOKENS: max(0.0, abs(log(rates.tokens / previous.tokens)) - noise),
        }
        if min(moved.values()) >= MOVED:
            return
        for mode, by in moved.items():
            error = self._errors[mode]
            self._errors[mode] = error + SMOOTHING * (min(by, ERROR_MAX) - error)

    def _restart(self, now: float) -> None:
        self._since = now
        self._requests = self._tokens = 0.0


GAIN = 3.0  # × the rate that keeps a window full: how fast it is filled
GAIN_MIN = 1.2  # the same, where bursts seem to be what is refused
SMOOTHER = 0.7
EVEN_GAIN = 0.95  # the same, while another refusal would cost a long pause
CATCH_UP_SECONDS = 0.02  # a timer that was late by less does not slow the pace
FINEST_SECONDS = 1e-3  # a shorter gap is kept on average only: no timer is so fine
SLOW_SENDS = 2  # after a pause, a twentieth of the latency apart
SLOW_LATENCIES = 0.0505
PROBE_LATENCIES = 0.1  # the first one alone, if the pause before did not help


class Pacer:
    """Owns the earliest time of the next request, and how closely they follow."""

    __slots__ = ("_credit", "_slow_sends", "_was_in_vain", "gain", "next_at")

    def __init__(self) -> None:
        self.next_at = -inf
        self.gain = GAIN
        self._slow_sends = 0
        self._credit = 0.0  # by which the next one may be early
        self._was_in_vain = False

    def spread_out(self) -> None:
        """Let requests leave less close together."""
        self.gain = max(GAIN_MIN, SMOOTHER * self.gain)

    def allow_bursts(self) -> None:
        """Let requests leave closer together: it does not seem to matter."""
        self.gain = min(GAIN, self.gain / SMOOTHER)

    def start_slowly(self, *, was_in_vain: bool = False) -> None:
        """Let the first requests after the pause that begins leave slowly."""
        self._slow_sends = SLOW_SENDS
        self._was_in_vain = was_in_vain

    def sent(self, now: float, gap: float, latency: float, transit: float) -> None:
        """Count a request that leaves; the next may follow after so many seconds.

        `transit` is how long a refusal takes to come back.
        """
        if self._slow_sends:
            gap = max(gap, SLOW_LATENCIES * latency)
            if self._was_in_vain and self._slow_sends == SLOW_SENDS:
                gap = max(gap, min(latency, max(PROBE_LATENCIES * latency, 2.0 * transit)))
            self._slow_sends -= 1
        self._credit = FINEST_SECONDS if gap < FINEST_SECONDS else 0.0
        late = now - self.next_at
        self.next_at = (self.next_at if late < CATCH_UP_SECONDS else now) + gap

    def ready_at(self, now: float) -> float:
        """Return when the next request may leave: now, or later."""
        return now if self.next_at - now <= self._credit else self.next_at


FIRST_PER_SECOND = 1.0  # where the search begins, of requests
BACK_OFF = 0.96  # of the rate that was accepted between two refusals
BELOW = 0.99  # of it: where it stays between probes
SAME = 0.05  # measured rates that differ by no more agree
RECOVERY_SECONDS = 6.0
RECOVERY_NEW_SECONDS = 2.0
PROBE_STEP = 0.01  # of the rate, doubling
PROBE_SECONDS = 5.0  # to double the step
PROBE_NEW_SECONDS = 1.5
LONG_SECONDS = 6.0  # a rate measured over more is an average over paces that were too slow, too
LOG_MAX = 20.0
HOLD_SECONDS = 10.0
HOLD_NEW_SECONDS = 2.0
HOLD_NEW_REQUESTS = 15.0  # or so many, if that takes longer
WIDER = 1.5  # × what is in flight on average
TICK_MAX_SECONDS = 0.5  # of the search: what is not asked for proves nothing


class RateLimit:
    """Owns the rate at which requests or tokens leave. Does not know which of them it counts."""

    def __init__(self) -> None:
        self.per_second = inf
        self.ceiling = inf  # the rate that was accepted
        self.confidence = 0  # measurements in a row that agreed on it
        self.is_searching = False  # it doubles each second until it is refused
        self.age = 0.0  # seconds since the last refusal
        self._fallen_to = inf

    def search(self) -> None:
        """Start slowly and double: nothing is known."""
        self.per_second = FIRST_PER_SECOND
        self.ceiling = inf
        self.is_searching = True
        self.confidence = 0

    def resume(self, per_second: float) -> None:
        """Start at a rate of an earlier run."""
        self.ceiling = per_second
        self.per_second = self._fallen_to = BACK_OFF * per_second
        self.age = 0.0

    def forget(self) -> None:
        """Forget the ceiling: another quantity is counted from now on."""
        self.ceiling = inf
        self.confidence = 0
        self.is_searching = False

    def advance(self, seconds: float, hold: float, *, may_probe: bool) -> None:
        """Grow for so many seconds in which requests left."""
        if self.is_searching:
            self.per_second *= 2.0 ** min(seconds, TICK_MAX_SECONDS)
            return
        if self.age >= hold and not may_probe:
            return
        self.age += seconds
        top = BELOW * self.ceiling
        recovery = RECOVERY_SECONDS if self.confidence else RECOVERY_NEW_SECONDS
        if self.age < recovery:
            left = 1.0 - self.age / recovery
            rate = top - (top - self._fallen_to) * left * left * left
        elif self.age < hold:
            rate = top
        else:
            double = PROBE_SECONDS if self.confidence else PROBE_NEW_SECONDS
            rate = top * (1.0 + PROBE_STEP * 2.0 ** min((self.age - hold) / double, LOG_MAX))
        self.per_second = max(self.per_second, rate)

    def hold(self, unit: float, latency: float, least: float) -> float:
        """Return how long it is kept before a probe; a request has so many units."""
        if not self.confidence:
            return max(HOLD_NEW_SECONDS, HOLD_NEW_REQUESTS * unit / self.per_second)
        per_second = self.per_second / unit
        return max(HOLD_SECONDS, hold_seconds(per_second, 0.0, self.confidence, latency, least))

    def in_flight_needed(self, unit: float, latency: float) -> float:
        """Return how large a window must be that does not slow the rate down."""
        return 1.0 + WIDER * self.per_second / unit * latency

    def refused(self, measured: float, seconds: float) -> None:
        """Fall to what was accepted per second since the refusal before, so many seconds ago."""
        is_mean = self.is_searching or seconds >= LONG_SECONDS
        if is_mean and measured < self.per_second < inf:
            # The true rate lies between the mean and the pace at which it was refused.
            measured = sqrt(measured * min(self.per_second, 3.0 * measured))
        agrees = self.ceiling < inf and abs(measured / self.ceiling - 1.0) < SAME
        self.confidence = self.confidence + 1 if agrees else 0
        self._fall(BACK_OFF * measured, measured)

    def refused_early(self) -> None:
        """Fall by a factor: it was refused too soon after the last time to measure a rate."""
        if self.is_searching:
            self._fall(0.7 * self.per_second, 0.75 * self.per_second)
        else:
            self.confidence = 0
            self._fall(0.8 * self.per_second, 0.8 / 0.9 * self.per_second)

    def stay(self) -> None:
        """Keep the rate: it was refused again with nothing accepted between."""
        self.is_searching = False
        self.age = 0.0

    def _fall(self, per_second: float, ceiling: float) -> None:
        self.ceiling = ceiling
        self.per_second = self._fallen_to = per_second
        self.is_searching = False
        self.age = 0.0


SLOWER = 0.998  # × the refill that was announced
RESERVE = 0.03  # of a bucket, against errors of the estimates
RESERVE_OF_REQUEST = 0.4  # × its own tokens: their number is a guess
TRUST_IN_MORE = 0.5  # of a reading that is higher than ours; a lower one is taken wholly
WAIT_MIN_SECONDS = 0.005
WAIT_MAX_SECONDS = 86_400.0  # so long its headers are believed
DOUBTED_SECONDS = 900.0  # after the last request it is asked, if they say that it takes longer


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The buckets when a request left: the reply's reading is of that moment."""

    at: float
    requests: float  # sent by then, itself included
    tokens: float
    levels: Mapping[Quota, tuple[float, float]] | None  # what was left, and corrections by then


class _Mirror:
    """One bucket of the provider."""

    __slots__ = ("at", "corrected", "level", "rate", "size")

    def __init__(self, level: float, rate: float, size: float, now: float) -> None:
        self.level = level
        self.rate = rate
        self.size = size
        self.at = now
        self.corrected = 0.0

    def refill(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.at) * self.rate)
        self.at = now

    def needed(self, quota: Quota, amount: float) -> float:
        """Return the level that a request of so much needs."""
        guess = RESERVE_OF_REQUEST * amount if quota is Quota.TOKENS else 0.0
        return min(self.size, amount + max(RESERVE * self.size, guess))


class Mirrors:
    """Owns a copy of each bucket that replies report. Empty until one does."""

    __slots__ = ("_mirrors", "_requests", "_sent_at", "_tokens")

    def __init__(self) -> None:
        self._mirrors: dict[Quota, _Mirror] = {}
        self._requests = 0.0  # sent in all
        self._tokens = 0.0
        self._sent_at = -inf

    def __len__(self) -> int:
        return len(self._mirrors)

    def ready_at(self, now: float, tokens: float) -> float:
        """Return when there is enough for a request of so many tokens."""
        ready = now
        for quota, mirror in self._mirrors.items():
            mirror.refill(now)
            missing = mirror.needed(quota, _amount(quota, tokens)) - mirror.level
            if missing > 0:
                ready = max(ready, now + max(WAIT_MIN_SECONDS, missing / mirror.rate))
        if ready - self._sent_at > WAIT_MAX_SECONDS:
            return max(now, self._sent_at + DOUBTED_SECONDS)
        return ready

    def sent(self, now: float, tokens: float) -> Sent:
        """Take a request that leaves out of the buckets."""
        self._requests += 1.0
        self._tokens += tokens
        self._sent_at = now
        levels = None
        if self._mirrors:
            levels = {}
            for quota, mirror in self._mirrors.items():
                mirror.refill(now)
                mirror.level -= _amount(quota, tokens)
                levels[quota] = (mirror.level, mirror.corrected)
        return Sent(now, self._requests, self._tokens, levels)

    def read(self, now: float, sent: Sent, readings: Sequence[QuotaReading]) -> None:
        """Correct the buckets by a reply, which reports them as its request found them."""
        for reading in readings:
            if reading.limit < 1 or reading.remaining < 0 or reading.window_seconds <= 0:
                continue  # seen in the wild: -1 and 0
            quota = reading.quota
            rate = SLOWER * reading.limit / reading.window_seconds
            size = max(1.0, reading.remaining + max(0.0, reading.reset_seconds) * rate)
            size = min(size, max(reading.limit, reading.remaining, 1.0))
            mirror = self._mirrors.get(quota)
            if mirror is None:
                since = self._requests - sent.requests
                if quota is Quota.TOKENS:
                    since = self._tokens - sent.tokens
                level = reading.remaining + (now - sent.at) * rate - since
                self._mirrors[quota] = _Mirror(max(0.0, min(size, level)), rate, size, now)
                continue
            mirror.refill(now)
            mirror.rate, mirror.size = rate, size
            found = None if sent.levels is None else sent.levels.get(quota)
            if found is not None:
                level, corrected = found
                error = reading.remaining - (level + mirror.corrected - corrected)
                error = error if error < 0 else TRUST_IN_MORE * error
                mirror.level = min(size, mirror.level + error)
                mirror.corrected += error

    def explains_refusal(self, tokens: float) -> bool:
        """Return whether a bucket is so low that a refusal needs no other reason."""
        return any(
            mirror.level < 2 * _amount(quota, tokens) + RESERVE * mirror.size
            for quota, mirror in self._mirrors.items()
        )


def _amount(quota: Quota, tokens: float) -> float:
    return 1.0 if quota is Quota.REQUESTS else tokens

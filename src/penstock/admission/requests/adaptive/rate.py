# SPDX-License-Identifier: Apache-2.0
"""The learned rate limit, in requests or tokens per second, and the pacer between requests."""

from __future__ import annotations

from math import inf, sqrt

from penstock.admission.requests.adaptive.window import hold_seconds

GAIN = 3.0  # × the rate that keeps a window full: how fast it is filled
GAIN_MIN = 1.2  # the same, where bursts seem to be what is refused
SMOOTHER = 0.7
CALM = 0.95  # the same, while another refusal would cost a long pause
CATCH_UP_SECONDS = 0.02  # a timer that was late by less does not slow the pace
FINEST_SECONDS = 1e-3  # a shorter gap is kept on average only: no timer is so fine
CAREFUL_SENDS = 2  # after a pause, a twentieth of the latency apart
CAREFUL_LATENCIES = 0.0505
PROBE_LATENCIES = 0.1  # the first one alone, if the pause before was in vain


class Pacer:
    """Owns the earliest time of the next request, and how closely they follow."""

    __slots__ = ("_careful", "_credit", "_is_in_vain", "gain", "next_at")

    def __init__(self) -> None:
        self.next_at = -inf
        self.gain = GAIN
        self._careful = 0
        self._credit = 0.0  # by which the next one may be early
        self._is_in_vain = False

    def smooth(self) -> None:
        """Requests may have left too close together."""
        self.gain = max(GAIN_MIN, SMOOTHER * self.gain)

    def loosen(self) -> None:
        """How close they leave does not matter, it seems."""
        self.gain = min(GAIN, self.gain / SMOOTHER)

    def be_careful(self, *, is_in_vain: bool = False) -> None:
        """A pause begins: after it the first ones leave slowly."""
        self._careful = CAREFUL_SENDS
        self._is_in_vain = is_in_vain

    def sent(self, now: float, gap: float, latency: float, transit: float) -> None:
        """One leaves; the next after so many seconds at the earliest.

        `transit` is how long a refusal takes to come back.
        """
        if self._careful:
            gap = max(gap, CAREFUL_LATENCIES * latency)
            if self._is_in_vain and self._careful == CAREFUL_SENDS:
                gap = max(gap, min(latency, max(PROBE_LATENCIES * latency, 2.0 * transit)))
            self._careful -= 1
        self._credit = FINEST_SECONDS if gap < FINEST_SECONDS else 0.0
        late = now - self.next_at
        self.next_at = (self.next_at if late < CATCH_UP_SECONDS else now) + gap

    def ready_at(self, now: float) -> float:
        """When the next one may leave: now, or later."""
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

    __slots__ = (
        "_fallen_to",
        "age",
        "ceiling",
        "confidence",
        "is_searching",
        "per_second",
    )

    def __init__(self) -> None:
        self.per_second = inf
        self.ceiling = inf  # the rate that was accepted
        self.confidence = 0  # measurements in a row that agreed on it
        self.is_searching = False  # it doubles each second until it is refused
        self.age = 0.0  # seconds since the last refusal
        self._fallen_to = inf

    def search(self) -> None:
        """Nothing is known: begin slowly and double."""
        self.per_second = FIRST_PER_SECOND
        self.ceiling = inf
        self.is_searching = True
        self.confidence = 0

    def resume(self, per_second: float) -> None:
        """Begin at a rate of an earlier run."""
        self.ceiling = per_second
        self.per_second = self._fallen_to = BACK_OFF * per_second
        self.age = 0.0

    def forget(self) -> None:
        """Another quantity is counted from now on."""
        self.ceiling = inf
        self.confidence = 0
        self.is_searching = False

    def advance(self, seconds: float, hold: float, *, may_probe: bool) -> None:
        """So much time has passed in which requests left."""
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
        """How long it is kept before more is tried; a request has so many units."""
        if not self.confidence:
            return max(HOLD_NEW_SECONDS, HOLD_NEW_REQUESTS * unit / self.per_second)
        per_second = self.per_second / unit
        return max(HOLD_SECONDS, hold_seconds(per_second, 0.0, self.confidence, latency, least))

    def in_flight_needed(self, unit: float, latency: float) -> float:
        """How large a window must be that does not slow it down."""
        return 1.0 + WIDER * self.per_second / unit * latency

    def refused(self, measured: float, seconds: float) -> None:
        """So much per second was accepted since the refusal before, so many seconds ago."""
        is_mean = self.is_searching or seconds >= LONG_SECONDS
        if is_mean and measured < self.per_second < inf:
            # The true rate lies between the mean and the pace at which it was refused.
            measured = sqrt(measured * min(self.per_second, 3.0 * measured))
        agrees = self.ceiling < inf and abs(measured / self.ceiling - 1.0) < SAME
        self.confidence = self.confidence + 1 if agrees else 0
        self._fall(BACK_OFF * measured, measured)

    def refused_early(self) -> None:
        """It was refused too soon after the last time to measure anything."""
        if self.is_searching:
            self._fall(0.7 * self.per_second, 0.75 * self.per_second)
        else:
            self.confidence = 0
            self._fall(0.8 * self.per_second, 0.8 / 0.9 * self.per_second)

    def stay(self) -> None:
        """It was refused again with nothing accepted between: that is not its doing."""
        self.is_searching = False
        self.age = 0.0

    def _fall(self, per_second: float, ceiling: float) -> None:
        self.ceiling = ceiling
        self.per_second = self._fallen_to = per_second
        self.is_searching = False
        self.age = 0.0

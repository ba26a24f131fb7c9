# SPDX-License-Identifier: Apache-2.0
"""The concurrency window: how many requests may be in flight, found by probing.

The window starts small and doubles. Where it is refused is its ceiling: it falls a little below,
comes back as a cubic, stays for a while, and then probes beyond, slowly at first. It grows with
time, and only while it is used: what nobody asks for proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cbrt, ceil, exp2, floor, inf, log2

from penstock.admission.requests.algorithm import LimitChange

BUDGET = 0.01  # of throughput and of requests, for probing
HOLD_MIN_SECONDS = 4.0
HOLD_MAX_SECONDS = 80.0
HOLD_MAX_LATENCIES = 6.0  # or so long, if that is more
CONFIRMED = 3  # refusals in a row that agree: from here on the whole price is asked


def hold_seconds(
    per_second: float,
    cost_seconds: float,
    confidence: int,
    latency: float,
    least_seconds: float = 0.0,
) -> float:
    """Return the time from a refusal to the next probe, at so many requests per second."""
    most = max(HOLD_MAX_SECONDS, HOLD_MAX_LATENCIES * latency)
    price = max(cost_seconds, 1.0 / max(0.05, per_second)) / BUDGET
    part = 1.0 if confidence >= CONFIRMED else 2.0 ** (confidence - CONFIRMED)
    return max(HOLD_MIN_SECONDS, least_seconds, min(most, price * part))


STEP = 1.25  # growth that is worth an event


class LimitChanges:
    """Owns what events have reported of a window that moves all the time."""

    __slots__ = ("_is_reduced", "size")

    def __init__(self, size: int) -> None:
        self.size = size  # that was reported last
        self._is_reduced = False  # by a refusal, and not at the maximum since

    def refused(self) -> None:
        self._is_reduced = True

    def since_reported(
        self, size: int, most: int, ceiling: float, *, is_paused: bool
    ) -> Sequence[LimitChange]:
        """Return what has changed since it was last reported."""
        before = self.size
        if size < before:
            self.size = size
            return (LimitChange.DECREASED,)
        if size == before or (size < most and size < before * STEP):
            return ()
        self.size = size
        changes = [LimitChange.INCREASED]
        if before <= ceiling < size:
            changes.append(LimitChange.SOFT_CEILING_RECOVERED)
        if size >= most and self._is_reduced and not is_paused:
            self._is_reduced = False
            changes.append(LimitChange.FULLY_RECOVERED)
        return changes


START = 4  # in flight at first
START_LATENCIES = 0.75  # to double, above FREE
FREE = 32  # the start doubles each second up to here, before anything has ended
FREE_LATENCIES = 2.0  # or in so many, if that is less
USED_AT_START = 0.7  # part of the window in flight, without which the start does not double
USED = 0.5  # the same of the way back to the ceiling
USED_TO_PROBE = 0.9  # and of going beyond it
BACK_OFF = 0.9  # of the ceiling, after a refusal
SURE = 2  # refusals in a row that agree: nothing is given up any more
CONFIDENCE_MAX = 8
LEVELS = 5  # of refusals that agree, of which the lowest is the ceiling
NEAR = 0.97  # of the ceiling, in flight: a probe of our own
SAME = 0.05  # refusals that differ by no more agree
MARGIN_MAX = 0.05
RECOVERY_MAX_SECONDS = 6.0
PROBE_MOST = 1.5  # × what has been seen to work
PROBE_MOST_BY_LATENCY = 1.15  # × the ceiling, where growth shows as latency only
ROUNDING = 1e-9  # so little below a whole number is one
LOG_MAX = 12.0  # of one probe: it is bounded by PROBE_MOST long before


class Window:
    """Owns the size of the window and where it was refused. Does not know why it was.

    Invariants: 1 ≤ size ≤ most; a refusal never makes it larger; it does not grow while less than
    half of it is in flight.
    """

    def __init__(self, most: int) -> None:
        self._maximum = most
        self.size = float(min(START, most))
        self.is_starting = True
        self.ceiling = inf  # in flight when it was refused
        self.top = inf  # where it stays between probes
        self.confidence = 0  # refusals in a row that agreed on it
        self.distance = 0.0  # part of the ceiling that refusals have taught to leave free
        self.margin = 0.0  # the same, or what requests on their way may add, if that is more
        self._levels: list[float] = []  # where it was refused lately: no limit is above any
        self.fallen_to = self.size
        self.age = 0.0  # seconds since the last refusal in which the window was used
        self.hold = 0.0  # of these, before it is probed
        self.seen = 0  # the most in flight that has worked
        self.recent = 0  # in flight when the last one that worked was sent
        self.is_by_latency = False  # the ceiling comes from latency, not from a refusal
        self.start_seconds = 1.0  # to double, above FREE
        self._free_seconds = 1.0  # below it
        self._recovery_seconds = 1.0
        self._probe_seconds = 0.5

    def resume(self, ceiling: float, confidence: int, trust: float) -> None:
        """Start at a ceiling of an earlier run, the nearer to it the more it is trusted (0…1)."""
        self.is_starting = False
        self._find(min(max(1.0, ceiling), float(self._maximum)))
        self.confidence = floor(confidence * trust)
        start = BACK_OFF * self.ceiling * trust
        self.size = self.fallen_to = min(max(1.0, start, min(START, self.ceiling)), self.ceiling)
        self.seen = self.recent = floor(self.ceiling)
        self.age = 0.0

    def set_maximum(self, most: int) -> None:
        self._maximum = most
        self.size = min(self.size, float(most))
        self.fallen_to = min(self.fallen_to, self.size)

    def tune(self, latency: float, hold: float) -> None:
        """Set the pace of change by the latency and the hold before a probe."""
        self.start_seconds = max(1.0, START_LATENCIES * latency)
        self._free_seconds = min(1.0, FREE_LATENCIES * latency)
        recovery = max(1.0, min(RECOVERY_MAX_SECONDS, 1.5 * latency))
        if self.age <= self.hold:  # else it is probing already
            self.hold = max(hold, recovery, self.age)
        self._recovery_seconds = min(recovery, self.hold)
        self._probe_seconds = min(2.0, max(0.25, latency / 2))

    def worked(self, in_flight_before: int) -> None:
        """Count the success of a request that was sent with so many in flight."""
        self.recent = in_flight_before + 1
        if self.recent > self.seen:
            self.seen = self.recent

    # ── Growing ───────────────────────────────────────────────────────────────────────────────

    def advance(self, seconds: float, in_flight: int, *, may_probe: bool = True) -> None:
        """Grow for so many seconds with so many in flight."""
        if self.is_starting:
            if in_flight >= USED_AT_START * floor(self.size):
                size = self._started(seconds)
                self._raise(min(size, self._start_most(), in_flight / USED_AT_START + 1.0))
            return
        if self.age < self.hold:
            left = self.hold - self.age
            stop = in_flight / USED + 1.0  # there it is not used enough any more
            most = left if stop >= self.top else self._age_of(stop) - self.age
            if most <= 0.0:  # by its age it would be larger than it is used
                self._raise(min(self.top, self._at(self.age), stop))
                return
            self.age = self.hold if seconds >= left <= most else self.age + min(seconds, most)
            self._raise(min(self.top, self._at(self.age)))
            if self.age < self.hold:
                return
            seconds -= left
        if seconds > 0 and may_probe and in_flight >= USED_TO_PROBE * floor(self.size):
            stop = floor(in_flight / USED_TO_PROBE) + 1
            self.age = max(self.age, min(self.age + seconds, self._age_of(stop)))
            self._raise(self._at(self.age))

    def seconds_until(self, wanted: int, *, may_probe: bool = True) -> float:
        """Return the seconds until it is so large, if it stays full; inf: not by time alone."""
        if self.size >= wanted:
            return 0.0
        if wanted > self._maximum:
            return inf
        if self.is_starting:
            if self._start_most() < wanted:
                return inf
            if self.size < FREE < wanted:
                free = self._free_seconds * log2(FREE / self.size)
                return free + self.start_seconds * log2(wanted / FREE)
            double = self._free_seconds if self.size < FREE else self.start_seconds
            return double * log2(wanted / self.size)
        enough = wanted - ROUNDING  # the way back is flat: it is there much earlier
        if not may_probe and (enough > self.top or self.age >= self.hold):
            return inf
        return max(0.0, self._age_of(enough) - self.age)

    def widen(self, seconds: float, needed: float) -> None:
        """Grow after it was full for so long although a rate is the limit, which needs more."""
        self._raise(min(needed, self.size * exp2(min(9.0, seconds / self.start_seconds))))

    def seconds_to_widen(self, wanted: int, needed: float) -> float:
        """Return the seconds until `widen` makes it so large; inf: it does not."""
        if self.size >= wanted:
            return 0.0
        if wanted > min(needed, self._maximum):
            return inf
        return self.start_seconds * log2(wanted / self.size)

    def _started(self, seconds: float) -> float:
        """Return its size so much later, at the start."""
        size = self.size
        if size < FREE:
            free = self._free_seconds * log2(FREE / size)
            if seconds <= free:
                return size * exp2(seconds / self._free_seconds)
            size, seconds = float(FREE), seconds - free
        return size * exp2(min(9.0, seconds / self.start_seconds))

    def _start_most(self) -> float:
        return min(float(self._maximum), max(float(FREE), 2.0 * self.seen))

    def _probe_most(self) -> float:
        if self.is_by_latency:
            return 1.0 + PROBE_MOST_BY_LATENCY * self.top
        return 2.0 + PROBE_MOST * max(self.recent, self.top)

    def _at(self, age: float) -> float:
        """Return its size so long after a refusal."""
        top = self.top
        if age < self._recovery_seconds:
            left = 1.0 - age / self._recovery_seconds
            return top - (top - self.fallen_to) * left * left * left
        if age < self.hold:
            return top
        beyond = exp2(min((age - self.hold) / self._probe_seconds, LOG_MAX))
        return min(top + beyond, self._probe_most())

    def _age_of(self, size: float) -> float:
        """Return the age at which it has this size; inf: never."""
        top = self.top
        if size <= self.fallen_to:
            return 0.0
        if size <= top:
            left = cbrt((top - size) / (top - self.fallen_to))
            return (1.0 - left) * self._recovery_seconds
        if size > self._probe_most():
            return inf
        return self.hold + self._probe_seconds * max(0.0, log2(size - top))

    def _raise(self, size: float) -> None:
        self.size = max(self.size, min(size, float(self._maximum)))

    # ── Falling ───────────────────────────────────────────────────────────────────────────────

    def is_near(self, in_flight_before: int, *, is_costly: bool) -> bool:
        """True if it was refused at the ceiling, or at the top where a pause is costly."""
        if self.is_starting:
            return False
        near = NEAR * self.ceiling
        if is_costly:
            near = max(1.0, min(near, floor(self.top) - 1.0))
        return in_flight_before >= near

    def agrees(self, in_flight: int) -> bool:
        """Return whether a refusal with so many in flight confirms the ceiling."""
        known = self.ceiling
        if self.is_starting or known == inf:
            return False
        return abs(max(1, in_flight) - known) <= max(1.0, SAME * known)

    def refused(
        self,
        in_flight_before: int,
        transit: float,
        *,
        is_drained: bool = False,
        is_costly: bool = False,
    ) -> None:
        """Lower the window after a refusal (HTTP 429) of a request sent with so many in flight.

        `transit` is the part of a request's life in which it is on its way: it blurs the count.
        `is_drained`: a pause has just emptied the provider, so that the count is believed.
        `is_costly`: another refusal soon would cost more than being careful.
        """
        level = float(max(1, in_flight_before))
        agrees = self.agrees(in_flight_before)
        if agrees:  # refused early at a known ceiling: keep a little more away from it
            early = self.age < 0.9 * self.hold
            step = 0.01 if early else -0.0025
            self.distance = max(0.0, min(MARGIN_MAX, self.distance + step))
        self.margin = max(self.distance, min(MARGIN_MAX, 0.5 * transit))
        self.confidence = min(CONFIDENCE_MAX, self.confidence + 1) if agrees else 0
        if not self.is_starting and not is_drained:
            level = max(level, 0.5 * self.size)
        self.is_starting = False
        is_near = agrees and abs(level - self.ceiling) <= SAME * self.ceiling
        self._levels = [*self._levels, level][-LEVELS:] if is_near else [level]
        level = min(self._levels)
        self._find(level)
        is_sure = self.confidence >= SURE and not is_costly
        kept = level * (1.0 - self.distance if is_sure else BACK_OFF)
        self._fall(floor(kept + 0.5) if level > 5 else ceil(kept))

    def settle(self, confidence: int) -> None:
        """Take the present size for the ceiling."""
        self._find(self.size)
        self.fallen_to = self.size
        self.confidence = confidence
        self.is_starting = False
        self.age = 0.0

    def cut(self, size: float) -> None:
        """Fall to a size that was found by latency."""
        self._fall(size)
        self._find(self.size)
        self.confidence = 3
        self.is_starting = False
        self.is_by_latency = True

    def _find(self, ceiling: float) -> None:
        """Set the ceiling; no slot below it is given up for less than half of one."""
        self.ceiling = ceiling
        self.top = max(1.0, ceiling - floor(self.margin * ceiling + 0.5))

    def _fall(self, size: float) -> None:
        self.size = self.fallen_to = max(1.0, min(float(size), self.size))
        self.age = 0.0

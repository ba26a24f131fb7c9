# SPDX-License-Identifier: Apache-2.0
"""Overload detection by latency, for providers that queue requests instead of refusing them.

Requests that were sent one after the other form a cohort. If a cohort takes twice as long as the
best ones, a smaller window is tried: where throughput holds, the larger one only made a queue.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import NamedTuple

from penstock.admission.requests.adaptive.window import Window

SIZE_AT_START = 16
SIZE_MIN = 20
SIZE_MAX = 60
OPEN = 0.25  # part that may still be out when cohorts are compared
FORGET = 1.002  # the best mean rises so much with each cohort
TIMEOUTS = 0.2  # part of a cohort
AFTER_TIMEOUTS = 0.6  # × the window
SMALL = 4  # a window that is not made smaller
USED = 0.8  # part of the window in flight, without which it is not to blame
GROWN = 2.0  # × the best mean
GROWN_AT_START = 1.7
SMALLEST = 0.5  # × the window, in one step
AIM = 1.4  # × the best mean
SAMPLE = 60  # requests of one measurement
SAMPLE_LATENCIES = 4.0  # or so long


class Cohort:
    """Requests that were sent one after the other."""

    __slots__ = ("is_done", "is_full", "open", "seconds", "size", "timeouts")

    def __init__(self) -> None:
        self.open = 0
        self.size = 0
        self.seconds = 0.0
        self.timeouts = 0
        self.is_full = False
        self.is_done = False  # judged, or no longer of interest


class CohortReading(NamedTuple):
    """What the first three quarters of a cohort say."""

    mean_seconds: float
    timeouts: float  # part of it


class Cohorts:
    """Owns the cohorts of requests and the best mean latency."""

    __slots__ = ("_current", "_since", "best")

    def __init__(self) -> None:
        self._current = Cohort()
        self._since: set[Cohort] = {self._current}  # open ones, since the last restart
        self.best = inf  # mean seconds, slowly forgotten

    def join(self, size: int) -> Cohort:
        """Add a request to the current cohort, which is full at so many."""
        cohort = self._current
        cohort.open += 1
        cohort.size += 1
        if cohort.size >= size:
            cohort.is_full = True
            self._current = Cohort()
            self._since.add(self._current)
        return cohort

    def leave(self, cohort: Cohort) -> None:
        """Take out a request that says nothing about latency."""
        cohort.open -= 1
        cohort.size -= 1
        if cohort.is_full and cohort.open <= 0:
            self._since.discard(cohort)

    def ended(self, cohort: Cohort, seconds: float, *, timed_out: bool) -> CohortReading | None:
        """Count the end of a request; return its cohort's reading if three quarters ended."""
        cohort.open -= 1
        cohort.seconds += seconds
        cohort.timeouts += timed_out
        if cohort.is_done or not cohort.is_full or cohort.open > OPEN * cohort.size:
            return None
        cohort.is_done = True
        self._since.discard(cohort)
        ended = cohort.size - cohort.open
        return CohortReading(cohort.seconds / ended, cohort.timeouts / ended)

    def judged(self, mean_seconds: float) -> None:
        self.best = min(mean_seconds, self.best * FORGET)

    def restart(self) -> None:
        """Compare nothing that was sent until now."""
        for cohort in self._since:
            cohort.is_done = True
        self._current = Cohort()
        self._since = {self._current}


class Verdict(StrEnum):
    """The result of a trial."""

    SMALLER = "smaller"  # throughput holds
    RESTORE = "restore"  # it does not: requests simply take longer


class Trial:
    """Owns one comparison of the present window with a smaller one: throughput, then again."""

    __slots__ = ("_before", "_count", "_from", "_holds", "_seconds", "is_smaller", "size")

    def __init__(self, size: float, window: float, now: float) -> None:
        self.size = size  # of the smaller window
        self.is_smaller = False  # it is in force
        self._holds = (1.0 + size / window) / 2  # of the throughput: between queue and none
        self._before = 0.0  # per second, with the present one
        self._from: float | None = now  # measured from here; None: in flight has not settled
        self._count = 0
        self._seconds = 0.0  # of those counted

    @property
    def mean_seconds(self) -> float:
        """Of the requests that were counted with the smaller window; inf: there were none."""
        return self._seconds / self._count if self._count else inf

    def ended(
        self, now: float, in_flight: int, seconds: float, latency: float, *, is_success: bool
    ) -> Verdict | None:
        """Count the end of a request. `is_smaller` may change; a verdict ends the trial."""
        if self._from is None:
            if in_flight <= self.size + 1:
                self._from = now + latency
            return None
        if now < self._from:
            return None
        if is_success:
            self._count += 1
            self._seconds += seconds
        passed = now - self._from
        if self._count < SAMPLE and passed < SAMPLE_LATENCIES * latency:
            return None
        per_second = self._count / max(1e-3, passed)
        if self.is_smaller:
            holds = per_second >= self._holds * self._before
            return Verdict.SMALLER if holds else Verdict.RESTORE
        self._before = per_second
        self.is_smaller = True
        self._from = None
        self._count = 0
        self._seconds = 0.0
        return None


class LatencyWatch:
    """Owns the cohorts and the trial, and moves the window when they say so."""

    __slots__ = ("_cohorts", "_trial", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._cohorts = Cohorts()
        self._trial: Trial | None = None

    @property
    def may_probe(self) -> bool:
        """False during a trial, which a growing window would spoil."""
        return self._trial is None

    @property
    def limit(self) -> float:
        """What a trial leaves of the window; inf: all."""
        trial = self._trial
        return trial.size if trial is not None and trial.is_smaller else inf

    def sent(self) -> Cohort:
        window = self._window
        if window.is_starting:
            return self._cohorts.join(SIZE_AT_START)
        return self._cohorts.join(max(SIZE_MIN, min(SIZE_MAX, int(window.size))))

    def ignore(self, cohort: Cohort) -> None:
        """Take out a request that ended in a way that says nothing about latency."""
        self._cohorts.leave(cohort)

    def answered(
        self,
        now: float,
        cohort: Cohort,
        seconds: float,
        in_flight: int,
        latency: float,
        *,
        is_success: bool,
    ) -> bool:
        """Count a request that succeeded or timed out; True: a new epoch begins."""
        if self._trial is not None:
            return self._tried(self._trial, now, in_flight, seconds, latency, is_success)
        if self._window.is_starting and latency > GROWN_AT_START * self._cohorts.best:
            self._window.settle(2)
        reading = self._cohorts.ended(cohort, seconds, timed_out=not is_success)
        return reading is not None and self._judge(now, reading, in_flight)

    def _judge(self, now: float, reading: CohortReading, in_flight: int) -> bool:
        """Compare a cohort with the best."""
        window, cohorts = self._window, self._cohorts
        mean = reading.mean_seconds
        if window.is_starting and mean > GROWN_AT_START * cohorts.best:
            window.settle(2)
        cohorts.judged(mean)
        if reading.timeouts > TIMEOUTS:
            self._cut(AFTER_TIMEOUTS * window.size)
            return True
        size = window.size
        if mean > GROWN * cohorts.best and size > SMALL and in_flight >= USED * size:
            smaller = max(2.0, size * max(SMALLEST, AIM * cohorts.best / mean))
            self._trial = Trial(smaller, size, now)
        elif window.is_by_latency and size > 1.05 * window.ceiling:
            window.settle(1)  # a probe that latency has not objected to
        return False

    def _tried(
        self,
        trial: Trial,
        now: float,
        in_flight: int,
        seconds: float,
        latency: float,
        is_success: bool,
    ) -> bool:
        was_smaller = trial.is_smaller
        verdict = trial.ended(now, in_flight, seconds, latency, is_success=is_success)
        if verdict is None:
            return trial.is_smaller and not was_smaller
        self._trial = None
        if verdict is Verdict.SMALLER:
            self._cut(trial.size)
            return True
        self._cohorts.best = trial.mean_seconds  # they take so long by themselves
        self._cohorts.restart()
        return False

    def _cut(self, size: float) -> None:
        self._window.cut(size)
        self._cohorts.restart()

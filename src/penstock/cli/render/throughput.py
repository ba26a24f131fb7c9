# SPDX-License-Identifier: Apache-2.0
"""Measures the throughput of a run and estimates its time left.

A time left is given only while the run is steady: a rate that has just halved or doubled says
nothing about the next hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.job import TERMINAL, JobState
from penstock.terminal_text import format_duration

RATE_SECONDS = 10.0  # the rate is that of the last while
SAMPLE_SECONDS = 1.0  # between two samples that are kept
SAMPLES_MAX = 601
WINDOWS_SECONDS = (20.0, 60.0, 300.0, 600.0)  # the shortest with enough ends tells the time left
ENDS_WANTED = 20  # in a window
ENDS_MIN = 6  # in the longest; with fewer there is no estimate
STEADY_FACTOR = 2.0  # between the rates of the two halves of a window
STALL_ENDS = 5  # if so many were expected lately and there was none, the run stalls

_ENDS = tuple(state for state in JobState if state in TERMINAL)
_OWN_ENDS: tuple[JobState, ...] = tuple(state for state in _ENDS if state is not JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput of a run at one moment."""

    ended: dict[JobState, int]  # since the run began, by state and by whomever
    left: int
    elapsed_seconds: float
    rate: float  # ends per second, lately
    mean: float  # the same since the run began
    seconds_left: float | None  # None: no estimate

    @property
    def ended_count(self) -> int:
        return sum(self.ended.values())

    @property
    def ends(self) -> str:
        return _counted(self.ended)

    def summary(self, own: Mapping[JobState, int]) -> str:
        """The summary line of a run: its own ends, what they have skipped, and what is left.

        What was skipped because of others is counted as the store has it, as are cancelled jobs.
        """
        ended: dict[JobState, int] = {state: own.get(state, 0) for state in _OWN_ENDS}
        seconds = self.elapsed_seconds
        rate = sum(ended.values()) / seconds if seconds > 0 else 0.0
        ended[JobState.SKIPPED] = max(ended[JobState.SKIPPED], self.ended.get(JobState.SKIPPED, 0))
        if cancelled := self.ended.get(JobState.CANCELLED, 0):
            ended[JobState.CANCELLED] = cancelled
        left = f"; {self.left:,} left" if self.left else ""
        return f"{_counted(ended)} in {format_duration(seconds)} ({rate:,.1f}/s){left}"


def _counted(ended: Mapping[JobState, int]) -> str:
    return ", ".join(f"{count:,} {state.value}" for state, count in ended.items())


class ThroughputMeter:
    """Owns the samples of one run. Counts of ended jobs may fall (retry-failed, purge)."""

    def __init__(self, now: float) -> None:
        self._before: dict[JobState, int] | None = None  # at the first measurement
        self._samples: deque[tuple[float, int]] = deque([(now, 0)], maxlen=SAMPLES_MAX)
        self._began = now

    def measure(
        self,
        states: Mapping[JobState, int],
        now: float,
        *,
        paused: bool = False,
        all_due_in: float | None = None,
        own: Mapping[JobState, int] | None = None,
    ) -> Throughput:
        """Take a sample of the queue.

        Args:
            states: jobs by state.
            now: monotonic.
            paused: no further jobs start.
            all_due_in: everything that is left is delayed, by so many seconds at least.
            own: what this run has ended already, by state; counts at the first sample only.
        """
        if self._before is None:
            done = own or {}
            self._before = {state: count - done.get(state, 0) for state, count in states.items()}
        ended = {
            state: max(states.get(state, 0) - self._before.get(state, 0), 0) for state in _ENDS
        }
        count = sum(ended.values())
        left = sum(number for state, number in states.items() if state not in TERMINAL)
        if now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, count))
        elapsed = now - self._began
        steady = None if paused else self._steady_rate(now, count)
        return Throughput(
            ended,
            left,
            elapsed,
            self._rate(now - RATE_SECONDS, now, count),
            count / elapsed if elapsed > 0 else 0.0,
            None if steady is None else max(left / steady, all_due_in or 0.0),
        )

    def _steady_rate(self, now: float, count: int) -> float | None:
        """The rate for the estimate of the time left; None if the run is not steady."""
        elapsed = now - self._began
        if elapsed < RATE_SECONDS:
            return None
        windows = [seconds for seconds in WINDOWS_SECONDS if seconds < elapsed]
        if len(windows) < len(WINDOWS_SECONDS):
            windows.append(elapsed)
        enough = [w for w in windows if count - self._count_at(now - w) >= ENDS_WANTED]
        window = enough[0] if enough else windows[-1]
        start, middle = now - window, now - window / 2
        if count - self._count_at(start) < ENDS_MIN:
            return None
        rate = self._rate(start, now, count)
        halves = [self._rate(start, middle, self._count_at(middle)), self._rate(middle, now, count)]
        if min(halves) <= 0 or max(halves) > STEADY_FACTOR * min(halves):
            return None
        stalls = rate * RATE_SECONDS >= STALL_ENDS and count == self._count_at(now - RATE_SECONDS)
        return None if stalls else rate

    def _rate(self, start: float, end: float, count: int) -> float:
        start = max(start, self._began)
        ends = count - self._count_at(start)
        return ends / (end - start) if ends > 0 and end > start else 0.0

    def _count_at(self, moment: float) -> int:
        """How many had ended at a moment, interpolated between samples."""
        later_at, later = self._samples[-1]
        if moment >= later_at:
            return later
        for at, count in reversed(self._samples):
            if at <= moment:
                part = (moment - at) / (later_at - at) if later_at > at else 0.0
                return round(count + (later - count) * part)
            later_at, later = at, count
        return self._samples[0][1]

# SPDX-License-Identifier: Apache-2.0
"""How fast does a run go, and how long will it take?"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.cli.text import span
from penstock.model.job import TERMINAL, JobState

WINDOW_SECONDS = 15.0  # the rate is that of the last while
SAMPLES_MAX = 600

_ENDS = tuple(state for state in JobState if state in TERMINAL)
_OWN_ENDS: tuple[JobState, ...] = tuple(state for state in _ENDS if state is not JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class PaceView:
    """The run at one moment."""

    ended: dict[JobState, int]  # since the run began, by state and by whomever
    left: int
    elapsed_seconds: float
    rate: float  # ends per second, lately
    seconds_left: float | None  # None: nobody can tell

    @property
    def ended_count(self) -> int:
        return sum(self.ended.values())

    @property
    def ends(self) -> str:
        return _counted(self.ended)

    def summary(self, own: Mapping[JobState, int]) -> str:
        """The closing line of a run: what it did itself, and what is left for all."""
        ended: dict[JobState, int] = {state: own.get(state, 0) for state in _OWN_ENDS}
        seconds = self.elapsed_seconds
        rate = sum(ended.values()) / seconds if seconds > 0 else 0.0
        left = f"; {self.left:,} left" if self.left else ""
        return f"{_counted(ended)} in {span(seconds)} ({rate:,.1f}/s){left}"


def _counted(ended: Mapping[JobState, int]) -> str:
    return ", ".join(f"{count:,} {state.value}" for state, count in ended.items())


class Pace:
    """Owns the samples of one run. Counts of ended jobs may fall (retry-failed, purge)."""

    def __init__(self, now: float) -> None:
        self._before: dict[JobState, int] | None = None  # as the first look found it
        self._samples: deque[tuple[float, int]] = deque([(now, 0)], maxlen=SAMPLES_MAX)
        self._began = now

    def look(self, states: Mapping[JobState, int], now: float) -> PaceView:
        """Take in how the queue stands now."""
        if self._before is None:
            self._before = dict(states)
        ended = {
            state: max(states.get(state, 0) - self._before.get(state, 0), 0) for state in _ENDS
        }
        left = sum(count for state, count in states.items() if state not in TERMINAL)
        self._samples.append((now, sum(ended.values())))
        while len(self._samples) > 2 and self._samples[0][0] < now - WINDOW_SECONDS:
            self._samples.popleft()
        rate = self._rate()
        seconds_left = left / rate if rate > 0 else None
        return PaceView(ended, left, now - self._began, rate, seconds_left)

    def _rate(self) -> float:
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last > first and last_at > first_at else 0.0

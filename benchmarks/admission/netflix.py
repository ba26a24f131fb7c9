# SPDX-License-Identifier: Apache-2.0
"""How do the limits of Netflix's concurrency-limits behave as clients?

Written anew from their published behaviour, with the constants that they ship with.
"""

from __future__ import annotations

import math
from math import inf

from benchmarks.admission.client import Job
from benchmarks.admission.providers import FAILED, REFUSED, TIMED_OUT, Reply
from benchmarks.admission.simulation import Simulation

START = 20
WINDOW_SECONDS = 1.0
SAMPLE_MIN = 10


class NetflixLimit:
    """A limit on what is in flight, fed with windows of round-trip times."""

    holds_slot = False
    is_windowed = True

    def __init__(self, sim: Simulation, most: int) -> None:
        self.sim = sim
        self.most = most
        self.size = float(min(START, most))
        self.in_flight = 0
        self._next_at = 0.0
        self._count = 0
        self._sum = 0.0
        self._most_in_flight = 0
        self._dropped = False

    def ready_at(self, now: float, job: Job) -> float:
        return now if self.in_flight < int(self.size) else inf

    def sent(self, now: float, job: Job) -> None:
        self.in_flight += 1
        job.in_flight_before = self.in_flight

    def ended(self, now: float, job: Job, reply: Reply) -> None:
        self.in_flight -= 1
        if reply.outcome is FAILED:
            return  # it ignores those
        seconds = now - job.sent_at
        dropped = reply.outcome in (REFUSED, TIMED_OUT)
        if not self.is_windowed:
            self.update(seconds, job.in_flight_before, dropped=dropped)
            return
        self._count += 1
        self._sum += seconds
        self._most_in_flight = max(self._most_in_flight, job.in_flight_before)
        self._dropped |= dropped
        if now > self._next_at:
            self._next_at = now + WINDOW_SECONDS
            if self._count >= SAMPLE_MIN:
                mean = self._sum / self._count
                self.update(mean, self._most_in_flight, dropped=self._dropped)
            self._restart()

    def back_off(self, job: Job, reply: Reply) -> float:
        most = min(60.0, math.ldexp(1.0, min(job.attempts, 8)))
        return max(self.sim.rand.random() * most, reply.retry_after or 0.0)

    def limit(self, now: float) -> float:
        return self.size

    def update(self, seconds: float, in_flight: int, *, dropped: bool) -> None:
        raise NotImplementedError

    def _restart(self) -> None:
        self._count, self._sum, self._most_in_flight, self._dropped = 0, 0.0, 0, False


class Gradient2(NetflixLimit):
    """Compares the present round-trip time with a long average; does not look at drops."""

    def __init__(self, sim: Simulation, most: int) -> None:
        super().__init__(sim, most)
        self.long, self.samples, self.total = 0.0, 0, 0.0

    def update(self, seconds: float, in_flight: int, *, dropped: bool) -> None:
        if self.samples < 10:
            self.samples += 1
            self.total += seconds
            self.long = self.total / self.samples
        else:
            self.long += 2 / 601 * (seconds - self.long)
        if self.long / seconds > 2:
            self.long *= 0.95
        if in_flight < self.size / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * self.long / seconds))
        size = 0.8 * self.size + 0.2 * (self.size * gradient + 4)
        self.size = max(min(START, self.most), min(self.most, size))


class Vegas(NetflixLimit):
    """Estimates the queue from the best round-trip time."""

    def __init__(self, sim: Simulation, most: int) -> None:
        super().__init__(sim, most)
        self.best, self.probes, self.jitter = 0.0, 0, sim.rand.uniform(0.5, 1)

    def update(self, seconds: float, in_flight: int, *, dropped: bool) -> None:
        self.probes += 1
        if self.jitter * 30 * self.size <= self.probes:
            self.jitter, self.probes = self.sim.rand.uniform(0.5, 1), 0
            self.best = seconds
            return
        if self.best == 0 or seconds < self.best:
            self.best = seconds
            return
        step = max(1, int(math.log10(max(1, self.size))))
        queue = math.ceil(self.size * (1 - self.best / seconds))
        size = self.size
        if dropped:
            size -= step
        elif in_flight * 2 < self.size:
            return
        elif queue <= step:
            size += 6 * step
        elif queue < 3 * step:
            size += step
        elif queue > 6 * step:
            size -= step
        self.size = max(1, min(self.most, size))


class NetflixAimd(NetflixLimit):
    """×0.9 at a drop or after 5 s, +1 at each success of a used window; never below 20."""

    is_windowed = False

    def update(self, seconds: float, in_flight: int, *, dropped: bool) -> None:
        if dropped or seconds > 5:
            self.size = int(self.size * 0.9)
        elif in_flight * 2 >= self.size:
            self.size += 1
        self.size = max(min(START, self.most), min(self.most, self.size))

# SPDX-License-Identifier: Apache-2.0
"""How do other clients limit themselves: fixed concurrency, Data Designer, botocore?

Each is written anew from its published behaviour and runs with the constants that it ships with.
"""

from __future__ import annotations

import math
from math import inf

from benchmarks.admission.client import Job, failure_back_off
from benchmarks.admission.providers import OK, REFUSED, Reply
from benchmarks.admission.simulation import Simulation


class FixedConcurrency:
    """A semaphore, and random exponential back-off that keeps its slot."""

    holds_slot = True

    def __init__(self, sim: Simulation, most: int) -> None:
        self.sim = sim
        self.most = most
        self.held = 0

    def ready_at(self, now: float, job: Job) -> float:
        return now if job.attempts or self.held < self.most else inf

    def sent(self, now: float, job: Job) -> None:
        self.held += not job.attempts

    def ended(self, now: float, job: Job, reply: Reply) -> None:
        self.held -= reply.outcome is OK

    def back_off(self, job: Job, reply: Reply) -> float:
        return self.sim.rand.random() * min(60.0, math.ldexp(1.0, min(job.attempts, 8)))

    def limit(self, now: float) -> float:
        return self.most


class DesignerAimd:
    """Data Designer's controller: starts at the cap, ×0.75, +1 after 25 successes, 2 s pause."""

    holds_slot = False

    def __init__(self, sim: Simulation, most: int, ramp_seconds: float = 0.0) -> None:
        self.sim = sim
        self.most = most
        self.ramp_seconds = ramp_seconds
        self.is_ramping = ramp_seconds > 0
        self.size = 1 if self.is_ramping else most
        self.in_flight = 0
        self.blocked_until = -inf
        self.successes = 0

    def ready_at(self, now: float, job: Job) -> float:
        self._ramp(now)
        if now < self.blocked_until:
            return self.blocked_until
        if self.in_flight < self.size:
            return now
        return now + 0.05 if self.is_ramping else inf

    def sent(self, now: float, job: Job) -> None:
        self.in_flight += 1
        job.limit_before = self.size

    def ended(self, now: float, job: Job, reply: Reply) -> None:
        self.in_flight -= 1
        if reply.outcome is REFUSED:
            self.is_ramping = False
            self.successes = 0
            self.blocked_until = now + (reply.retry_after or 2.0)  # may be earlier than before
            if job.limit_before <= self.size:
                self.size = max(1, math.floor(0.75 * self.size))
        elif self.is_ramping:
            self._ramp(now)
        elif reply.outcome is OK and now >= self.blocked_until:
            self.successes += 1
            if self.successes >= 25:
                self.successes = 0
                self.size = min(self.most, self.size + 1)

    def back_off(self, job: Job, reply: Reply) -> float:
        return 0.0 if reply.outcome is REFUSED else failure_back_off(job, self.sim)

    def limit(self, now: float) -> float:
        return self.size

    def _ramp(self, now: float) -> None:
        if not self.is_ramping:
            return
        part = now / self.ramp_seconds
        if part >= 1:
            self.size, self.is_ramping = self.most, False
        else:
            self.size = 1 + math.floor((self.most - 1) * part)


class BotocoreAdaptive:
    """botocore's adaptive mode: a cubic on the sending rate, and exponential back-off."""

    holds_slot = False

    def __init__(self, sim: Simulation, most: int) -> None:
        self.sim = sim
        self.most = most
        self.in_flight = 0
        self.is_limited = False  # from the first refusal on
        self.rate, self.size, self.level, self.filled_at = 1.0, 1.0, 0.0, 0.0
        self.measured, self.bin, self.count = 0.0, 0.0, 0
        self.rate_at_refusal, self.refused_at, self.inflection = 0.0, 0.0, 0.0

    def ready_at(self, now: float, job: Job) -> float:
        if self.in_flight >= self.most:
            return inf
        if not self.is_limited:
            return now
        self._fill(now)
        return now if self.level >= 1 - 1e-9 else now + (1 - self.level) / self.rate

    def sent(self, now: float, job: Job) -> None:
        self.in_flight += 1
        if self.is_limited:
            self.level -= 1

    def ended(self, now: float, job: Job, reply: Reply) -> None:
        self.in_flight -= 1
        self._measure(now)
        if reply.outcome is REFUSED:
            rate = min(self.measured, self.rate) if self.is_limited else self.measured
            self.rate_at_refusal, self.refused_at = rate, now
            self.inflection = (rate * 0.3 / 0.4) ** (1 / 3)
            self.is_limited = True
            wanted = 0.7 * rate
        else:
            since = now - self.refused_at - self.inflection
            wanted = 0.4 * since**3 + self.rate_at_refusal
        self._fill(now)
        wanted = min(wanted, 2 * self.measured)
        self.rate, self.size = max(wanted, 0.5), max(wanted, 1.0)
        self.level = min(self.level, self.size)

    def back_off(self, job: Job, reply: Reply) -> float:
        most = min(20.0, math.ldexp(1.0, min(job.attempts - 1, 6)))
        return self.sim.rand.random() * most

    def limit(self, now: float) -> float:
        return self.in_flight

    def _measure(self, now: float) -> None:
        self.count += 1
        reached = math.floor(now * 2) / 2
        if reached > self.bin:
            self.measured = 0.8 * self.count / (reached - self.bin) + 0.2 * self.measured
            self.count, self.bin = 0, reached

    def _fill(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now

# SPDX-License-Identifier: Apache-2.0
"""Who sends: a process that always has work, and what is counted of it?"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

from benchmarks.admission.cases import Sizes
from benchmarks.admission.providers import OK, REFUSED, Call, Provider, Reply
from benchmarks.admission.simulation import Simulation

POOL = 512  # requests that a process has at once, in flight or in their own back-off
WAKE_MIN_SECONDS = 1e-3


@dataclass(slots=True, eq=False)
class Job:
    """One request, through all its attempts."""

    size: float  # true tokens
    estimate: float
    attempts: int = 0
    sent_at: float = 0.0
    in_flight_before: int = 0
    limit_before: int = 0


class Counts:
    """Owns what happened in each second."""

    def __init__(self) -> None:
        self.ok: dict[int, float] = defaultdict(float)  # in requests of mean size
        self.sent: dict[int, int] = defaultdict(int)
        self.refused: dict[int, int] = defaultdict(int)
        self.failed: dict[int, int] = defaultdict(int)
        self.limits: list[tuple[float, float]] = []  # time, limit


class Limiter(Protocol):
    """How a peer decides. It is asked again after each end, and at the time that it names."""

    holds_slot: bool  # a request in back-off keeps its slot

    def ready_at(self, now: float, job: Job) -> float:
        """Now or before: it may leave; inf: after an end."""
        ...

    def sent(self, now: float, job: Job) -> None: ...

    def ended(self, now: float, job: Job, reply: Reply) -> None: ...

    def back_off(self, job: Job, reply: Reply) -> float:
        """Seconds before a request is tried again."""
        ...

    def limit(self, now: float) -> float:
        """For the curve of it."""
        ...


class Client:
    """Owns jobs, attempts and counts; how it is limited is left to those below."""

    def __init__(self, sim: Simulation, provider: Provider, sizes: Sizes | None) -> None:
        self.sim = sim
        self.provider = provider
        self.sizes = sizes
        self.counts = Counts()
        sim.at(0.0, self.pump)
        sim.at(0.0, self._sample)

    def pump(self) -> None:
        raise NotImplementedError

    def limit(self) -> float:
        raise NotImplementedError

    def new_job(self) -> Job:
        if self.sizes is None:
            return Job(1.0, 1.0)
        return Job(*self.sizes.draw(self.sim.rand))

    def submit(self, job: Job, answer: Callable[[Reply], None]) -> None:
        """Send one attempt."""
        job.attempts += 1
        job.sent_at = self.sim.now
        self.counts.sent[int(self.sim.now)] += 1
        self.provider.send(Call(job.size, partial(self._answered, job, answer)))

    def _answered(self, job: Job, answer: Callable[[Reply], None], reply: Reply) -> None:
        second = int(self.sim.now)
        if reply.outcome is OK:
            self.counts.ok[second] += job.size / self.sizes.mean if self.sizes else 1.0
        elif reply.outcome is REFUSED:
            self.counts.refused[second] += 1
        else:
            self.counts.failed[second] += 1
        answer(reply)

    def _sample(self) -> None:
        self.counts.limits.append((self.sim.now, self.limit()))
        self.sim.after(0.5, self._sample)


class PeerClient(Client):
    """A process whose requests pass a limiter, first come first served."""

    def __init__(
        self,
        sim: Simulation,
        provider: Provider,
        sizes: Sizes | None,
        limiter: Limiter,
        most: int,
    ) -> None:
        super().__init__(sim, provider, sizes)
        self.limiter = limiter
        self.most = most
        self.ready: deque[Job] = deque()
        self.in_flight = 0
        self.napping = 0
        self.wake = inf

    def limit(self) -> float:
        return self.limiter.limit(self.sim.now)

    def pump(self) -> None:
        now = self.sim.now
        while self.in_flight < self.most:
            if not self.ready:
                if self.napping + self.in_flight >= POOL:
                    return
                self.ready.append(self.new_job())
            job = self.ready[0]
            ready = self.limiter.ready_at(now, job)
            if ready > now:
                self._wake_at(max(ready, now + WAKE_MIN_SECONDS))
                return
            self.ready.popleft()
            job.in_flight_before = self.in_flight
            self.limiter.sent(now, job)
            self.in_flight += 1
            self.submit(job, partial(self._ended, job))

    def _wake_at(self, time: float) -> None:
        if time < self.wake - 1e-9:
            self.wake = time
            self.sim.at(time, partial(self._woken, time))

    def _woken(self, time: float) -> None:
        if self.wake == time:
            self.wake = inf
        self.pump()

    def _ended(self, job: Job, reply: Reply) -> None:
        self.in_flight -= 1
        self.limiter.ended(self.sim.now, job, reply)
        if reply.outcome is not OK:
            seconds = self.limiter.back_off(job, reply)
            if seconds > 0:
                self.napping += 1
                self.sim.after(seconds, partial(self._back, job))
            else:
                self.ready.appendleft(job)
        self.pump()

    def _back(self, job: Job) -> None:
        self.napping -= 1
        self.ready.appendleft(job)
        self.pump()


def failure_back_off(job: Job, sim: Simulation) -> float:
    """Full jitter, as after any failure that is not a refusal."""
    most = min(30.0, 0.5 * math.ldexp(1.0, min(job.attempts - 1, 6)))
    return most * sim.rand.random()

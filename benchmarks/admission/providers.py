# SPDX-License-Identifier: Apache-2.0
"""How does a provider answer: the families P1 to P6, in simulated time?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from benchmarks.admission.simulation import Simulation
from penstock.model.request import Quota, QuotaReading, RequestOutcome

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client sees."""

    outcome: RequestOutcome
    retry_after: float | None = None
    readings: tuple[QuotaReading, ...] = ()


@dataclass(slots=True, eq=False)
class Call:
    """One request as it travels."""

    size: float  # true tokens
    answer: Callable[[Reply], None]
    sent_at: float = 0.0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Latency:
    """Lognormal service times."""

    median: float = 2.0
    sigma: float = 0.5
    network: float = 0.05  # seconds there and back

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, sim: Simulation) -> float:
        return self.median * math.exp(self.sigma * sim.rand.gauss(0, 1))


OK = RequestOutcome.SUCCESS
REFUSED = RequestOutcome.RATE_LIMITED
FAILED = RequestOutcome.PROVIDER_FAILURE
TIMED_OUT = RequestOutcome.PROVIDER_TIMEOUT


class Provider:
    """Accepts everything; the families refuse some."""

    def __init__(
        self, sim: Simulation, latency: Latency | None = None, retry_after: float | None = None
    ) -> None:
        self.sim = sim
        self.latency = latency or Latency()
        self.retry_after = retry_after
        self.in_flight = 0

    def send(self, call: Call) -> None:
        call.sent_at = self.sim.now
        self.sim.after(self.latency.network / 2, partial(self.arrive, call))

    def arrive(self, call: Call) -> None:
        refusal = self.refuse(call)
        readings = self.readings()
        if refusal is not None:
            self.reply(call, Reply(REFUSED, refusal.retry_after, readings))
        else:
            self.start(call, readings)

    def refuse(self, call: Call) -> Reply | None:
        """A refusal, or None if it is accepted."""
        return None

    def readings(self) -> tuple[QuotaReading, ...]:
        return ()

    def seconds(self) -> float:
        """Of one request."""
        return self.latency.draw(self.sim)

    def start(self, call: Call, readings: tuple[QuotaReading, ...]) -> None:
        self.in_flight += 1
        self.sim.after(self.seconds(), partial(self.finish, call, Reply(OK, None, readings)))

    def finish(self, call: Call, reply: Reply) -> None:
        self.in_flight -= 1
        self.reply(call, reply)

    def reply(self, call: Call, reply: Reply) -> None:
        self.sim.after(self.latency.network / 2, partial(call.answer, reply))


class Concurrent(Provider):
    """P1, P4: refuses above so many at once, which may change with time."""

    def __init__(
        self,
        sim: Simulation,
        limit: Callable[[float], float],
        latency: Latency | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(sim, latency, retry_after)
        self.limit = limit

    def refuse(self, call: Call) -> Reply | None:
        if self.in_flight < self.limit(self.sim.now):
            return None
        return Reply(REFUSED, self.retry_after)


class Shifting(Concurrent):
    """P5b: the same, but requests take longer by themselves from some time on."""

    def __init__(self, sim: Simulation, limit: int, at: float, factor: float) -> None:
        super().__init__(sim, lambda _: limit, retry_after=1.0)
        self.at = at
        self.factor = factor

    def seconds(self) -> float:
        return super().seconds() * (self.factor if self.sim.now >= self.at else 1.0)


class Tenants(Concurrent):
    """P4b: others take a part of the limit that walks at random."""

    STEP_SECONDS = 5.0

    def __init__(self, sim: Simulation, total: int) -> None:
        super().__init__(sim, lambda _: self.total - self.others, retry_after=1.0)
        self.total = total
        self.others = 0.2 * total
        self.slot_seconds = 0.0  # that were ours
        sim.at(0.0, self._walk)

    def _walk(self) -> None:
        others = self.others + self.sim.rand.gauss(0, 0.06 * self.total)
        self.others = min(0.6 * self.total, max(0.0, others))
        self.slot_seconds += (self.total - self.others) * self.STEP_SECONDS
        self.sim.after(self.STEP_SECONDS, self._walk)


class Noisy(Concurrent):
    """P6: a concurrency limit, some failures, and an outage."""

    FAIL_SECONDS = 0.3

    def __init__(
        self, sim: Simulation, limit: int, failing: float, outage: tuple[float, float]
    ) -> None:
        super().__init__(sim, lambda _: limit, retry_after=1.0)
        self.failing = failing
        self.outage = outage

    def start(self, call: Call, readings: tuple[QuotaReading, ...]) -> None:
        is_out = self.outage[0] <= self.sim.now < self.outage[1]
        if is_out or self.sim.rand.random() < self.failing:
            self.in_flight += 1
            self.sim.after(self.FAIL_SECONDS, partial(self.finish, call, Reply(FAILED)))
        else:
            super().start(call, readings)


class Bucket(Provider):
    """P2, P3: a token bucket of requests or tokens, with or without headers."""

    def __init__(
        self,
        sim: Simulation,
        rate: float,
        burst: float,
        *,
        latency: Latency | None = None,
        by_tokens: bool = False,
        tells: bool = False,  # rate-limit headers
        says_when: bool = True,  # Retry-After, in whole seconds
        refusal_cost: float = 0.0,
        most_at_once: float = inf,
    ) -> None:
        super().__init__(sim, latency)
        self.rate, self.burst = rate, burst
        self.by_tokens, self.tells, self.says_when = by_tokens, tells, says_when
        self.refusal_cost, self.most_at_once = refusal_cost, most_at_once
        self.level = burst
        self.filled_at = 0.0

    def refuse(self, call: Call) -> Reply | None:
        self._fill()
        cost = call.size if self.by_tokens else 1.0
        if self.level >= cost and self.in_flight < self.most_at_once:
            self.level -= cost
            return None
        self.level = max(0.0, self.level - self.refusal_cost)
        wait = max(1.0, math.ceil((cost - self.level) / self.rate)) if self.says_when else None
        return Reply(REFUSED, wait)

    def readings(self) -> tuple[QuotaReading, ...]:
        if not self.tells:
            return ()
        self._fill()
        quota = Quota.TOKENS if self.by_tokens else Quota.REQUESTS
        full_in = (self.burst - self.level) / self.rate
        return (QuotaReading(quota, self.rate * MINUTE, self.level, MINUTE, full_in),)

    def _fill(self) -> None:
        now = self.sim.now
        self.level = min(self.burst, self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now


class FixedWindow(Provider):
    """P2: so many in each minute, all at once if one likes."""

    def __init__(self, sim: Simulation, count: int, *, says_when: bool) -> None:
        super().__init__(sim)
        self.count, self.says_when = count, says_when
        self.window = -1
        self.used = 0

    def refuse(self, call: Call) -> Reply | None:
        window = int(self.sim.now // MINUTE)
        if window != self.window:
            self.window, self.used = window, 0
        if self.used < self.count:
            self.used += 1
            return None
        wait = math.ceil((window + 1) * MINUTE - self.sim.now) if self.says_when else None
        return Reply(REFUSED, wait)


class Congested(Provider):
    """P5: a server that shares its processor, thrashes far beyond its knee, and refuses nothing."""

    def __init__(self, sim: Simulation, knee: int, timeout: float) -> None:
        super().__init__(sim)
        self.knee, self.timeout = knee, timeout
        self.work = 0.0  # done for each request that is there
        self.worked_at = 0.0
        self.jobs: list[tuple[float, int, Call, Reply]] = []
        self.count = 0
        self.plan = 0  # of the next end: an older one is void

    def start(self, call: Call, readings: tuple[QuotaReading, ...]) -> None:
        self._work()
        self.in_flight += 1
        self.count += 1
        heappush(self.jobs, (self.work + self.seconds(), self.count, call, Reply(OK)))
        self.sim.at(call.sent_at + self.timeout, partial(self._time_out, call))
        self._plan()

    def _speed(self) -> float:
        count, knee = self.in_flight, self.knee
        if count <= knee:
            return 1.0
        if count > 2 * knee:
            return knee / (1 + 0.25 * (count / (2 * knee) - 1)) / count
        return knee / count

    def _work(self) -> None:
        self.work += (self.sim.now - self.worked_at) * self._speed()
        self.worked_at = self.sim.now

    def _plan(self) -> None:
        self.plan += 1
        if self.jobs:
            seconds = max(0.0, (self.jobs[0][0] - self.work) / self._speed())
            self.sim.after(seconds, partial(self._complete, self.plan))

    def _complete(self, plan: int) -> None:
        if plan != self.plan:
            return
        self._work()
        while self.jobs and self.jobs[0][0] <= self.work + 1e-9:
            _, _, call, reply = heappop(self.jobs)
            call.is_over = True
            self.finish(call, reply)
        self._plan()

    def _time_out(self, call: Call) -> None:
        if call.is_over:
            return
        self._work()
        call.is_over = True
        self.in_flight -= 1
        self.jobs = [job for job in self.jobs if job[2] is not call]
        heapify(self.jobs)
        self._plan()
        call.answer(Reply(TIMED_OUT))

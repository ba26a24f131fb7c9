# SPDX-License-Identifier: Apache-2.0
"""How does the controller that we ship decide, in simulated time?"""

from __future__ import annotations

from functools import partial
from math import inf

from benchmarks.admission.cases import Sizes
from benchmarks.admission.client import POOL, Client, Job, failure_back_off
from benchmarks.admission.providers import OK, REFUSED, Provider, Reply
from benchmarks.admission.simulation import Simulation
from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.aimd import Aimd
from penstock.admission.requests.algorithm import LearnedLimit, LimitAlgorithm
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.policy import ProviderPolicy, RequestCaps
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestGroupSpec, RequestReleaseOutcome

RESOURCE = RequestResourceKey("sim", "model", "chat")
GROUP = RequestGroupSpec("chat")
LATE_SECONDS = 1e-4  # of a timer


class OurClient(Client):
    """A process whose requests pass the real controller, which nobody polls."""

    def __init__(
        self,
        sim: Simulation,
        provider: Provider,
        sizes: Sizes | None,
        policy: ProviderPolicy,
        learned: LearnedLimit | None = None,
    ) -> None:
        super().__init__(sim, provider, sizes)
        self.policy = policy
        self.learned = learned
        self.controller = AdaptiveRequestAdmissionController([policy], self._algorithm)
        self.jobs: dict[int, Job] = {}  # of those who wait, by the identity of the waiter
        self.waiters: dict[int, RequestWaiter] = {}
        self.algorithm: LimitAlgorithm | None = None
        self.napping = 0
        self.wake = inf

    def _algorithm(
        self, policy: ProviderPolicy, key: ProviderModelKey, most: int, now: float
    ) -> LimitAlgorithm:
        if policy.algorithm == "aimd":
            self.algorithm = Aimd(policy.aimd, most, now)
        else:
            self.algorithm = Adaptive(most, now, self.sim.rand.random, self.learned)
        return self.algorithm

    def limit(self) -> float:
        if self.algorithm is None:
            return 0.0
        return self.algorithm.window(self.sim.now, self.controller.in_flight)

    def pump(self) -> None:
        now = self.sim.now
        while True:
            if not self.waiters and self.napping + self.controller.in_flight < POOL:
                self._enqueue(self.new_job())
            answered = self.controller.pump(now)
            if not answered:
                break
            for waiter in answered:
                self._granted(waiter)
        due = self.controller.next_due()
        wake = inf if due is None else max(due, now) + LATE_SECONDS
        if wake < self.wake:
            self.wake = wake
            self.sim.at(wake, partial(self._woken, wake))

    def _enqueue(self, job: Job) -> None:
        item = RequestAdmissionItem(RESOURCE, GROUP, tokens_estimate=max(1, round(job.estimate)))
        waiter = self.controller.enqueue(item, self.sim.now)
        self.jobs[id(waiter)] = job
        self.waiters[id(waiter)] = waiter

    def _granted(self, waiter: RequestWaiter) -> None:
        job = self.jobs.pop(id(waiter))
        del self.waiters[id(waiter)]
        if waiter.lease is None:
            raise RuntimeError(f"The controller denied a request: {waiter.denied}")
        self.submit(job, partial(self._ended, job, waiter.lease))

    def _woken(self, time: float) -> None:
        if self.wake == time:
            self.wake = inf
            self.pump()

    def _ended(self, job: Job, lease: RequestAdmissionLease, reply: Reply) -> None:
        outcome = RequestReleaseOutcome(reply.outcome, reply.retry_after, reply.readings)
        self.controller.release(lease, outcome, self.sim.now)
        if reply.outcome is REFUSED:
            self._nap(job, reply.retry_after or 0.0)
        elif reply.outcome is not OK:
            self._nap(job, failure_back_off(job, self.sim))
        self.pump()

    def _nap(self, job: Job, seconds: float) -> None:
        self.napping += 1
        self.sim.after(seconds, partial(self._back, job))

    def _back(self, job: Job) -> None:
        self.napping -= 1
        self._enqueue(job)
        self.pump()


def adaptive(most: int) -> ProviderPolicy:
    return ProviderPolicy("sim", RequestCaps(max_parallel=most))


def aimd(most: int) -> ProviderPolicy:
    return ProviderPolicy("sim", RequestCaps(max_parallel=most), algorithm="aimd")

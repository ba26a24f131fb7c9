# SPDX-License-Identifier: Apache-2.0
"""How is our request admission driven? As the executor does it, without a listener to events."""

from __future__ import annotations

import random

from benchmarks.peers.permits import Permits
from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.aimd import Aimd
from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.policy import ProviderPolicy, RequestCaps
from penstock.clock import SystemClock
from penstock.events.sink import RecentEvents, RequestEvents
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import (
    RequestAdmissionItem,
    RequestGroupSpec,
    RequestOutcome,
    RequestReleaseOutcome,
)
from penstock.requests.admission import RequestAdmissionController

PACKAGE = "penstock"

SUCCESS = RequestReleaseOutcome(RequestOutcome.SUCCESS)
RESOURCE = RequestResourceKey("provider", "model", "chat")


def open_permits(cap: int, algorithm: str) -> Permits:
    """A controller with one resource, its last events kept in memory as in a worker."""
    clock = SystemClock()
    chance = random.Random(1).random

    def make(
        policy: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
    ) -> LimitAlgorithm:
        if policy.algorithm == "aimd":
            return Aimd(policy.aimd, effective_max, now)
        return Adaptive(effective_max, now, chance)

    policy = ProviderPolicy(
        "provider",
        models={"model": RequestCaps(cap)},
        algorithm=algorithm,  # type: ignore[arg-type]
    )
    admission = RequestAdmissionController(
        AdaptiveRequestAdmissionController([policy], make),
        clock,
        RequestEvents(clock, (RecentEvents(),)),
    )
    group = RequestGroupSpec("chat")
    return Permits(
        lambda: admission.acquire_async(RequestAdmissionItem(RESOURCE, group)),
        lambda lease: admission.release(lease, SUCCESS),
    )

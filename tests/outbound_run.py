# SPDX-License-Identifier: Apache-2.0
"""A run's clients without a run: admission, executor and clients on the loop of a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from penstock.admission.requests.aimd import Aimd
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.requests.policy import AimdConfig, ProviderPolicy, RequestCaps
from penstock.clock import Clock, SystemClock
from penstock.events.kinds import RequestEvent
from penstock.events.sink import RequestEvents
from penstock.model.lease import ReleaseResult
from penstock.model.provider import RequestResourceKey
from penstock.model.request import ReplyClassifier, RequestOutcome, RequestReleaseOutcome
from penstock.requests.admission import RequestAdmissionController
from penstock.requests.clients.httpx import ProviderRules
from penstock.requests.clients.provider_clients import MakeTransport, ProviderClients
from penstock.requests.credentials import Credentials
from penstock.requests.exchange import ReplyLimits
from penstock.requests.executor import ModelRequestExecutor, RequestFacts
from penstock.requests.journal.replay import PaidCalls
from penstock.requests.redirects import Redirects

PROVIDER = "acme"


class RecordingAdmission(RequestAdmissionController):
    """Remembers every release."""

    def __init__(
        self,
        core: AdaptiveRequestAdmissionController,
        clock: Clock,
        events: RequestEvents | None = None,
    ) -> None:
        super().__init__(core, clock, events)
        self.leases: list[RequestAdmissionLease] = []
        self.endings: list[RequestReleaseOutcome] = []

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome
    ) -> ReleaseResult:
        result = super().release(lease, outcome)
        assert result.released, "a lease was released twice"
        self.leases.append(lease)
        self.endings.append(outcome)
        return result

    @property
    def outcomes(self) -> list[RequestOutcome]:
        return [ending.outcome for ending in self.endings]

    @property
    def held(self) -> int:
        return self.core.in_flight


class Run:
    """What a test needs of a run."""

    def __init__(self, admission: RecordingAdmission, clients: ProviderClients, url: str) -> None:
        self.admission = admission
        self.clients = clients
        self.url = url


@contextlib.asynccontextmanager
async def outbound_run(
    base_url: str = "",
    *,
    max_parallel: int | None = None,
    limits: ReplyLimits | None = None,
    classifier: ReplyClassifier | None = None,
    clock: Clock | None = None,
    make_transport: MakeTransport | None = None,
    cooldown_seconds: float = 0.05,
    tpm: float | None = None,
    paid: PaidCalls | None = None,
    sink: Callable[[RequestEvent], None] | None = None,
    redirects: Redirects | None = None,
    credentials: Credentials | None = None,
) -> AsyncIterator[Run]:
    """Clients of one provider, whose limit follows `aimd` with a short cool-down."""
    clock = clock or SystemClock()
    config = AimdConfig(cooldown_seconds=cooldown_seconds)
    caps = RequestCaps(max_parallel=max_parallel, tpm=tpm)
    policy = ProviderPolicy(PROVIDER, caps=caps, algorithm="aimd", aimd=config)
    core = AdaptiveRequestAdmissionController(
        [policy], lambda policy, key, most, now: Aimd(policy.aimd, most, now)
    )
    events = None if sink is None else RequestEvents(clock, [sink])
    admission = RecordingAdmission(core, clock, events)
    executor = ModelRequestExecutor(admission, resolve, clock, limits=limits, classifier=classifier)
    clients = ProviderClients(
        PROVIDER,
        executor,
        base_url=base_url,
        make_transport=make_transport,
        paid=paid,
        rules=ProviderRules(
            redirects or Redirects(PROVIDER), credentials or Credentials(base_url or None)
        ),
    )
    try:
        yield Run(admission, clients, base_url)
    finally:
        await clients.aclose()
        admission.shut()


def resolve(facts: RequestFacts) -> RequestResourceKey:
    model = facts.fields.model if isinstance(facts.fields.model, str) else facts.host or PROVIDER
    domain = "chat" if facts.fields.model else "http"
    return RequestResourceKey(PROVIDER, model, domain)

# SPDX-License-Identifier: Apache-2.0
"""The providers of one worker: admission of their requests, their clients, and learned limits.

A worker admits the requests on its loop, binds the clients to the definitions when it begins, and
takes both back when it ends, on every path. Learned limits come from the store and go back there.
What is kept speaks of the whole provider: a process that has a part of every cap multiplies what
it found before it writes it down, and divides what it reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.aimd import Aimd
from penstock.admission.requests.algorithm import (
    LearnedLimit,
    LimitAlgorithm,
    LimitMode,
    read_learned,
)
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.listeners import ModelCounts, RequestCounts
from penstock.admission.requests.policy import DEFAULT_MAX, ProcessShare, ProviderPolicy
from penstock.admission.requests.resolver import DeclaredProvider, RequestResourceResolver
from penstock.admission.tasks.policies import is_pressed
from penstock.clock import MICROSECONDS, Clock
from penstock.definitions.provider import Provider
from penstock.errors import StoreError
from penstock.events.sink import RequestEvents
from penstock.model.provider import (
    ClosedAccount,
    ProviderModelKey,
    RequestResourceKey,
    SeveralResources,
)
from penstock.model.request import ProviderModelPressure
from penstock.model.run import ModelFigures
from penstock.model.spending import Budget
from penstock.model.worker import PROVIDERS_SHOWN, ProviderUse
from penstock.redaction.secrets import redacted
from penstock.requests.admission import RequestAdmissionController
from penstock.requests.attempt_context import AttemptContext
from penstock.requests.clients.httpx import ProviderRules
from penstock.requests.clients.provider_clients import MakeTransport, ProviderClients
from penstock.requests.credentials import Credentials
from penstock.requests.exchange import ReplyLimits
from penstock.requests.executor import ModelRequestExecutor, RequestFacts
from penstock.requests.host_check import HostCheck
from penstock.requests.journal.attempt_calls import AttemptCalls
from penstock.requests.journal.paid_policy import PaidPolicy
from penstock.requests.journal.replay import PaidCalls
from penstock.requests.journal.writer import JournalWriter
from penstock.requests.redirects import SAME_ORIGIN, Redirects
from penstock.stores.protocol import CooldownStore, JournalStore, LearnedLimitStore
from penstock.stores.retry import StoreRetry
from penstock.worker.attempt import Attempt
from penstock.worker.cooldowns import SharedCooldowns
from penstock.worker.give_up import GiveUp
from penstock.worker.learned_uses import LearnedUses
from penstock.worker.provider_pressure import ProviderPressure
from penstock.worker.scheduler import AsyncTaskScheduler
from penstock.worker.slot_lending import SlotLending

MODELS_REMEMBERED = 4_096  # names of models that were looked at for secrets
END_SECONDS = 2.0  # for what is written down, and for connections, at the end of a run
FIRST_SAVE_SECONDS = 10.0  # a short run may be killed, too
SAVE_SECONDS = 60.0  # between two looks whether there is anything new to keep

log = logging.getLogger("penstock.providers")


class EarlierLimit(NamedTuple):
    """What an earlier run has found, and how long ago it was."""

    limit: LearnedLimit
    age_seconds: float


class LearnedLimits:
    """Owns what was learned before, and what has been written down. Belongs to one loop."""

    def __init__(self, store: LearnedLimitStore, clock: Clock, processes: int) -> None:
        self._store = store
        self._clock = clock
        self._processes = processes
        self._earlier: dict[ProviderModelKey, EarlierLimit] = {}
        self._written: dict[ProviderModelKey, str] = {}
        self._next_monotonic = clock.monotonic() + FIRST_SAVE_SECONDS
        self._is_saving = False

    def earlier(self, key: ProviderModelKey) -> EarlierLimit | None:
        """What this process may start from; None: nothing is known."""
        return self._earlier.get(key)

    async def load(self) -> None:
        """Read what earlier runs have learned; without it a run begins small."""
        try:
            kept = await self._store.learned()
        except StoreError as error:
            log.warning("Learned limits cannot be read: %s", error)
            return
        now_at = self._clock.now() * MICROSECONDS
        for one in kept:
            found = read_learned(one.document)
            if found is not None:
                age_seconds = max(0.0, now_at - one.learned_at) / MICROSECONDS
                self._earlier[one.key] = EarlierLimit(
                    scaled(found, 1 / self._processes), age_seconds
                )
                self._written[one.key] = one.document

    @property
    def is_due(self) -> bool:
        return not self._is_saving and self._clock.monotonic() >= self._next_monotonic

    async def save(self, found: Mapping[ProviderModelKey, LearnedLimit]) -> None:
        """Write down what has changed; an unreachable store is tried again later."""
        self._next_monotonic = self._clock.monotonic() + SAVE_SECONDS
        documents = {
            key: msgspec.json.encode(scaled(limit, self._processes)).decode()
            for key, limit in found.items()
            if limit != LearnedLimit()
        }
        changed = {key: text for key, text in documents.items() if self._written.get(key) != text}
        if not changed or self._is_saving:
            return
        self._is_saving = True
        try:
            await self._store.save_learned(changed)
        except StoreError as error:
            log.debug("Learned limits were not saved: %s", error)
        else:
            self._written |= changed
        finally:
            self._is_saving = False


def lesser(one: LearnedLimit, other: LearnedLimit | None) -> LearnedLimit:
    """Of two limits of one model that with the lower ceiling; who has none was never refused."""
    if other is None or other.ceiling is None:
        return one
    return other if one.ceiling is None or other.ceiling <= one.ceiling else one


def scaled(limit: LearnedLimit, factor: float) -> LearnedLimit:
    """The same for so many times the share."""
    if factor == 1:
        return limit
    return msgspec.structs.replace(
        limit,
        ceiling=None if limit.ceiling is None else limit.ceiling * factor,
        rate=None if limit.rate is None else limit.rate * factor,
    )


class ProviderStore(LearnedLimitStore, CooldownStore, JournalStore, Protocol):
    """What serving providers asks of a store."""

    @property
    def url(self) -> str: ...


class NamedRun(NamedTuple):
    """Whose requests these are."""

    app: str
    run_id: str


class ServedProvider(msgspec.Struct, frozen=True):
    """A provider as one run serves it: what code and settings say together."""

    provider: Provider
    policy: ProviderPolicy
    base_url: str | None = None
    make_transport: MakeTransport | None = None  # None: the network
    limits: ReplyLimits = ReplyLimits()
    paid: PaidPolicy | None = None  # None: its calls cost nothing
    redirects: str = SAME_ORIGIN
    dialect: str | None = None  # None: plain HTTP
    account_errors: bool | None = None  # None: as the SDKs that use it imply


class ProviderRun:
    """Owns request admission and the clients of one worker. Belongs to one loop."""

    def __init__(
        self,
        served: Sequence[ServedProvider],
        store: ProviderStore,
        clock: Clock,
        *,
        share: ProcessShare,
        rand: Callable[[], float],
        run: NamedRun,
        events: RequestEvents | None = None,
        budgets: Sequence[Budget] = (),
    ) -> None:
        self._clock = clock
        self._rand = rand
        self._share = share
        self._resolver = RequestResourceResolver(
            DeclaredProvider(one.policy, one.base_url) for one in served
        )
        self._policies = {policy.name: policy for policy in self._resolver.policies()}
        self._learned = LearnedLimits(store, clock, share.count)
        self._core = AdaptiveRequestAdmissionController(
            self._policies.values(), self._algorithm, share=share, generation=run.run_id
        )
        self._counts = RequestCounts(self._core.tree.models)
        self._core.listen(self._counts)
        self._admission = RequestAdmissionController(self._core, clock, events, run.run_id)
        self.pressure = ProviderPressure(
            self._admission.pressure, self.counted_as, self._cap_of, clock.monotonic
        )
        self._admission.on_pressure_change(self.pressure.relieved)
        self._run_id = run.run_id
        self._store_url = store.url
        self._journal: JournalWriter | None = None  # None: no call costs money
        self.paid = frozenset(one.provider.name for one in served if one.paid is not None)
        if self.paid:
            self._journal = JournalWriter(store, StoreRetry(log, clock, rand), budgets)
        self._lending: SlotLending | None = None
        self._credentials = {one.provider.name: _credentials(one) for one in served}
        self.shared = SharedCooldowns(
            store,
            clock,
            self._admission,
            self._key_mark,
            self.reread_key,
            app=run.app,
            run_id=run.run_id,
        )
        self._give_up = GiveUp({}, clock, self._failing_since)
        self._uses = LearnedUses()
        self._on_use: Callable[[str, Hashable | None], None] | None = None
        self._with_url = {self.counted_as(x.provider.name) for x in served if x.base_url}
        self._clients = [(one.provider, self._clients_of(one)) for one in served]

    def __repr__(self) -> str:
        return f"<ProviderRun of {', '.join(self._policies)}, {self._admission!r}>"

    def connect(
        self,
        scheduler: AsyncTaskScheduler,
        slots: Mapping[str, int],
        slots_in_all: int,
        on_use: Callable[[str, Hashable | None], None],
        give_up_seconds: Mapping[str, float],
    ) -> SlotLending:
        """Tell a scheduler which tasks may start now, and its bottleneck of requests; lend slots.

        Args:
            scheduler: the one of this worker.
            slots: how many there are, by kind.
            slots_in_all: how many tasks may run at once, of whatever kinds.
            on_use: hears what the attempts of a task call, when that changes.
            give_up_seconds: how long a job waits for a provider that fails, by task.
        """
        self._on_use = on_use
        self._give_up = GiveUp(give_up_seconds, self._clock, self._failing_since)
        self.pressure.connect(scheduler.pressure_changed, self._give_up)
        self._core.listen(scheduler.bottleneck)
        self._lending = SlotLending(slots, slots_in_all, self._clock.monotonic, scheduler.set_limit)
        return self._lending

    async def begin(self) -> None:
        """Read what was learned, and who is to be left alone; then serve."""
        await self._learned.load()
        await self.shared.share()
        unprepared = [clients for _, clients in self._clients if not clients.is_simulated]
        if unprepared:
            await asyncio.to_thread(_prepare, unprepared)
        for provider, clients in self._clients:
            provider.bind(clients)

    async def end(self) -> None:
        """Serve no longer: nothing leaves, whoever waits is told, connections are closed."""
        for provider, clients in self._clients:
            provider.unbind(clients)
        self.pressure.close()
        if self._lending is not None:
            self._lending.close()
        self._admission.shut()
        await _within(self.save())
        await _within(self.shared.write())
        for _, clients in self._clients:
            await _within(clients.aclose())
        if self._journal is not None:
            await _within(self._journal.drain())

    @property
    def is_due(self) -> bool:
        """It is time to write down what was learned."""
        return self._learned.is_due

    async def save(self) -> None:
        found: dict[ProviderModelKey, LearnedLimit] = {}
        for key, algorithm in self._core.algorithms().items():
            if isinstance(key, ProviderModelKey):
                found[key] = algorithm.learned()
            else:  # of one domain: the least of them is kept for all
                model = key.provider_model
                found[model] = lesser(algorithm.learned(), found.get(model))
        await self._learned.save(found)

    # ── Attempts ──────────────────────────────────────────────────────────────────────────────

    def began(self, attempt: Attempt, deadline: float | None) -> AttemptContext:
        """An attempt begins; what its requests are to know of it."""
        ref, gate = attempt.ref, attempt.lease.item.request_resource_key
        if gate is not None:
            self.pressure.began(ref, gate)
        context = AttemptContext(
            attempt.job.key,
            inf if deadline is None else deadline,
            partial(self.pressure.asked, ref),
            partial(self._waits, attempt),
            partial(self._called, attempt.job.task),
        )
        if self._journal is not None:
            context.calls = AttemptCalls(attempt.job)
        return context

    def _called(self, task: str, provider: str, is_first: bool) -> None:
        """An attempt of a task calls a provider; one of any host says nothing about the next."""
        if provider not in self._with_url or self._on_use is None:
            return
        if self._uses.called(task, provider, is_first=is_first):
            self._on_use(task, self._uses.gate(task))

    def _failing_since(self, resource: RequestResourceKey) -> float | None:
        return self._counts.failing_since(self.counted_as(resource.provider), resource.model)

    def gives_up(self, attempt: Attempt) -> bool:
        """It has waited for failing providers for as long as it may; it may not have begun."""
        context = attempt.request_context
        if context is None:
            gate = attempt.lease.item.request_resource_key
            found = None if gate is None else self.pressure.snapshot(gate)
            closed = found is not None and is_pressed(found)
            return closed and self._give_up.is_over(attempt.job, gate)
        return self._give_up.ends(
            attempt.job, attempt.started_at, context.open_calls, waits=context.is_waiting
        )

    def waits_longer(self, attempt: Attempt, seconds: float) -> bool:
        """It waits for a permit of a provider that cools down for longer than that."""
        gate = attempt.lease.item.request_resource_key
        if gate is None or not attempt.waits_for_permit:
            return False
        found = self.pressure.snapshot(gate)
        return found is not None and found.cooldown_seconds > seconds

    def _waits(self, attempt: Attempt, begins: bool) -> None:
        """An attempt begins to wait for a permit, or waits no longer."""
        if self._lending is None:
            return
        if not begins:
            self._lending.wait_ends(attempt)
        elif not attempt.ended:  # a detached body keeps its slot
            self._lending.wait_begins(attempt, attempt.task.slot_kind)

    def ended(self, attempt: Attempt) -> None:
        """Its body has left its slot."""
        self.pressure.ended(attempt.ref)
        if self._lending is not None:
            self._lending.wait_ends(attempt)

    # ── Telling ───────────────────────────────────────────────────────────────────────────────

    def uses(self) -> tuple[ProviderUse, ...]:
        """Every model that was asked for, those with most requests first."""
        models = self._admission.pressure.models()
        models.sort(key=lambda one: (-one.in_flight - one.waiters, one.key))
        algorithms = self._core.algorithms()
        now = self._clock.monotonic()
        offset = self._clock.now() - now
        return tuple(
            self._use(one, algorithms.get(one.key), now, offset) for one in models[:PROVIDERS_SHOWN]
        )

    def figures(self) -> tuple[ModelFigures, ...]:
        """Every model that was asked for, those with most requests first, over the whole run."""
        return tuple(
            _figures(use, self._counts.of(ProviderModelKey(use.provider, use.model)))
            for use in self.uses()
        )

    def declared(self) -> dict[str, dict[str, float]]:
        """The declared `max_parallel` of each provider or model: alias → its raw value."""
        found: dict[str, dict[str, float]] = {}
        for name, policy in self._policies.items():
            for model, said in policy.contributors.items():
                where = f"{name}/{model}" if model else name
                found[where] = {one.alias: float(one.cap) for one in said}
        return found

    def cooldowns(self) -> dict[str, float]:
        """Models that cool down now: for so many seconds."""
        return {
            f"{one.key.provider}/{one.key.model}": round(one.cooldown_seconds, 3)
            for one in self._admission.pressure.models()
            if one.cooldown_seconds > 0
        }

    @property
    def in_flight(self) -> int:
        return self._core.in_flight

    @property
    def in_flight_max(self) -> int:
        """Requests of all models that were in flight at once."""
        return self._counts.in_flight_max

    def gate_of(self, gate: Hashable) -> ProviderModelKey | None:
        """Which model, or with `*` which provider, the gate of a task stands for."""
        if isinstance(gate, SeveralResources):
            found = self.pressure.snapshot(gate)
            gate = None if found is None else found.resource
        if not isinstance(gate, RequestResourceKey):
            return None
        return ProviderModelKey(self.counted_as(gate.provider), gate.model)

    def _use(
        self,
        one: ProviderModelPressure,
        algorithm: LimitAlgorithm | None,
        now: float,
        offset: float,
    ) -> ProviderUse:
        policy = self._policies[one.key.provider]
        caps = policy.model_caps(one.key.model).least(policy.caps)
        counts = self._counts.of(one.key)
        requests, tokens = counts.last_minute(now)
        until = one.blocked_until
        part = 1 / self._share.count
        found = LearnedLimit() if algorithm is None else algorithm.learned()
        return ProviderUse(
            provider=one.key.provider,
            model=one.key.model,
            limit=one.limit,
            limit_max=one.effective_max,
            in_flight=one.in_flight,
            waiting=one.waiters,
            refused=counts.refused,
            failed=counts.failed,
            failed_in_row=counts.failed_in_row,
            blocked_until_at=None if until is None else round((until + offset) * MICROSECONDS),
            requests_last_minute=requests,
            tokens_last_minute=tokens,
            rpm=None if caps.rpm is None else caps.rpm * part,
            tpm=None if caps.tpm is None else caps.tpm * part,
            algorithm=one.algorithm,
            mode="" if algorithm is None else found.mode.value,
            rate=None if found.mode is LimitMode.CONCURRENCY else found.rate,
            ceiling=one.ceiling,
        )

    # ── Accounts ──────────────────────────────────────────────────────────────────────────────

    def closed_account(self, provider: str) -> ClosedAccount | None:
        """The account of a provider; None: it is open."""
        level = self._core.tree.providers.get(provider)
        if level is None or level.account.closed_at is None:
            return None
        offset = self._clock.now() - self._clock.monotonic()
        return ClosedAccount(
            provider=provider,
            reason=level.account.reason,
            since_at=round((level.account.closed_at + offset) * MICROSECONDS),
            probe_at=round((level.account.probe_at + offset) * MICROSECONDS),
            probes=level.account.probes,
        )

    def closed_providers(self) -> list[str]:
        """The providers whose accounts are closed."""
        return [name for name, one in self._core.tree.providers.items() if one.account.is_closed]

    def is_left_alone(self, provider: str) -> bool:
        """No request may leave for a closed account now, not even a probe."""
        level = self._core.tree.providers.get(provider)
        return level is not None and level.account.refuses(self._clock.monotonic())

    def is_probed_elsewhere(self, provider: str) -> bool:
        """Another process probes a closed account: perhaps it is open in a moment."""
        return self.shared.is_probed_elsewhere(provider)

    def reread_key(self, provider: str) -> bool:
        """Read the key of a provider anew; if it is another one, its account may be probed."""
        has_changed = False
        for name, credentials in self._credentials.items():
            if self.counted_as(name) == provider:
                has_changed = credentials.refresh() or has_changed
        level = self._core.tree.providers.get(provider)
        if has_changed and level is not None and not level.account.status:
            self._admission.probe_account(provider)  # it could not be read: others do not know
        return has_changed

    def _key_mark(self, provider: str) -> str | None:
        """Tells the keys of a provider apart; None: it is not served here."""
        named = (x for name, x in self._credentials.items() if self.counted_as(name) == provider)
        found = next(named, None)
        return None if found is None else found.mark

    # ── Building ──────────────────────────────────────────────────────────────────────────────

    def _algorithm(
        self, policy: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
    ) -> LimitAlgorithm:
        limit, age_seconds = self._learned.earlier(key) or (None, 0.0)
        if policy.algorithm == "aimd":
            return Aimd(policy.aimd, effective_max, now, limit, age_seconds)
        return Adaptive(effective_max, now, self._rand, limit, age_seconds)

    def counted_as(self, provider: str) -> str:
        """The name of a provider, or of another with the same base URL that came first."""
        return self._resolver.resolve(provider).provider

    def _cap_of(self, provider: str, model: str) -> int:
        """How many requests at once were declared for a model at most; this process's part."""
        policy = self._policies[provider]
        declared = policy.model_caps(model).least(policy.caps).max_parallel
        return self._share.of(DEFAULT_MAX if declared is None else declared)

    def _clients_of(self, one: ServedProvider) -> ProviderClients:
        executor = ModelRequestExecutor(
            self._admission,
            partial(self._resolve, one.provider.name),
            self._clock,
            limits=one.limits,
            classifier=one.provider.options.classify,
            account_errors=one.account_errors,
            hosts=None if one.base_url is None else HostCheck(one.provider.name, one.base_url),
        )
        name = self.counted_as(one.provider.name)
        return ProviderClients(
            name,
            executor,
            base_url=one.base_url,
            make_transport=one.make_transport,
            paid=self._paid_calls(one.paid),
            rules=ProviderRules(
                Redirects(one.provider.name, one.redirects), self._credentials[one.provider.name]
            ),
        )

    def _paid_calls(self, rules: PaidPolicy | None) -> PaidCalls | None:
        if rules is None or self._journal is None:
            return None
        return PaidCalls(
            rules, self._journal, self._clock, run_id=self._run_id, store=self._store_url
        )

    def _resolve(self, provider: str, facts: RequestFacts) -> RequestResourceKey:
        key = self._resolver.resolve(
            provider, host=facts.host, path=facts.path, model=facts.fields.model
        )
        shown = _shown(key.model)  # it goes into rows, events and lines
        return key if shown == key.model else key._replace(model=shown)


def _credentials(one: ServedProvider) -> Credentials:
    options = one.provider.options
    return Credentials(one.base_url, one.dialect, options.api_key, options.headers)


def _figures(use: ProviderUse, counts: ModelCounts) -> ModelFigures:
    return ModelFigures(
        provider=use.provider,
        model=use.model,
        domains=tuple(sorted(counts.domains)),
        requests=counts.requests,
        refused=counts.refused,
        failed=counts.failed,
        tokens=counts.tokens,
        limit=use.limit,
        limit_max=use.limit_max,
        limit_reached=counts.limit_max,
        in_flight_max=counts.in_flight_max,
        waiting_max=counts.waiting_max,
        ceiling=use.ceiling,
        rpm=use.rpm,
        tpm=use.tpm,
        mode=use.mode,
        rate=use.rate,
    )


@lru_cache(MODELS_REMEMBERED)
def _shown(model: str) -> str:
    return redacted(model)


def _prepare(unprepared: Sequence[ProviderClients]) -> None:
    for clients in unprepared:
        try:
            clients.prepare()
        except Exception as error:  # whoever sends will meet it again, and tell it
            log.debug("%r could not be prepared: %r", clients, error)


async def _within(work: Coroutine[Any, Any, None]) -> None:
    """Wait for something to end, for a bounded time; a failure or time-out is only logged."""
    try:
        await asyncio.wait_for(work, END_SECONDS)
    except Exception as error:
        log.debug("Closing did not finish in time, or failed: %r", error)

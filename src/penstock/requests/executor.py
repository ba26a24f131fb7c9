# SPDX-License-Identifier: Apache-2.0
"""Executes one request: resolve, acquire a permit, send, classify, release.

Each attempt does all of it anew, also that of a call which was refused a moment ago. The lease is
released by the exchange: when sending raised, or when the body is closed. The error that a caller
sees is always the one that happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.clock import Clock
from penstock.errors import AccountClosed, ConfigError
from penstock.events import kinds
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import (
    ReplyClassifier,
    ReplyFacts,
    RequestAdmissionItem,
    RequestGroupSpec,
    RequestOutcome,
    RequestReleaseOutcome,
)
from penstock.redaction.content_guard import redact_content
from penstock.redaction.secrets import redacted
from penstock.requests import attempt_context
from penstock.requests.account_errors import STATUSES, account_problem
from penstock.requests.admission import NEVER_SENT, RequestAdmissionController
from penstock.requests.attempt_context import AttemptContext, RefusedReply
from penstock.requests.credentials import Credentials
from penstock.requests.exchange import PEEK_BYTES, Exchange, ReplyLimits, log
from penstock.requests.host_check import HostCheck
from penstock.requests.journal.call import PaidCall
from penstock.requests.usage import (
    RequestFields,
    TokenEstimate,
    TokensUsed,
    prompt_tokens,
    read_request,
)
from penstock.timers import Deadlines

TOKEN_DOMAINS = frozenset({"chat", "embedding", "image"})  # domains whose requests cost tokens

R = TypeVar("R")


class RequestFacts(msgspec.Struct, frozen=True):
    """What is known of a request before it is sent."""

    host: str
    path: str
    fields: RequestFields
    body: bytes | None = None  # None: a stream, or nothing
    dialect: str | None = None  # of the SDK that makes it; None: none that is known


Resolve = Callable[[RequestFacts], RequestResourceKey]


class ModelRequest(Protocol[R]):
    """One request of some HTTP library."""

    @property
    def facts(self) -> RequestFacts: ...

    @property
    def call(self) -> PaidCall | None:
        """Its journal entry; None: it costs nothing."""
        ...

    def send(self) -> Awaitable[R]:
        """Send it; when it returns, the reply's head is there, its body may not be."""
        ...

    def head(self, reply: R) -> tuple[int, Sequence[tuple[bytes, bytes]]]: ...

    def closer(self, reply: R) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return what closes the connection, or gives it back; it must not keep the reply alive."""
        ...

    def hold(self, reply: R, exchange: Exchange) -> R:
        """Let the reply's body keep the exchange until it is closed."""
        ...

    async def peek(self, reply: R, count: int) -> bytes:
        """Return the decoded beginning of a held body, which can still be read wholly."""
        ...


class ModelRequestExecutor:
    """Executes the requests of one provider. Belongs to one loop."""

    def __init__(
        self,
        admission: RequestAdmissionController,
        resolve: Resolve,
        clock: Clock,
        *,
        limits: ReplyLimits | None = None,
        classifier: ReplyClassifier | None = None,
        account_errors: bool | None = None,
        hosts: HostCheck | None = None,
    ) -> None:
        self.admission = admission
        self.clock = clock
        self.resolve = resolve
        self._limits = limits or ReplyLimits()
        self._classifier = classifier
        self._account_errors = account_errors  # None: of requests of an SDK
        self._hosts = hosts
        self._estimates: dict[ProviderModelKey, TokenEstimate] = {}
        self.loop = asyncio.get_running_loop()
        self._deadlines: Deadlines[Exchange, None] = Deadlines(
            self._limits.deadline_seconds,
            lambda exchange, _: self.loop.call_soon(exchange.expire),
            self.loop.time,
        )

    def __repr__(self) -> str:
        return f"<ModelRequestExecutor of {self.admission!r}>"

    def item(self, facts: RequestFacts, refusals: int = 0) -> RequestAdmissionItem:
        """Return what request admission must know of a request."""
        if self._hosts is not None:
            self._hosts.check(facts.host)
        resource = self.resolve(facts)
        tokens: int | None = None
        if resource.domain in TOKEN_DOMAINS:
            tokens = self._estimate(resource).of(facts.body, facts.fields)
        return RequestAdmissionItem(
            resource,
            group_of(resource),
            None,
            tokens,
            kinds.current.get(),
            refusals,
        )

    async def execute_attempt(
        self, request: ModelRequest[R], refusals: int = 0
    ) -> tuple[R, Exchange]:
        """Make one attempt: a reply whose body is open, and the exchange that holds its lease.

        Args:
            request: what to send.
            refusals: how often the provider has refused it already.
        """
        item = self.item(request.facts, refusals)
        attempt = attempt_context.current.get()
        if attempt is None:
            return await self._execute(request, item, attempt)
        attempt.last_called = item.resource
        attempt.open_calls.append(item.resource)
        try:
            return await self._execute(request, item, attempt)
        finally:
            attempt.open_calls.remove(item.resource)

    async def _execute(
        self, request: ModelRequest[R], item: RequestAdmissionItem, attempt: AttemptContext | None
    ) -> tuple[R, Exchange]:
        facts, call = request.facts, request.call
        while True:
            lease = self._acquire_or_enqueue(item, attempt)
            if not isinstance(lease, RequestAdmissionLease):
                lease = await self._wait(lease, attempt)
            if call is None or await self._may_send(call, lease, facts, attempt):
                break
        exchange = self._exchange(lease, facts)
        if attempt is not None and item.refusals == 0:
            attempt.content_guard.add_body(facts.body)
        try:
            with exchange:
                reply = await request.send()
            exchange.on_close(request.closer(reply))
            exchange.read_head(*request.head(reply))
            if attempt is not None and exchange.status < 400:  # else it is about us
                exchange.guarded_body = attempt.content_guard.add_body()
            reply = request.hold(reply, exchange)
            if self._may_be_account(facts, exchange):
                await self._read_account(request, reply, exchange, attempt)
            if self._classifier is not None:
                await self._classify(self._classifier, request, reply, exchange)
            if attempt is not None:
                attempt.last_refusal = _refusal_of(exchange)
                attempt.closed_account = _account_of(exchange)
            if call is not None:
                call.start_reply(exchange, request.head(reply)[1])
        except BaseException as error:
            exchange.fail(error)
            exchange.close_connection()
            raise
        return reply, exchange

    async def _may_send(
        self,
        call: PaidCall,
        lease: RequestAdmissionLease,
        facts: RequestFacts,
        attempt: AttemptContext | None,
    ) -> bool:
        """Journal a paid call; if that fails, release the permit unused.

        False: it has waited for budget that other calls had reserved, and may ask once more. A call
        that holds another permit itself does not wait: others may be waiting for that.
        """
        resource, expected = lease.item.resource, TokensUsed(0, 0)
        if lease.item.tokens_estimate is not None:
            expected = self._estimate(resource).parts(facts.body, facts.fields)
        held = [one for one in attempt_context.held_leases.get() if one is not lease]
        may_wait = not any(map(self.admission.core.is_held, held))
        try:
            waits_for = await call.journal_intent(resource, expected, may_wait=may_wait)
        except BaseException:
            self.admission.release(lease, NEVER_SENT)
            raise
        if waits_for is None:
            return True
        self.admission.release(lease, NEVER_SENT)
        if attempt is None:
            await call.wait_for_budget(waits_for)
            return False
        attempt.begin_wait(self.clock.monotonic())
        attempt.waits_for_budget = waits_for.name
        try:
            await call.wait_for_budget(waits_for)
        finally:
            attempt.waits_for_budget = None
            attempt.end_wait(self.clock.monotonic())
        return False

    async def acquire(self, item: RequestAdmissionItem) -> RequestAdmissionLease:
        """Wait for a permit, unless the attempt is over; its time limit is paused meanwhile.

        It is not paused if the call that asks holds a permit of the same provider.
        """
        attempt = attempt_context.current.get()
        answer = self._acquire_or_enqueue(item, attempt)
        if isinstance(answer, RequestAdmissionLease):
            return answer
        return await self._wait(answer, attempt)

    def _acquire_or_enqueue(
        self, item: RequestAdmissionItem, attempt: AttemptContext | None
    ) -> RequestAdmissionLease | RequestWaiter:
        """Return a permit, or a waiter that has begun to wait."""
        if attempt is None:
            return self.admission.acquire_or_enqueue(item)
        now = self.clock.monotonic()
        attempt.check(now, item.resource)
        attempt.calls_provider(item.resource.provider)
        attempt.begin_wait(now)
        try:
            answer = self.admission.acquire_or_enqueue(item)
        except BaseException as error:
            attempt.end_wait(now)
            attempt.note_account(error, item.resource.provider)
            raise
        if isinstance(answer, RequestAdmissionLease):
            attempt.end_wait(now)
            attempt.has_sent = True
            self.note_lease(answer)
        elif self._holds_permit_of(item.resource.provider):
            attempt.end_wait(now)  # it waits within its own time limit
        return answer

    async def _wait(
        self, waiter: RequestWaiter, attempt: AttemptContext | None
    ) -> RequestAdmissionLease:
        if attempt is None:
            return await self.admission.wait(waiter)
        is_paused = not self._holds_permit_of(waiter.item.resource.provider)
        try:
            lease = await self.admission.wait(waiter)
        except AccountClosed as error:
            attempt.note_account(error, waiter.item.resource.provider)
            raise
        finally:
            if is_paused:
                attempt.end_wait(self.clock.monotonic())
        try:
            attempt.check(self.clock.monotonic(), waiter.item.resource)
        except BaseException:
            self.admission.release(lease, NEVER_SENT)
            raise
        attempt.has_sent = True
        self.note_lease(lease)
        return lease

    def note_lease(self, lease: RequestAdmissionLease) -> None:
        """Let nested calls know that this one holds a permit."""
        given = attempt_context.held_leases.get()
        attempt_context.held_leases.set((*filter(self.admission.core.is_held, given), lease))

    def _holds_permit_of(self, provider: str) -> bool:
        given = filter(self.admission.core.is_held, attempt_context.held_leases.get())
        return any(lease.item.resource.provider == provider for lease in given)

    def _exchange(self, lease: RequestAdmissionLease, facts: RequestFacts) -> Exchange:
        on_used: Callable[[int], None] | None = None
        if lease.item.tokens_estimate is not None:
            estimate, prompt = self._estimate(lease.item.resource), prompt_tokens(facts.body)

            def on_used(used: int) -> None:
                estimate.learn(prompt, used)

        return Exchange(self.admission, lease, self._limits, self.clock, self._deadlines, on_used)

    def _estimate(self, resource: RequestResourceKey) -> TokenEstimate:
        key = resource.provider_model
        estimate = self._estimates.get(key)
        if estimate is None:
            estimate = self._estimates[key] = TokenEstimate()
        return estimate

    def add_credentials(
        self, credentials: Credentials, url: str, headers: MutableMapping[str, str]
    ) -> None:
        """Let a request carry what its provider was given.

        Raises:
            AccountClosed: a secret cannot be read; its account is closed until it can.
        """
        try:
            credentials.apply(url, headers)
        except ConfigError as error:
            provider = self.resolve(RequestFacts("", "", RequestFields())).provider
            closed = self.admission.close_account(provider, str(error))
            attempt = attempt_context.current.get()
            if attempt is not None:
                attempt.note_account(closed, provider)
            raise closed from error

    def _may_be_account(self, facts: RequestFacts, exchange: Exchange) -> bool:
        """Return whether a reply may be about the account; a pause that is asked for is not."""
        if exchange.status not in STATUSES or exchange.ending is None:
            return False
        wanted = facts.dialect is not None if self._account_errors is None else self._account_errors
        is_pause = exchange.ending.outcome is RequestOutcome.RATE_LIMITED
        return wanted and (not is_pause or exchange.status == 429)

    async def _read_account(
        self,
        request: ModelRequest[R],
        reply: R,
        exchange: Exchange,
        attempt: AttemptContext | None,
    ) -> None:
        """Note that a reply is about the account, and what it says, without quotes of contents."""
        said = account_problem(exchange.status, await request.peek(reply, PEEK_BYTES))
        if said is None or exchange.ending is None:
            return
        said = redacted(said)
        if attempt is not None:
            said = redact_content(said, attempt.content_guard.texts())
        exchange.ending = msgspec.structs.replace(
            exchange.ending,
            outcome=RequestOutcome.ACCOUNT_CLOSED,
            status=exchange.status,
            said=said,
        )

    async def _classify(
        self,
        classifier: ReplyClassifier,
        request: ModelRequest[R],
        reply: R,
        exchange: Exchange,
    ) -> None:
        status, headers = request.head(reply)
        names = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        start = await request.peek(reply, PEEK_BYTES)
        try:
            opinion = classifier(ReplyFacts(status, names, start))
            if isinstance(opinion, str):
                opinion = RequestOutcome(opinion)
        except Exception as error:  # a mistake in it must not stop a call, nor stay unseen
            log.error(
                "The reply classifier raised %r; the status of the reply is used instead.", error
            )
            return
        if opinion is None or exchange.ending is None:
            return
        if isinstance(opinion, RequestReleaseOutcome):
            exchange.ending = msgspec.structs.replace(opinion, readings=exchange.ending.readings)
        else:
            exchange.ending = msgspec.structs.replace(exchange.ending, outcome=opinion)


def _refusal_of(exchange: Exchange) -> RefusedReply | None:
    ending = exchange.ending
    if ending is None or ending.outcome is not RequestOutcome.RATE_LIMITED:
        return None
    return RefusedReply(exchange.where, exchange.status, ending.doubt)


def _account_of(exchange: Exchange) -> str | None:
    """Return the provider whose account a reply was about; None: it was about something else."""
    ending = exchange.ending
    if ending is None or ending.outcome is not RequestOutcome.ACCOUNT_CLOSED:
        return None
    return exchange.lease.item.resource.provider


_groups: dict[str, RequestGroupSpec] = {}


def group_of(resource: RequestResourceKey) -> RequestGroupSpec:
    """Return whom a request shares fairly with: requests of one domain are one group."""
    group = _groups.get(resource.domain)
    if group is None:
        group = _groups[resource.domain] = RequestGroupSpec(resource.domain)
    return group


def read_facts(
    host: str, path: str, body: bytes | None, dialect: str | None = None
) -> RequestFacts:
    """Read the fields of a request that admission needs."""
    return RequestFacts(host, path, read_request(body), body, dialect)

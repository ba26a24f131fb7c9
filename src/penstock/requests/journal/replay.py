# SPDX-License-Identifier: Apache-2.0
"""Replay or send: a journaled answer is replayed, a call in doubt is held or sent again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.clock import MICROSECONDS, Clock
from penstock.errors import CallInDoubt, StoreError, UsageError
from penstock.model.dataset import task_name
from penstock.model.journal import CALL, Answer, CallKey, CallRef, CallState
from penstock.model.provider import IDEMPOTENCY_HEADER
from penstock.model.spending import accounts_of, utc_day
from penstock.requests import attempt_context
from penstock.requests.clients.httpx import AdmittedTransport, ProviderRules
from penstock.requests.credentials import implied_dialect
from penstock.requests.executor import ModelRequestExecutor
from penstock.requests.journal.attempt_calls import AttemptCalls, EarlierCall
from penstock.requests.journal.bodies import replayed_reply, whole_body
from penstock.requests.journal.call import PaidCall
from penstock.requests.journal.paid_policy import PaidPolicy, fingerprint, idempotency_key
from penstock.requests.journal.writer import JournalWriter
from penstock.sentences import command, counted


class PaidRequest(msgspec.Struct, frozen=True):
    """The parts of a request that make its fingerprint."""

    method: str
    url: str
    body: bytes
    content_type: str


class PaidCalls:
    """Begins the paid calls of one provider. Belongs to one loop."""

    def __init__(
        self,
        rules: PaidPolicy,
        writer: JournalWriter,
        clock: Clock,
        *,
        run_id: str,
        store: str,
    ) -> None:
        self.rules = rules
        self._writer = writer
        self._clock = clock
        self._run_id = run_id
        self._store = store  # its name; two stores do not make the same calls

    def __repr__(self) -> str:
        return f"<PaidCalls of {self.rules.provider!r}>"

    async def begin(self, request: PaidRequest) -> PaidCall | Answer:
        """Return the answer that is journaled already, or a call that may be sent.

        Raises:
            CallInDoubt: it was sent before, its outcome is unknown, and the policy is `hold`.
            UsageError: nobody knows which job makes it.
        """
        calls = self._attempt()
        key = calls.take_key(
            fingerprint(request.method, request.url, request.body, request.content_type)
        )
        try:
            await calls.wait_written(key)
            found = await self._look_up(calls, key)
            if found is not None and found.state is CallState.ANSWERED:
                answer = await self._writer.answer_of(key)
                if answer is not None and answer.body is not None:
                    self._reuse(calls, answer, found.model)
                    return answer
            elif found is not None and found.state is CallState.OPEN and self.rules.holds_in_doubt:
                await self._hold(calls)
        except BaseException:
            calls.free_key(key)
            raise
        return PaidCall(self.rules, self._writer, self._run_id, calls, key)

    def idempotency_key(self, call: PaidCall) -> str:
        """Return the key by which a provider recognises a call that it has seen before."""
        calls = self._attempt()
        found = calls.earlier(call.key)
        bought = 0 if found is None else found.bought
        return idempotency_key(self._store, calls.job.due_at, call.key, bought)

    def _attempt(self) -> AttemptCalls:
        attempt = attempt_context.current.get()
        calls = None if attempt is None else attempt.calls
        if calls is None:
            raise UsageError(
                f"A call of the paid provider {self.rules.provider!r} is made where its job is not "
                "known, as in a thread that was started by hand; make it in the task itself, or "
                "start threads with `asyncio.to_thread`."
            )
        return calls

    async def _look_up(self, calls: AttemptCalls, key: CallKey) -> EarlierCall | None:
        """Return an earlier equal call; what earlier attempts journaled is read once."""
        if not calls.is_first:
            journaled = calls.journaled
            if journaled.reading is None:
                journaled.reading = self._writer.spawn(self._read(calls))
            try:
                await asyncio.shield(journaled.reading)
            except StoreError:
                journaled.reading = None  # the next call tries again
                raise
        return calls.earlier(key)

    async def _read(self, calls: AttemptCalls) -> None:
        calls.remember(await self._writer.calls(calls.job.id))

    def _reuse(self, calls: AttemptCalls, answer: Answer, model: str) -> None:
        calls.deliver(answer, is_reused=True, is_priced=self.rules.has_price(model))
        day = utc_day(round(self._clock.now() * MICROSECONDS))
        provider = self.rules.provider
        task = task_name(calls.job.task)
        self._writer.reused(
            answer.key, accounts_of(self._run_id, day, task, provider, model, self.rules.app)
        )

    async def _hold(self, calls: AttemptCalls) -> None:
        provider = self.rules.provider
        doubts = calls.in_doubt_with(provider)
        token = calls.job.token
        await asyncio.shield(self._writer.held([CallRef(key, token) for key in doubts]))
        error = CallInDoubt(
            f"{counted(len(doubts), 'call')} of {provider!r} may have been served by an earlier "
            "attempt: "
            "they are held, and sent again when a person puts the job back "
            f"('{command('queue', 'retry-failed')}')."
        )
        calls.in_doubt = error
        raise error


class PaidTransport(AdmittedTransport):
    """Sends what a client gives it, unless its answer is journaled already."""

    is_paid = True

    def __init__(
        self,
        library: Any,  # noqa: ANN401 (httpx2 or httpx)
        executor: ModelRequestExecutor,
        inner: Any,  # noqa: ANN401 (a transport of the library)
        rules: ProviderRules,
        paid: PaidCalls,
        *,
        sends_again: bool,
    ) -> None:
        super().__init__(library, executor, inner, rules, sends_again=sends_again)
        self._paid = paid

    async def send(self, request: Any, call: PaidCall | None = None) -> Any:  # noqa: ANN401
        """Replay the answer, or send and journal it; the call is made here."""
        paid = self._paid
        body = await whole_body(self.library, request)
        kind = request.headers.get("content-type", "")
        begun = await paid.begin(PaidRequest(request.method, str(request.url), body, kind))
        if isinstance(begun, Answer):
            if (attempt := attempt_context.current.get()) is not None:
                attempt.content_guard.add_body(body)
                attempt.content_guard.add_body(begun.body)
            return replayed_reply(self.library, begun)
        header = paid.rules.idempotency_header
        if header is None and implied_dialect(request.headers) is not None:
            header = IDEMPOTENCY_HEADER
        if header and header not in request.headers:
            request.headers[header] = paid.idempotency_key(begun)
        try:
            reply = await super().send(request, begun)
        except BaseException as error:
            begun.failed(error)
            raise
        if begun.is_answer:
            reply.extensions[CALL] = begun.key
        else:
            begun.refused()
        return reply

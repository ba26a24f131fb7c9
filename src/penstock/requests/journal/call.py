# SPDX-License-Identifier: Apache-2.0
"""One paid call: intent, budget reservation, send, recorded answer, or doubt.

It is written down before it leaves, and its answer before anybody has the end of it. What certainly
cost nothing is closed; what may have cost something stays open, in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.errors import (
    AttemptOver,
    BudgetUsedUp,
    ProviderThrottled,
    ProviderUnavailable,
)
from penstock.model.dataset import task_name
from penstock.model.journal import Answer, CallKey, CallRef, CallState, Intent, IntentVerdict
from penstock.model.provider import RequestResourceKey
from penstock.model.spending import Budget, BudgetRefusal, scopes_of
from penstock.requests.journal.attempt_calls import AttemptCalls
from penstock.requests.journal.body_recorder import Recording, breaks_off, safe_headers
from penstock.requests.journal.paid_policy import PaidRules
from penstock.requests.journal.writer import JournalWriter
from penstock.requests.usage import TokensTold, TokensUsed

#: Errors of HTTP libraries that say that no connection was made, so that nothing can have left.
_NEVER_LEFT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})

_FRAMING = (b"content-length", b"transfer-encoding")
_BODILESS = (204, 205)


class Ended(Protocol):
    """An exchange, as a call sees it."""

    status: int

    @property
    def is_success(self) -> bool: ...

    @property
    def used(self) -> TokensTold: ...

    def close(self) -> None: ...


class PaidCall:
    """Owns the state of one call and its place in its attempt. Belongs to one loop."""

    def __init__(
        self,
        rules: PaidRules,
        writer: JournalWriter,
        run_id: str,
        calls: AttemptCalls,
        key: CallKey,
    ) -> None:
        self._rules = rules
        self._writer = writer
        self._run_id = run_id
        self._calls = calls
        self.key = key
        self.is_answer = False  # its reply is one, if its body comes to an end
        self._model = ""
        self._expected = TokensUsed(0, 0)
        self._resent = calls.resent(key)
        self._is_intended = False
        self._is_in_air = False
        self._has_place = True
        self._status = 0
        self._headers: tuple[tuple[str, str], ...] = ()
        self._is_framed = False  # its head says how its body ends
        self._recording: Recording | None = None
        self._answering: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<PaidCall {self.key.fingerprint}/{self.key.ordinal} of {self._calls!r}>"

    # ── Before the send ───────────────────────────────────────────────────────────────────────

    async def leave(
        self, resource: RequestResourceKey, expected: TokensUsed, *, may_wait: bool = False
    ) -> Budget | None:
        """It has its permit: write it down, once. From now on it may cost something.

        Returns:
            None, or the budget whose money is with other calls of this process: ask again when
            that may have come back (`money`). Only if it may wait for it.

        Raises:
            BudgetUsedUp: it would cost too much.
            AttemptOver: a later attempt of its job has begun.
        """
        if not self._is_intended:
            waits_for = await self._intend(resource, expected, may_wait)
            if waits_for is not None:
                return waits_for
            self._is_intended = True
        self._is_in_air = True
        return None

    async def money(self, budget: Budget) -> None:
        """Wait until a call may have given back what it had reserved."""
        await self._writer.reserves.change(budget)

    async def _intend(
        self, resource: RequestResourceKey, expected: TokensUsed, may_wait: bool
    ) -> Budget | None:
        self._model, self._expected = resource.model, expected
        task, provider = task_name(self._calls.job.task), self._rules.provider
        unpriced = self._rules.forbids_unpriced(task, resource.model)
        if unpriced is not None:
            where = f"{provider}/{resource.model}"
            raise self._over(BudgetRefusal(unpriced, where, price_is_missing=True))
        reserved = self._rules.amount(resource.model, expected.input, expected.output)
        token = self._calls.job.token
        intent = Intent(
            self.key, token, self._run_id, task, provider, resource.model, reserved, self._resent
        )
        reserves = self._writer.reserves
        given_back = reserves.given_back
        written = self._writer.intend(intent)
        self._calls.writes(self.key, written)
        try:
            verdict = await asyncio.shield(written)
        except BaseException:
            written.add_done_callback(self._was_not_sent)
            raise
        if verdict.written:
            scopes = scopes_of(task, provider, resource.model)
            reserves.hold(self, scopes, reserved)
            return None
        budget = verdict.over
        if budget is None:
            raise AttemptOver(
                f"Job {self._calls.job.key!r} is run by somebody else by now: its call of "
                f"{provider}/{resource.model} was not sent."
            )
        # What came back while the store answered is not in its answer: it is asked once more.
        is_stale = reserves.given_back != given_back
        if may_wait and (is_stale or reserves.may_suffice(budget, verdict.left, reserved)):
            return budget
        where = f"{provider}/{resource.model}"
        raise self._over(BudgetRefusal(budget, where, reserved, verdict.left))

    def _was_not_sent(self, written: asyncio.Future[IntentVerdict]) -> None:
        """Whoever waited for the intent is gone, and sent nothing."""
        if written.exception() is None and written.result().written:
            self._close()

    def _over(self, refusal: BudgetRefusal) -> BudgetUsedUp:
        budget, where = refusal.budget, refusal.where
        if refusal.price_is_missing:
            text = (
                f"A call of {where} was not sent: [{budget.name}] counts dollars, and its price is "
                f"not known; say {refusal.price_setting}, and run again."
            )
        else:
            short = refusal.short
            text = (
                f"A call of {where} may need {short.shown(refusal.asked)}, of [{budget.name}] "
                f"there is {short.shown(refusal.left)} left: it was not sent; raise "
                f"{short.settings}, and run again."
            )
        error = BudgetUsedUp(text, budget.name)
        self._calls.over_budget, self._calls.refusal = error, refusal
        return error

    # ── Its reply ─────────────────────────────────────────────────────────────────────────────

    def has_reply(self, exchange: Ended, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Its head is there. What is no success has cost nothing."""
        if 200 <= exchange.status < 300 and exchange.is_success:
            self.is_answer = True
            self._status = exchange.status
            self._headers = safe_headers(headers)
            self._is_framed = any(name.lower() in _FRAMING for name, _ in headers)
            self._recording = Recording()
        else:
            self._is_in_air = False

    def record(self, piece: bytes) -> None:
        if self._recording is not None:
            self._recording.add(piece)

    @property
    def has_said_all(self) -> bool:
        """Nothing more will come, although the body has not ended."""
        return self._recording is not None and self._recording.has_said_all

    async def complete(self, exchange: Ended) -> None:
        """The body has ended: keep it; only then may its reader know."""
        if self._answering is None:
            if self._recording is None:
                return
            exchange.close()  # nothing more is wanted of the provider
            self._answering = self._answer(self._recording, exchange.used)
        try:
            await asyncio.shield(self._answering)
        except BaseException:
            self._leave_place()
            raise
        if self._has_place:
            self._calls.handed_out(self.key)

    def _answer(self, recording: Recording, told: TokensTold) -> asyncio.Future[None]:
        self._is_in_air = False
        self._recording, body = None, self._whole(recording)
        used, is_estimated = told.settled(self._expected)
        answer = Answer(
            self.key,
            self._status,
            self._headers,
            body,
            self._rules.amount(self._model, used.input, used.output),
            used.input,
            used.output,
            self._calls.job.token,
            is_estimated,
        )
        state = CallState.SPOILED if body is None else CallState.ANSWERED
        self._note(state)
        written = self._writer.answered(answer)
        self._calls.writes(self.key, written)
        written.add_done_callback(self._settled)
        return written

    def _whole(self, recording: Recording) -> bytes | None:
        """What is to be kept; None: it is too large, or not all of it has come."""
        body = recording.finish()
        is_empty = not recording.has_bytes
        if body is None or (is_empty and (self._is_framed or self._status in _BODILESS)):
            return body
        kind = dict(self._headers).get("content-type", "")
        return None if breaks_off(body, kind) else body

    def _settled(self, _: asyncio.Future[None]) -> None:
        """What it had reserved is with the budget again, or spent."""
        self._writer.reserves.give_back(self)

    # ── Without an answer ─────────────────────────────────────────────────────────────────────

    def refused(self) -> None:
        """Its reply is no answer."""
        self._close()
        self._leave_place()

    def failed(self, error: BaseException) -> None:
        """Sending raised."""
        if not self._is_intended:
            self._leave_place()
        elif not self._is_in_air or _never_left(error):
            self.refused()
        else:
            self.broke_off()

    def broke_off(self) -> None:
        """Somebody left before the body's end: in doubt, unless it was answered."""
        if self._answering is None and self._has_place:
            self._recording = None
            self._writer.reserves.give_back(self)  # nobody waits for what is in doubt
            self._note(CallState.OPEN)
            self._leave_place()

    def was_lost(self) -> None:
        """Its reader was cancelled with the answer in his hands: the next equal call has it."""
        self._leave_place()

    def _close(self) -> None:
        self._is_in_air = False
        self._note(CallState.CLOSED)
        closed = self._writer.closed(CallRef(self.key, self._calls.job.token))
        self._calls.writes(self.key, closed)
        closed.add_done_callback(self._settled)

    def _note(self, state: CallState) -> None:
        self._calls.note(self.key, state, self._rules.provider, self._model, self._resent)

    def _leave_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._calls.give_back(self.key)


def _never_left(error: BaseException) -> bool:
    if isinstance(error, ProviderThrottled | ProviderUnavailable):
        return True  # it left, and was refused
    return any(kind.__name__ in _NEVER_LEFT for kind in type(error).__mro__)

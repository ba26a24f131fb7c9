# SPDX-License-Identifier: Apache-2.0
"""One paid call: intent, budget reservation, send, recorded answer, or doubt.

It is journaled before it is sent, and its answer before its reader sees the end of it. A call that
certainly cost nothing is closed; one that may have cost something stays open, in doubt.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.errors import (
    AccountClosed,
    AttemptOver,
    BudgetUsedUp,
    ProviderThrottled,
    ProviderUnavailable,
)
from penstock.model.dataset import task_name
from penstock.model.journal import (
    BODY_BYTES_MAX,
    Answer,
    CallKey,
    CallRef,
    CallState,
    Intent,
    IntentVerdict,
)
from penstock.model.provider import RequestResourceKey
from penstock.model.spending import Budget, BudgetRefusal, scopes_of
from penstock.requests.exchange import Exchange
from penstock.requests.journal.attempt_calls import AttemptCalls
from penstock.requests.journal.paid_policy import PaidPolicy
from penstock.requests.journal.writer import JournalWriter
from penstock.requests.usage import ReportedUsage, TokensUsed

#: Errors of HTTP libraries that say that no connection was made, so that nothing can have left.
_UNSENT_ERRORS = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})

_FRAMING = (b"content-length", b"transfer-encoding")
_BODILESS = (204, 205)


VALUE_LENGTH_MAX = 1_000  # characters
COUNT_MAX = 64

#: What programs read of a reply besides its body: what the body is, where a result will be or comes
#: from, how long to wait, and what to tell the provider's support.
_NAMES = frozenset(
    {
        "apim-request-id",
        "azure-asyncoperation",
        "cf-ray",
        "content-disposition",
        "content-encoding",  # of a body that was not decoded on its way
        "content-language",
        "content-location",
        "content-range",
        "content-type",
        "date",
        "etag",
        "last-modified",
        "link",
        "location",
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "operation-location",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-amzn-requestid",
        "x-goog-request-id",
        "x-ms-request-id",
        "x-request-id",
    }
)
_BEGINNINGS = ("x-ratelimit-", "anthropic-ratelimit-")


def safe_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Return the headers that may be kept, with names in lower case."""
    kept: list[tuple[str, str]] = []
    for name_bytes, value in raw:
        name = name_bytes.decode("latin-1").lower()
        if name in _NAMES or name.startswith(_BEGINNINGS):
            kept.append((name, value.decode("latin-1")[:VALUE_LENGTH_MAX]))
    return tuple(kept[:COUNT_MAX])


LEVEL = 1  # answers are short texts, and the loop waits for it
PIECE_BYTES = 64 * 1024  # decompressed at once
TAIL_BYTES = 256  # of a body, to see how it ends

#: How the streams of known APIs say that nothing more comes, whatever the connection does. It
#: begins a line, which nothing that a model writes can: line ends in a JSON string are escaped.
_LAST_EVENT = re.compile(
    rb"[\r\n]data: ?(?:\[DONE\]|"
    rb'\{[^\r\n]{0,100}?"type": ?"(?:message_stop|response\.(?:completed|incomplete|failed))")'
)

#: Media types of one JSON document; lines of JSON are of others.
_DOCUMENT = re.compile(r"\s*application/(?:[\w.-]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_BEFORE = b"\n"  # what a body begins with begins a line
_skip = msgspec.json.Decoder(msgspec.Raw).decode


class BodyRecorder:
    """Owns the compressed pieces of one body; none if it is too large."""

    __slots__ = ("_compress", "_has_last", "_kept", "_size", "_tail")

    def __init__(self) -> None:
        self._compress = zlib.compressobj(LEVEL)
        self._kept: list[bytes] | None = []
        self._size = 0
        self._tail = _BEFORE
        self._has_last = False  # the last event of a stream has begun

    def add(self, piece: bytes) -> None:
        seen = self._tail + piece
        self._has_last = self._has_last or _LAST_EVENT.search(seen) is not None
        self._tail = seen[-TAIL_BYTES:]
        if self._kept is not None:
            self._keep(self._compress.compress(piece))

    def finish(self) -> bytes | None:
        """The whole body, compressed; None: it is too large to be kept."""
        self._keep(self._compress.flush())
        return None if self._kept is None else b"".join(self._kept)

    @property
    def has_bytes(self) -> bool:
        """True if anything has come at all."""
        return self._tail != _BEFORE

    @property
    def has_last_event(self) -> bool:
        """True if a stream of events has sent its last one, to the end of its line."""
        return self._has_last and self._tail.endswith((b"\n", b"\r"))

    def _keep(self, compressed: bytes) -> None:
        self._size += len(compressed)
        if self._size > BODY_BYTES_MAX:
            self._kept = None
        elif self._kept is not None and compressed:
            self._kept.append(compressed)


def replay(body: bytes) -> Iterator[bytes]:
    """Yield a recorded body again, in pieces of bounded size."""
    inflate = zlib.decompressobj()
    rest = body
    while not inflate.eof:
        piece = inflate.decompress(rest, PIECE_BYTES)
        rest = inflate.unconsumed_tail
        if not piece and not rest:
            return
        if piece:
            yield piece


def is_truncated(body: bytes, content_type: str) -> bool:
    """Return whether a recorded body is a truncated JSON document.

    Where a connection's end is the body's end, a reply that was cut looks whole. What is no JSON
    at all, or more than one document, is somebody else's to judge.
    """
    if _DOCUMENT.match(content_type) is None:
        return False
    try:
        _skip(b"".join(replay(body)))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:  # nested so deep that nobody can tell
        return False
    return False


class PaidCall:
    """Owns the state of one call and its key in its attempt. Belongs to one loop."""

    def __init__(
        self,
        rules: PaidPolicy,
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
        self._is_reserved = False
        self._is_in_flight = False
        self._has_key = True
        self._status = 0
        self._headers: tuple[tuple[str, str], ...] = ()
        self._is_framed = False  # its head says how its body ends
        self._recorder: BodyRecorder | None = None
        self._answering: asyncio.Future[None] | None = None
        self._delivered: Answer | None = None  # its answer, without the body

    def __repr__(self) -> str:
        return f"<PaidCall {self.key.fingerprint}/{self.key.ordinal} of {self._calls!r}>"

    # ── Before the send ───────────────────────────────────────────────────────────────────────

    async def journal_intent(
        self, resource: RequestResourceKey, expected: TokensUsed, *, may_wait: bool = False
    ) -> Budget | None:
        """Journal it once, when it has its permit. From now on it may cost something.

        Returns:
            None, or the budget whose money is with other calls of this process: ask again when
            that may have come back (`wait_for_budget`). Only if it may wait for it.

        Raises:
            BudgetUsedUp: it would cost too much.
            AttemptOver: a later attempt of its job has begun.
        """
        if not self._is_reserved:
            waits_for = await self._reserve(resource, expected, may_wait)
            if waits_for is not None:
                return waits_for
            self._is_reserved = True
        self._is_in_flight = True
        return None

    async def wait_for_budget(self, budget: Budget) -> None:
        """Wait until another call may have released its reservation."""
        await self._writer.reservations.wait_for_change(budget)

    async def _reserve(
        self, resource: RequestResourceKey, expected: TokensUsed, may_wait: bool
    ) -> Budget | None:
        self._model, self._expected = resource.model, expected
        task, provider = task_name(self._calls.job.task), self._rules.provider
        unpriced = self._rules.forbids_unpriced(task, resource.model)
        if unpriced is not None:
            where = f"{provider}/{resource.model}"
            raise self._budget_error(BudgetRefusal(unpriced, where, price_is_missing=True))
        reserved = self._rules.amount(resource.model, expected.input, expected.output)
        token = self._calls.job.token
        intent = Intent(
            self.key,
            token,
            self._run_id,
            task,
            provider,
            resource.model,
            reserved,
            self._resent,
            self._rules.app,
        )
        reservations = self._writer.reservations
        release_count = reservations.release_count
        written = self._writer.intend(intent)
        self._calls.track_write(self.key, written)
        try:
            verdict = await asyncio.shield(written)
        except BaseException:
            written.add_done_callback(self._was_not_sent)
            raise
        if verdict.written:
            scopes = scopes_of(task, provider, resource.model)
            reservations.hold(self, scopes, reserved)
            return None
        budget = verdict.over
        if budget is None:
            raise AttemptOver(
                f"Job {self._calls.job.key!r} is run by a later attempt: its call of "
                f"{provider}/{resource.model} was not sent."
            )
        # What came back while the store answered is not in its answer: it is asked once more.
        is_stale = reservations.release_count != release_count
        if may_wait and (is_stale or reservations.may_suffice(budget, verdict.left, reserved)):
            return budget
        where = f"{provider}/{resource.model}"
        raise self._budget_error(BudgetRefusal(budget, where, reserved, verdict.left))

    def _was_not_sent(self, written: asyncio.Future[IntentVerdict]) -> None:
        """Close an intent whose caller was cancelled before anything was sent."""
        if written.exception() is None and written.result().written:
            self._close()

    def _budget_error(self, refusal: BudgetRefusal) -> BudgetUsedUp:
        budget, where = refusal.budget, refusal.where
        if refusal.price_is_missing:
            text = (
                f"A call of {where} was not sent: [{budget.name}] counts dollars, and its price is "
                f"not known; set {refusal.price_setting}, and run again."
            )
        else:
            short = refusal.short
            text = (
                f"A call of {where} was not sent: it may need "
                f"{short.format_amount(refusal.asked)}, and [{budget.name}] has only "
                f"{short.format_amount(refusal.left)} left; raise {short.settings}, and run again."
            )
        error = BudgetUsedUp(text, budget.name)
        self._calls.over_budget, self._calls.refusal = error, refusal
        return error

    # ── Its reply ─────────────────────────────────────────────────────────────────────────────

    def start_reply(self, exchange: Exchange, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Take in the head of its reply. A reply that is no success has cost nothing."""
        if 200 <= exchange.status < 300 and exchange.is_success:
            self.is_answer = True
            self._status = exchange.status
            self._headers = safe_headers(headers)
            self._is_framed = any(name.lower() in _FRAMING for name, _ in headers)
            self._recorder = BodyRecorder()
        else:
            self._is_in_flight = False

    def record(self, piece: bytes) -> None:
        if self._recorder is not None:
            self._recorder.add(piece)

    @property
    def has_last_event(self) -> bool:
        """True if nothing more will come, although the body has not ended."""
        return self._recorder is not None and self._recorder.has_last_event

    async def complete(self, exchange: Exchange) -> None:
        """Journal the body, which has ended; only then may its reader see the end."""
        if self._answering is None:
            if self._recorder is None:
                return
            exchange.close()  # nothing more is wanted of the provider
            self._answering = self._answer(self._recorder, exchange.used)
        try:
            await asyncio.shield(self._answering)
        except BaseException:
            self._free_key()
            raise
        if self._has_key and self._delivered is not None:
            is_priced = self._rules.has_price(self._model)
            self._calls.deliver(self._delivered, is_reused=False, is_priced=is_priced)

    def _answer(self, recorder: BodyRecorder, reported: ReportedUsage) -> asyncio.Future[None]:
        self._is_in_flight = False
        self._recorder, body = None, self._body_to_keep(recorder)
        used, is_estimated = reported.settle(self._expected)
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
        self._delivered = msgspec.structs.replace(answer, body=None)
        state = CallState.SPOILED if body is None else CallState.ANSWERED
        self._note(state)
        written = self._writer.answered(answer)
        self._calls.track_write(self.key, written)
        written.add_done_callback(self._settled)
        return written

    def _body_to_keep(self, recorder: BodyRecorder) -> bytes | None:
        """Return the compressed body; None: it is too large, or truncated."""
        body = recorder.finish()
        is_empty = not recorder.has_bytes
        if body is None or (is_empty and (self._is_framed or self._status in _BODILESS)):
            return body
        kind = dict(self._headers).get("content-type", "")
        return None if is_truncated(body, kind) else body

    def _settled(self, _: asyncio.Future[None]) -> None:
        """Release its reservation: it is settled in the store."""
        self._writer.reservations.release(self)

    # ── Without an answer ─────────────────────────────────────────────────────────────────────

    def refused(self) -> None:
        """Close it: its reply is no answer."""
        self._close()
        self._free_key()

    def failed(self, error: BaseException) -> None:
        """Close it, or leave it in doubt: sending raised."""
        if not self._is_reserved:
            self._free_key()
        elif not self._is_in_flight or _was_never_sent(error):
            self.refused()
        else:
            self.interrupt()

    def interrupt(self) -> None:
        """Leave it in doubt, unless it was answered: its reader left before the body's end."""
        if self._answering is None and self._has_key:
            self._recorder = None
            self._writer.reservations.release(self)  # nobody waits for it
            self._note(CallState.OPEN)
            self._free_key()

    def lose(self) -> None:
        """Let the next equal call have the answer: its reader was cancelled before he had it."""
        self._free_key()

    def _close(self) -> None:
        self._is_in_flight = False
        self._note(CallState.CLOSED)
        closed = self._writer.closed(CallRef(self.key, self._calls.job.token))
        self._calls.track_write(self.key, closed)
        closed.add_done_callback(self._settled)

    def _note(self, state: CallState) -> None:
        self._calls.record_state(self.key, state, self._rules.provider, self._model, self._resent)

    def _free_key(self) -> None:
        if self._has_key:
            self._has_key = False
            self._calls.free_key(self.key)


def _was_never_sent(error: BaseException) -> bool:
    if isinstance(error, AccountClosed | ProviderThrottled | ProviderUnavailable):
        return True  # it left, and was refused
    return any(kind.__name__ in _UNSENT_ERRORS for kind in type(error).__mro__)

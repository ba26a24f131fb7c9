# SPDX-License-Identifier: Apache-2.0
"""Writes the steps of paid calls to the store in batches, and counts their reservations.

Steps of one turn of the loop are written together. A store that is busy, full or unreachable is
retried until it answers, as with acknowledgements of jobs; a caller that is cancelled stops
nothing: its step is still written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from penstock.errors import StoreClosed, StoreError, StoreUnknown
from penstock.model.job import JobId
from penstock.model.journal import Answer, CallKey, CallRecord, CallRef, Intent, IntentVerdict
from penstock.model.spending import Account, Amount, Budget
from penstock.stores.protocol import JournalStore
from penstock.stores.retry import StoreRetry
from penstock.stores.store_future import Reply

POLL_SECONDS = 1.0  # between two looks of one that waits; other processes send no hint


class Reservations:
    """Owns what calls in flight have reserved of budgets here, and the order of who waits for it.

    Belongs to one loop.
    """

    def __init__(self) -> None:
        self.release_count = 0  # calls; whoever asked before may have an answer that is out of date
        self._held: dict[Hashable, tuple[tuple[str, ...], Amount]] = {}
        self._sums: dict[str, Amount] = {}  # by scope
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by the scope of a budget

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<Reservations of {len(self._held)} calls, {waiting} wait>"

    def hold(self, call: Hashable, scopes: tuple[str, ...], amount: Amount) -> None:
        """Add the reservation of a call; whoever waits next may try as well."""
        self.release(call)
        self._held[call] = scopes, amount
        for scope in scopes:
            self._adjust(scope, amount.micros, amount.tokens)
            self._wake(scope)

    def release(self, call: Hashable) -> None:
        """Remove the reservation of a call that is settled, or never will be; safe to repeat."""
        held = self._held.pop(call, None)
        if held is None:
            return
        self.release_count += 1
        scopes, amount = held
        for scope in scopes:
            self._adjust(scope, -amount.micros, -amount.tokens)
            self._wake(scope)

    def may_suffice(self, budget: Budget, left: Amount, asked: Amount) -> bool:
        """Return whether a call that does not fit now would fit if all of it came back."""
        held = self._sums.get(budget.scope)
        if held is None:
            return False
        return (budget.micros is None or asked.micros <= left.micros + held.micros) and (
            budget.tokens is None or asked.tokens <= left.tokens + held.tokens
        )

    async def wait_for_change(self, budget: Budget) -> None:
        """Wait until a reservation may have been released; a hint, for no longer than a moment."""
        queue = self._waiting.setdefault(budget.scope, deque())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            await asyncio.wait([future], timeout=POLL_SECONDS)
        finally:
            if future in queue:
                queue.remove(future)
            if not queue:
                self._waiting.pop(budget.scope, None)

    def _wake(self, scope: str) -> None:
        queue = self._waiting.get(scope)
        if queue:
            queue.popleft().set_result(None)

    def _adjust(self, scope: str, micros: int, tokens: int) -> None:
        before = self._sums.get(scope, Amount())
        after = Amount(before.micros + micros, before.tokens + tokens)
        if any(after):
            self._sums[scope] = after
        else:
            self._sums.pop(scope, None)


BATCH_MAX = 256  # steps of one call
BATCH_BYTES = 8 * 1024 * 1024  # of answers of one call, and one more
WAITS = "Paid calls have to wait"

log = logging.getLogger("penstock.journal")

S = TypeVar("S")
T = TypeVar("T")


class JournalWriter:
    """Owns the steps of calls that are not yet durable. Belongs to one loop."""

    def __init__(
        self, store: JournalStore, retry: StoreRetry, budgets: Sequence[Budget] = ()
    ) -> None:
        self._store = store
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        self.reservations = Reservations()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._intents: _Batch[Intent, IntentVerdict] = _Batch(
            self, lambda intents: store.intend(intents, budgets)
        )
        self._answers: _Batch[Answer, None] = _Batch(self, store.answered)
        self._closed: _Batch[CallRef, None] = _Batch(self, store.closed)

    def __repr__(self) -> str:
        return f"<JournalWriter, {len(self._tasks)} writes in progress>"

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────

    def intend(self, intent: Intent) -> asyncio.Future[IntentVerdict]:
        return self._intents.add(intent)

    def answered(self, answer: Answer) -> asyncio.Future[None]:
        return self._answers.add(answer, len(answer.body or b""))

    def closed(self, call: CallRef) -> asyncio.Future[None]:
        return self._closed.add(call)

    def held(self, calls: Sequence[CallRef]) -> asyncio.Task[None]:
        return self.spawn(self.persist(lambda: self._store.held(calls)))

    def reused(self, key: CallKey, accounts: Sequence[Account]) -> None:
        """Count a reused answer; nobody waits, and a count that the store does not take is lost."""
        self.spawn(self._count(key, accounts))

    # ── Questions ─────────────────────────────────────────────────────────────────────────────

    def calls(self, job: JobId) -> asyncio.Task[list[CallRecord]]:
        return self.spawn(self.persist(lambda: self._store.calls(job)))

    async def answer_of(self, key: CallKey) -> Answer | None:
        return await self.persist(lambda: self._store.answer_of(key))

    # ── How ───────────────────────────────────────────────────────────────────────────────────

    async def persist(self, ask: Callable[[], Reply[T]]) -> T:
        """Retry until the store answers; what it has taken already may be written again."""
        return await self._retry.until_answered(WAITS, ask)

    def spawn(self, work: Any) -> asyncio.Task[Any]:  # noqa: ANN401 (a coroutine)
        """Run it in the background; it is done even if nobody waits for it any more."""
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def drain(self) -> None:
        """Wait until everything is written; the caller bounds it."""
        while True:
            for lane in (self._intents, self._answers, self._closed):
                lane.flush()
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; a run ends by the acknowledgements

    async def _count(self, key: CallKey, accounts: Sequence[Account]) -> None:
        try:
            await self._retry.until_answered(
                WAITS, lambda: self._store.reused([key], accounts), repeatable=False
            )
        except StoreUnknown:
            return  # it may be counted already
        except StoreError as error:
            log.debug("A reused answer was not counted: %s", error)


class _Batch(Generic[S, T]):
    """Owns the steps of one kind that are written with the next turn of the loop."""

    def __init__(self, writer: JournalWriter, write: Callable[[list[S]], Reply[Any]]) -> None:
        self._writer = writer
        self._write = write  # answers with one value for each, or with None
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[S, asyncio.Future[T]]] = []
        self._bytes = 0
        self._is_due = False

    def add(self, step: S, size: int = 0) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(_retrieve_exception)
        self._waiting.append((step, future))
        self._bytes += size
        if len(self._waiting) >= BATCH_MAX or self._bytes >= BATCH_BYTES:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush_due)
        return future

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            batch, self._waiting, self._bytes = self._waiting, [], 0
            self._writer.spawn(self._send(batch))

    def _flush_due(self) -> None:
        self._is_due = False
        self.flush()

    async def _send(self, batch: list[tuple[S, asyncio.Future[T]]]) -> None:
        steps = [step for step, _ in batch]
        try:
            answers = await self._writer.persist(lambda: self._write(steps))
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(_writer_error(error))
            raise
        for (_, future), answer in zip(batch, answers or [None] * len(batch), strict=True):
            if not future.done():
                future.set_result(answer)


def _writer_error(error: BaseException) -> BaseException:
    """Return the error for callers: the end of the loop is not a cancellation of theirs."""
    if isinstance(error, asyncio.CancelledError):
        return StoreClosed("The run has ended before its journal was written.")
    return error


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark its exception as seen, since its caller may have been cancelled."""
    if not future.cancelled():
        future.exception()

# SPDX-License-Identifier: Apache-2.0
"""Clients whose calls cost money, without a run: one job, and as many attempts as wanted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from penstock.clock import Clock, SystemClock
from penstock.ids import SeededIds
from penstock.model.job import JobId, LeasedJob, NewJob
from penstock.model.journal import CallRecord, CallState
from penstock.model.spending import Budget
from penstock.requests import attempt_context
from penstock.requests.attempt_context import AttemptContext
from penstock.requests.journal.attempt_calls import AttemptCalls
from penstock.requests.journal.paid_policy import PaidPolicy
from penstock.requests.journal.replay import PaidCalls
from penstock.requests.journal.writer import JournalWriter
from penstock.stores.retry import StoreRetry
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from tests.outbound_run import PROVIDER, Run, outbound_run

OPERATIONS = ("intend", "answered", "closed", "held", "reused", "calls", "answer_of")

log = logging.getLogger("penstock.test")


def slow(store: InProcessStore, seconds: float) -> None:
    """Let what concerns calls take time: half of it before it is done, half after."""
    loop = asyncio.get_running_loop()
    for name in OPERATIONS:
        setattr(store, name, _later(loop, getattr(store, name), seconds / 2))


def _later(loop: asyncio.AbstractEventLoop, inner: Any, seconds: float) -> Any:
    def asked(*args: Any) -> Reply[Any]:
        reply: Reply[Any] = Reply()

        def do() -> None:
            try:
                value = inner(*args).result()
            except Exception as error:
                loop.call_later(seconds, reply.refuse, error)
            else:
                loop.call_later(seconds, reply.resolve, value)

        loop.call_later(seconds, do)
        return reply

    return asked


class PaidRun:
    """What a test needs: clients, the journal, and attempts of one job."""

    def __init__(self, run: Run, store: InProcessStore, writer: JournalWriter) -> None:
        self.clients = run.clients
        self.admission = run.admission
        self.run = run
        self.store = store
        self.writer = writer
        self._calls = store.calls  # at once, however slow the others are
        self.tokens = 0

    @contextlib.contextmanager
    def attempt(self) -> Iterator[AttemptCalls]:
        """What is called inside belongs to the job's next lease."""
        self.tokens += 1
        own = AttemptContext("job")
        job = LeasedJob(JobId(1), self.tokens, "job", "task", "g", 0, "[]", due_at=7)
        own.calls = AttemptCalls(job)
        before = attempt_context.current.set(own)
        try:
            yield own.calls
        finally:
            attempt_context.current.reset(before)

    def records(self) -> list[CallRecord]:
        return InProcessStore.calls(self.store, JobId(1)).result()

    def states(self) -> list[CallState]:
        return [record.state for record in self.records()]


@contextlib.asynccontextmanager
async def paid_run(
    base_url: str = "",
    *,
    rules: PaidPolicy | None = None,
    clock: Clock | None = None,
    journal_seconds: float = 0.0,
    budgets: Sequence[Budget] = (),
    prepare: Callable[[InProcessStore], None] | None = None,
    **options: Any,
) -> AsyncIterator[PaidRun]:
    """Clients of one provider that costs money, with a journal in memory."""
    clock = clock or SystemClock()
    store = InProcessStore(clock)
    store.enqueue([NewJob(key="job", task="task", payload="[]", group="g")]).result()
    if journal_seconds:
        slow(store, journal_seconds)
    if prepare is not None:
        prepare(store)
    writer = JournalWriter(store, StoreRetry(log, clock, SeededIds(2).random), budgets)
    rules = rules or PaidPolicy(PROVIDER)
    paid = PaidCalls(rules, writer, clock, run_id="run-1", store="memory:test")
    async with outbound_run(base_url, clock=clock, paid=paid, **options) as run:
        try:
            yield PaidRun(run, store, writer)
        finally:
            await writer.drain()

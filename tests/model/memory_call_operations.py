# SPDX-License-Identifier: Apache-2.0
"""What does the memory store do for calls that cost money, and for the record of runs?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.model.job import JobId
from penstock.model.journal import (
    Answer,
    CallFigures,
    CallKey,
    CallRecord,
    CallRef,
    Intent,
    IntentVerdict,
    NewestCall,
)
from penstock.model.run import RunPart
from penstock.model.spending import Account, Balance, Budget
from penstock.model.views import Progress
from penstock.stores.protocol import check_run
from tests.model.memory_calls import Calls
from tests.model.memory_operation import Operated, operation
from tests.model.memory_rows import Tables
from tests.model.memory_runs import Runs


class CallOperations(Operated):
    """Owns the journal and the record of runs."""

    def __init__(self, clock: Clock, tables: Tables) -> None:
        super().__init__(clock, tables)
        self._calls = Calls(tables)
        self._runs = Runs()

    @operation
    def intend(self, intents: Sequence[Intent], budgets: Sequence[Budget]) -> list[IntentVerdict]:
        return self._calls.intend(intents, budgets, self._now())

    @operation
    def answered(self, answers: Sequence[Answer]) -> None:
        self._calls.answered(answers, self._now())

    @operation
    def closed(self, calls: Sequence[CallRef]) -> None:
        self._calls.closed(calls, self._now())

    @operation
    def held(self, calls: Sequence[CallRef]) -> None:
        self._calls.held(calls, self._now())

    @operation
    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account]) -> None:
        self._calls.reused(keys, accounts, self._now())

    @operation
    def calls(self, job: JobId) -> list[CallRecord]:
        return self._calls.of_job(job)

    @operation
    def newest_calls(self, limit: int) -> list[NewestCall]:
        return self._calls.newest(limit)

    @operation
    def answer_of(self, key: CallKey) -> Answer | None:
        return self._calls.answer_of(key)

    @operation
    def call_figures(self, job: JobId | None) -> CallFigures:
        return self._calls.figures(job)

    @operation
    def balances(self, spans: Sequence[str]) -> list[Balance]:
        return self._calls.balances(spans)

    @operation
    def reset_totals(self, app: str, scope: str | None) -> list[Balance]:
        return self._calls.reset_totals(app, scope, self._now())

    @operation
    def prune_calls(self, before: int, after: JobId) -> tuple[Progress, JobId]:
        return self._calls.prune(before, after, self._now())

    @operation
    def save_run(self, part: RunPart) -> None:
        check_run(part)
        going_on = {worker.info.run_id for worker in self._tables.workers.values()}
        for gone in self._runs.save(part, going_on):
            self._calls.forget_run(gone)

    @operation
    def run_parts(self, run_id: str | None) -> list[RunPart]:
        return self._runs.parts(run_id)

    @operation
    def runs(self, limit: int) -> list[str]:
        return self._runs.newest(limit)

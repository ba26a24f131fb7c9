# SPDX-License-Identifier: Apache-2.0
"""What does the memory store keep of calls that cost money, and of what they cost?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from penstock.model.job import JobId, JobState
from penstock.model.journal import (
    Answer,
    CallFigures,
    CallKey,
    CallRecord,
    CallRef,
    CallState,
    Intent,
    IntentVerdict,
)
from penstock.model.spending import Account, Amount, Balance, Budget
from penstock.model.views import Progress
from penstock.stores.call_rows import NOTHING, ZERO, CallRow, Change, Sums
from penstock.stores.call_rules import CallBook
from penstock.stores.journal import CALLS_SLICE
from penstock.stores.memory_index import Ordered
from penstock.stores.memory_rows import Tables
from penstock.stores.row_state import RowState


class Calls:
    """Owns calls, answers and accounts. Does not know what an end does to a job."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows: dict[CallKey, CallRow] = {}
        self._of_job: dict[JobId, dict[CallKey, None]] = {}
        self._jobs: Ordered[JobId] = Ordered()  # those with calls
        self._answers: dict[CallKey, Answer] = {}
        self._sums = Sums()  # all of them, ever
        self._last_no = 0

    def _book(self, now: int) -> CallBook:
        return CallBook(self._rows, self._sums, now)

    def _unkeep(self, book: CallBook) -> None:
        for row in book.unkept:
            del self._answers[row.key]

    def intend(
        self, intents: Sequence[Intent], budgets: Sequence[Budget], now: int
    ) -> list[IntentVerdict]:
        book = self._book(now)
        verdicts = book.intend(intents, budgets, lambda _: NOTHING, self._tables.jobs.keys())
        for key, row in book.changed.items():
            if not row.no:
                self._last_no += 1
                row.no = self._last_no
                if key.job not in self._of_job:
                    self._jobs.add(key.job)
                self._of_job.setdefault(key.job, {})[key] = None
        self._unkeep(book)
        return verdicts

    def answered(self, answers: Sequence[Answer], now: int) -> None:
        for answer in self._book(now).answered(answers):
            self._answers[answer.key] = answer

    def closed(self, calls: Sequence[CallRef], now: int) -> None:
        self._book(now).closed(calls)

    def held(self, calls: Sequence[CallRef], now: int) -> None:
        self._book(now).held(calls)

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account], now: int) -> None:
        self._book(now).reused(keys, accounts)

    def spoil(self, keys: Sequence[CallKey], now: int) -> None:
        book = self._book(now)
        book.spoil(keys)
        self._unkeep(book)

    def forget(self, job: JobId) -> int:
        """Forget the calls of a job; how many."""
        keys = self._of_job.pop(job, {})
        for key in keys:
            self._sums.forget(self._rows.pop(key))
            self._answers.pop(key, None)
        if keys:
            self._jobs.remove(job)
        return len(keys)

    def prune(self, before: int, after: JobId) -> tuple[Progress, JobId]:
        seen = list(islice(self._jobs.above(after), CALLS_SLICE))
        count = sum(self.forget(job) for job in seen if self._ended_before(job, before))
        return Progress(count, more=bool(seen)), seen[-1] if seen else after

    def _ended_before(self, job: JobId, before: int) -> bool:
        row = self._tables.jobs.get(job)
        return row is None or (row.finished_at is not None and row.finished_at < before)

    # Reading

    def of_job(self, job: JobId) -> list[CallRecord]:
        return [row.as_record() for row in self._sorted(self._of_job.get(job, ()))]

    def _sorted(self, keys: Iterable[CallKey]) -> list[CallRow]:
        return sorted((self._rows[key] for key in keys), key=lambda row: (row.begun_at, row.no))

    def answer_of(self, key: CallKey) -> Answer | None:
        return self._answers.get(key)

    def figures(self, job: JobId | None) -> CallFigures:
        if job is None:
            figures = Counter(self._sums.figures)
            return CallFigures(
                bought=figures["bought"],
                reused=figures["reused"],
                in_doubt=figures["unended"] - sum(map(self._in_hand, self._running())),
                spent=Amount(figures["micros"], figures["tokens"]),
            )
        rows = [self._rows[key] for key in self._of_job.get(job, ())]
        micros = sum(row.used.micros for row in rows)
        return CallFigures(
            bought=sum(row.bought for row in rows),
            reused=sum(row.reused for row in rows),
            in_doubt=sum(row.is_unended and not self._in_hand(row) for row in rows),
            spent=Amount(micros, sum(row.used.tokens for row in rows)),
        )

    def _running(self) -> Iterator[CallRow]:
        for job in self._tables.by_state[JobState.IN_PROGRESS]:
            for key in self._of_job.get(job, ()):
                yield self._rows[key]

    def _in_hand(self, row: CallRow) -> bool:
        """Has the present lease of its job begun this call, and not ended it?"""
        job = self._tables.jobs.get(row.key.job)
        runs = job is not None and job.state is RowState.IN_PROGRESS and job.token == row.token
        return runs and row.is_unended

    def balances(self, spans: Sequence[str]) -> list[Balance]:
        wanted = set(spans)
        return [
            as_balance(account, change)
            for account, change in sorted(self._sums.accounts.items())
            if account.span in wanted
        ]

    def forget_run(self, run_id: str) -> None:
        """Forget what a run spent, but for accounts of which something is still reserved."""
        for account in [x for x in self._sums.accounts if x.span == run_id]:
            change = self._sums.accounts[account]
            if not (change.reserved_micros or change.reserved_tokens):
                del self._sums.accounts[account]

    def broken(self) -> list[str]:
        return [*self._contradictions()]

    def _contradictions(self) -> Iterator[str]:
        counted = Sums()
        for row in self._rows.values():
            name = f"call {row.no} of job {row.key.job} ({row.state})"
            if (row.state is CallState.ANSWERED) != (row.key in self._answers):
                yield f"{name} has an answer, or none, though it should not"
            if not row.is_unended and row.reserved != ZERO:
                yield f"{name} has a reserve though it has ended"
            if row.is_unended != (row.ended_at is None):
                yield f"{name} ended at {row.ended_at}"
            if row.is_unended:
                counted.reserve(row, +1)
        for account in self._sums.accounts.keys() | counted.accounts.keys():
            kept = self._sums.accounts.get(account, NOTHING)
            wanted = counted.accounts.get(account, NOTHING)
            if _reserved(kept) != _reserved(wanted):
                yield f"{account} has {_reserved(kept)} reserved, its calls {_reserved(wanted)}"
        rows = self._rows.values()
        figures = Counter(
            bought=sum(row.bought for row in rows),
            reused=sum(row.reused for row in rows),
            micros=sum(row.used.micros for row in rows),
            tokens=sum(row.used.tokens for row in rows),
            unended=sum(row.is_unended for row in rows),
        )
        if figures != Counter(self._sums.figures):
            yield f"figures of calls: kept {self._sums.figures}, counted {dict(figures)}"


def as_balance(account: Account, change: Change) -> Balance:
    return Balance(
        account=account,
        spent=Amount(change.spent_micros, change.spent_tokens),
        reserved=_reserved(change),
        bought=change.bought,
        reused=change.reused,
    )


def _reserved(change: Change) -> Amount:
    return Amount(change.reserved_micros, change.reserved_tokens)

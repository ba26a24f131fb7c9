# SPDX-License-Identifier: Apache-2.0
"""What does the memory store keep of calls that cost money, and of what they cost?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from msgspec.structs import replace

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
    NewestCall,
)
from penstock.model.spending import (
    DAY_MICROS,
    TOTAL_SPAN,
    Account,
    Amount,
    Balance,
    Budget,
    Period,
    utc_day,
)
from penstock.model.views import Progress
from penstock.stores.call_rules import NOTHING, ZERO, CallBook, CallRow, Change, Sums
from penstock.stores.protocol import CALLS_SLICE, DAYS_KEPT
from penstock.stores.sql.row_state import RowState
from tests.model.memory_index import Ordered
from tests.model.memory_rows import Tables


class Calls:
    """Owns calls, answers and accounts. Does not know what an end does to a job."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows: dict[CallKey, CallRow] = {}
        self._of_job: dict[JobId, dict[CallKey, None]] = {}
        self._jobs: Ordered[JobId] = Ordered()  # those with calls
        self._answers: dict[CallKey, Answer] = {}
        self._accounts: dict[Account, Change] = {}
        self._figures: Counter[str] = Counter()
        self._last_no = 0

    @contextmanager
    def _step(self, now: int) -> Iterator[CallBook]:
        """One step; what it changes in the sums is counted at its end."""
        sums = Sums()
        book = CallBook(self._rows, sums, now)
        yield book
        for row in book.unkept:
            del self._answers[row.key]
        self._count(sums)

    def _count(self, sums: Sums) -> None:
        for account, change in sums.by_account().items():
            self._accounts[account] = self._accounts.get(account, NOTHING).plus(change)
        self._figures.update(sums.figures)

    def intend(
        self, intents: Sequence[Intent], budgets: Sequence[Budget], now: int
    ) -> list[IntentVerdict]:
        jobs = self._tables.jobs
        tokens = {one.key.job: jobs[one.key.job].token for one in intents if one.key.job in jobs}
        with self._step(now) as book:
            verdicts = book.intend(
                intents, budgets, lambda account: self._accounts.get(account, NOTHING), tokens
            )
        for key, row in book.changed.items():
            if not row.no:
                self._last_no += 1
                row.no = self._last_no
                if key.job not in self._of_job:
                    self._jobs.add(key.job)
                self._of_job.setdefault(key.job, {})[key] = None
        return verdicts

    def answered(self, answers: Sequence[Answer], now: int) -> None:
        with self._step(now) as book:
            for answer in book.answered(answers):
                self._answers[answer.key] = replace(answer, token=0, is_estimated=False)

    def closed(self, calls: Sequence[CallRef], now: int) -> None:
        with self._step(now) as book:
            book.closed(calls)

    def held(self, calls: Sequence[CallRef], now: int) -> None:
        with self._step(now) as book:
            book.held(calls)

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account], now: int) -> None:
        with self._step(now) as book:
            book.reused(keys, accounts)

    def spoil(self, keys: Sequence[CallKey], now: int) -> None:
        with self._step(now) as book:
            book.spoil(keys)

    def forget(self, job: JobId) -> int:
        """Forget the calls of a job; how many."""
        keys = self._of_job.pop(job, {})
        sums = Sums()
        for key in keys:
            row = self._rows.pop(key)
            if row.is_unended:
                sums.abandon(row)
            counts = row.bought, row.reused, *row.used, row.resent, row.estimated
            sums.forget((*counts, row.doubts, *row.doubt))
            self._answers.pop(key, None)
        self._count(sums)
        if keys:
            self._jobs.remove(job)
        return len(keys)

    def prune(self, before: int, after: JobId, now: int) -> tuple[Progress, JobId]:
        seen = list(islice(self._jobs.above(after), CALLS_SLICE))
        if not seen:
            first = utc_day(now - DAYS_KEPT * DAY_MICROS)
            self._forget_accounts(lambda one: one.period is Period.DAY and one.span < first)
        count = sum(self.forget(job) for job in seen if self._ended_before(job, before))
        return Progress(count, more=bool(seen)), seen[-1] if seen else after

    def _ended_before(self, job: JobId, before: int) -> bool:
        row = self._tables.jobs.get(job)
        return row is None or (row.finished_at is not None and row.finished_at < before)

    # Reading

    def of_job(self, job: JobId) -> list[CallRecord]:
        return [row.as_record() for row in self._sorted(self._of_job.get(job, ()))]

    def newest(self, limit: int) -> list[NewestCall]:
        rows = sorted(self._rows.values(), key=lambda row: -row.no)[:limit]
        return [
            NewestCall(
                job.new.key if (job := self._tables.jobs.get(row.key.job)) else None,
                row.place.app,
                row.is_unended and self._in_hand(row),
                row.as_record(),
            )
            for row in rows
        ]

    def _sorted(self, keys: Iterable[CallKey]) -> list[CallRow]:
        return sorted((self._rows[key] for key in keys), key=lambda row: (row.begun_at, row.no))

    def answer_of(self, key: CallKey) -> Answer | None:
        return self._answers.get(key)

    def figures(self, job: JobId | None) -> CallFigures:
        if job is None:
            figures = self._figures
            in_hand = list(filter(self._in_hand, self._running()))
            micros = figures["open_micros"] - sum(row.reserved.micros for row in in_hand)
            tokens = figures["open_tokens"] - sum(row.reserved.tokens for row in in_hand)
            return CallFigures(
                bought=figures["bought"],
                reused=figures["reused"],
                in_doubt=figures["doubts"] + figures["unended"] - len(in_hand),
                spent=Amount(figures["micros"], figures["tokens"]),
                resent=figures["resent"],
                estimated=figures["estimated"],
                doubt=Amount(figures["doubt_micros"] + micros, figures["doubt_tokens"] + tokens),
            )
        rows = [self._rows[key] for key in self._of_job.get(job, ())]
        doubtful = [row for row in rows if row.is_unended and not self._in_hand(row)]
        doubts = [*(row.doubt for row in rows), *(row.reserved for row in doubtful)]
        return CallFigures(
            bought=sum(row.bought for row in rows),
            reused=sum(row.reused for row in rows),
            in_doubt=sum(row.doubts for row in rows) + len(doubtful),
            spent=_sum(row.used for row in rows),
            resent=sum(row.resent for row in rows),
            estimated=sum(row.estimated for row in rows),
            doubt=_sum(doubts),
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
        wanted, in_hand = set(spans), Sums()
        for row in filter(self._in_hand, self._running()):
            in_hand.reserve(row)
        held = in_hand.by_account()
        return [
            change.as_balance(account, held.get(account, NOTHING).reserved)
            for account, change in sorted(self._accounts.items())
            if account.span in wanted
        ]

    def reset_totals(self, app: str, scope: str | None, now: int) -> list[Balance]:
        doubtful = {
            key: row
            for key, row in self._rows.items()
            if row.is_unended and row.place.app == app and not self._in_hand(row)
        }
        sums = Sums()
        CallBook(doubtful, sums, now).doubt()
        self._count(sums)
        found = [
            change.as_balance(account, change.reserved)
            for account, change in sorted(self._accounts.items())
            if account.span == TOTAL_SPAN and account.app == app and scope in (None, account.scope)
        ]
        for one in found:
            kept = Change(0, 0, *one.reserved)
            self._accounts[one.account] = kept
        return found

    def forget_run(self, run_id: str) -> None:
        """Forget what a run spent, but for accounts of which something is still reserved."""
        self._forget_accounts(lambda one: one.period is Period.RUN and one.span == run_id)

    def _forget_accounts(self, is_old: Callable[[Account], bool]) -> None:
        for account in [one for one in self._accounts if is_old(one)]:
            if self._accounts[account].reserved == ZERO:
                del self._accounts[account]

    def rename(self, old: str, new: str) -> None:
        """What an app has spent counts under its new name."""
        for row in self._rows.values():
            if row.place.app == old:
                row.place = row.place._replace(app=new)
        for account in [one for one in self._accounts if one.app == old]:
            ours = account._replace(app=new)
            change = self._accounts.pop(account)
            self._accounts[ours] = self._accounts.get(ours, NOTHING).plus(change)

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
                counted.reserve(row)
        wanted = counted.by_account()
        for account in self._accounts.keys() | wanted.keys():
            kept = self._accounts.get(account, NOTHING).reserved
            held = wanted.get(account, NOTHING).reserved
            if kept != held:
                yield f"{account} has {kept} reserved, its calls {held}"
        rows = self._rows.values()
        figures = Counter(
            bought=sum(row.bought for row in rows),
            reused=sum(row.reused for row in rows),
            micros=sum(row.used.micros for row in rows),
            tokens=sum(row.used.tokens for row in rows),
            unended=sum(row.is_unended for row in rows),
            resent=sum(row.resent for row in rows),
            estimated=sum(row.estimated for row in rows),
            doubts=sum(row.doubts for row in rows),
            doubt_micros=sum(row.doubt.micros for row in rows),
            doubt_tokens=sum(row.doubt.tokens for row in rows),
            open_micros=sum(row.reserved.micros for row in rows),
            open_tokens=sum(row.reserved.tokens for row in rows),
        )
        if figures != self._figures:
            yield f"figures of calls: kept {self._figures}, counted {figures}"


def _sum(amounts: Iterable[Amount]) -> Amount:
    found = list(amounts)
    return Amount(sum(one.micros for one in found), sum(one.tokens for one in found))

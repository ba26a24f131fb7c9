# SPDX-License-Identifier: Apache-2.0
"""What must any store do for calls that cost money, and for the record of runs?

Written by the same writer as everything else, in the same transactions (docs/design/journal.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.job import JobId
from penstock.model.journal import (
    Answer,
    CallFigures,
    CallKey,
    CallRecord,
    CallRef,
    Intent,
    IntentVerdict,
)
from penstock.model.run import RunPart
from penstock.model.spending import Account, Balance, Budget
from penstock.model.views import Progress
from penstock.stores.reply import Reply

CALLS_SLICE = 500  # jobs whose calls one slice of prune_calls looks at
RUNS_KEPT = 200  # the newest; older ones are forgotten with the next that is saved


class JournalStore(Protocol):
    """Calls that cost money: what was begun, what was answered, what it cost."""

    def intend(
        self, intents: Sequence[Intent], budgets: Sequence[Budget]
    ) -> Reply[list[IntentVerdict]]:
        """Write down that calls are about to be sent, and reserve their estimates.

        One verdict for each, in order; the first ones may use up what later ones need. A budget is
        exceeded when what is spent, reserved and asked for is more than it allows; then nothing of
        that intent is written. A call that exists already is open again under the new token, and
        what it had reserved is replaced; one of a greater token is stale.
        """
        ...

    def answered(self, answers: Sequence[Answer]) -> Reply[None]:
        """Keep answers, and settle what they cost; not fenced, since they are paid for.

        An answer to a call that has one already is not kept, but counted and paid; unless it is of
        the same token: then it was told before, and nothing changes.
        """
        ...

    def closed(self, calls: Sequence[CallRef]) -> Reply[None]:
        """Calls ended without an answer and nothing was bought; their reserve is given back.

        One that is not open, or not under this token, stays as it is.
        """
        ...

    def held(self, keys: Sequence[CallKey]) -> Reply[None]:
        """Calls in doubt shall be looked at by a person."""
        ...

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account]) -> Reply[None]:
        """Answers were taken from the journal: count it, in the calls and in the accounts."""
        ...

    def calls(self, job: JobId) -> Reply[list[CallRecord]]:
        """Every call of a job, in the order of their beginning, without answers."""
        ...

    def answer_of(self, key: CallKey) -> Reply[Answer | None]:
        """The answer of a call in state `answered`."""
        ...

    def call_figures(self, job: JobId | None) -> Reply[CallFigures]:
        """Sums over the calls of a job, or of all that are kept; from counters, never a scan.

        In doubt are open and held calls whose lease is not the job's present one.
        """
        ...

    def balances(self, spans: Sequence[str]) -> Reply[list[Balance]]:
        """All accounts of some runs and days."""
        ...

    def prune_calls(self, before: int, after: JobId) -> Reply[tuple[Progress, JobId]]:
        """Forget the calls of one slice of jobs that ended before a time; where the next starts."""
        ...


class RunStore(Protocol):
    """What runs tell of themselves when they are over, and now and again before."""

    def save_run(self, part: RunPart) -> Reply[None]:
        """Keep what one worker of a run says; its last word counts."""
        ...

    def run_parts(self, run_id: str | None) -> Reply[list[RunPart]]:
        """Of a run, or of the one that was saved last."""
        ...

    def runs(self, limit: int) -> Reply[list[str]]:
        """Run ids, the one that was saved last first."""
        ...

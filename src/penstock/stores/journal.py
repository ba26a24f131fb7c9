# SPDX-License-Identifier: Apache-2.0
"""What must any store do for calls that cost money, and for the record of runs?

Written by the same writer as everything else, in the same transactions (docs/design/journal.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import UsageError
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
from penstock.model.run_part import RUN_BYTES_MAX, RunPart
from penstock.model.spending import Account, Balance, Budget
from penstock.model.views import Progress
from penstock.stores.store_future import Reply

CALLS_SLICE = 500  # jobs whose calls one slice of prune_calls looks at
CALLS_DROPPED = 5_000  # calls that one slice of purge or prune_calls forgets at most
DAYS_KEPT = 400  # of UTC, whose accounts are kept; prune_calls forgets older ones at its end
#: The newest; older ones that are over are forgotten with the next that is saved, with accounts.
RUNS_KEPT = 200


def check_run(part: RunPart) -> None:
    """Refuse a document that is too large to be kept."""
    size = len(part.document.encode())
    if size > RUN_BYTES_MAX:
        raise UsageError(
            f"The record of the run {part.run_id!r} has {size:,} bytes, more than the "
            f"{RUN_BYTES_MAX:,} that are kept; leave out what is not needed."
        )


class JournalStore(Protocol):
    """Calls that cost money: what was begun, what was answered, what it cost."""

    def intend(
        self, intents: Sequence[Intent], budgets: Sequence[Budget]
    ) -> Reply[list[IntentVerdict]]:
        """Write down that calls are about to be sent, and reserve their estimates.

        One verdict for each, in order; the first ones may use up what later ones need. A budget is
        exceeded when what is spent, reserved and asked for is more than it allows; then nothing of
        that intent is written. A call that exists already is open again under the new token, and
        what it had reserved is replaced, and an answer that it had is forgotten; one of a greater
        token is stale, and so is one of a job that nobody knows. How often it was sent again grows
        to what the intent says, so one that is told twice counts once.
        """
        ...

    def answered(self, answers: Sequence[Answer]) -> Reply[None]:
        """Keep answers, and settle what they cost; not fenced, since they are paid for.

        An answer to a call that has one already is not kept, but counted and paid; nor is one to
        a call that a later lease has begun. One without a body, or larger than BODY_BYTES_MAX, is
        paid and spoiled at once. One that was told before, under the same token, changes nothing.
        A call that is forgotten has no accounts any more: nothing is done.
        """
        ...

    def closed(self, calls: Sequence[CallRef]) -> Reply[None]:
        """Calls ended without an answer and nothing was bought; their reserve is given back.

        Said under the token of the lease that made them: nothing is done to one that a later lease
        has begun, nor to one that is not open or held.
        """
        ...

    def held(self, calls: Sequence[CallRef]) -> Reply[None]:
        """Open calls in doubt shall be looked at by a person; under the token of who says so."""
        ...

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account]) -> Reply[None]:
        """Answers were taken from the journal: count it, in the calls and in the accounts.

        An account counts as often as it is named: name those of every call.
        """
        ...

    def calls(self, job: JobId) -> Reply[list[CallRecord]]:
        """Every call of a job, in the order of their beginning, without answers.

        One that was begun again stands where it was begun last.
        """
        ...

    def answer_of(self, key: CallKey) -> Reply[Answer | None]:
        """The answer of a call in state `answered`; how it was settled is not told again."""
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
        """Forget the calls of one slice of jobs that ended before a time; where the next starts.

        Of jobs that nobody knows as well. Counts calls; repeat while it says `more`. What was spent
        on days long ago is forgotten in the end, but for what a call still has reserved then.
        """
        ...


class RunStore(Protocol):
    """What runs tell of themselves when they are over, and now and again before."""

    def save_run(self, part: RunPart) -> Reply[None]:
        """Keep what one worker of a run says; its last word counts.

        A document larger than RUN_BYTES_MAX is refused with UsageError, and nothing is changed.
        """
        ...

    def run_parts(self, run_id: str | None) -> Reply[list[RunPart]]:
        """Of a run, or of the one that was saved last."""
        ...

    def runs(self, limit: int) -> Reply[list[str]]:
        """Run ids, the one that was saved last first."""
        ...

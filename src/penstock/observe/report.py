# SPDX-License-Identifier: Apache-2.0
"""What has a run done, and what did it cost?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import JobState
from penstock.model.spending import ALL, Balance, Period
from penstock.observe.explain import RunFacts

ENDS = (JobState.DONE, JobState.SKIPPED, JobState.ERROR, JobState.CANCELLED)


class Spent(msgspec.Struct, frozen=True):
    """What one scope has spent in a run."""

    scope: str  # `all`, or a provider, model or task
    usd_micros: int
    tokens: int
    reserved_usd_micros: int
    reserved_tokens: int
    bought: int
    reused: int
    resent: int  # calls in doubt that were sent again
    estimated: int  # answers that did not tell all that they cost


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers."""

    run_id: str
    is_over: bool
    workers: int
    wall_seconds: float
    ended: dict[JobState, int]  # jobs that ended for good in this run, every end
    per_second: float
    retries: int
    put_back: int  # attempts that a provider refused
    requests: int
    refused: int
    failed: int
    tokens: int
    in_doubt: int  # calls of all runs of which nobody knows whether they were answered
    spent: tuple[Spent, ...]  # by scope, all first; empty: nothing was paid


def report_of(
    facts: RunFacts,
    ended_in_run: dict[JobState, int],
    balances: Sequence[Balance],
    in_doubt: int,
    now_at: int,
) -> RunReport:
    """The report of a run, from what its workers left and what the store has counted until now."""
    ended = {state: ended_in_run.get(state, 0) for state in ENDS}
    total, wall = sum(ended.values()), facts.wall_seconds
    if not facts.is_over:  # its workers told of themselves some seconds ago, jobs ended since
        wall = max(wall, (now_at - facts.began_at) / MICROSECONDS)
    own = [
        balance
        for balance in balances
        if (balance.account.period, balance.account.span) == (Period.RUN, facts.run_id)
    ]
    own.sort(key=lambda one: (one.account.scope != ALL, -one.spent.micros, one.account.scope))
    return RunReport(
        run_id=facts.run_id,
        is_over=facts.is_over,
        workers=facts.workers,
        wall_seconds=wall,
        ended=ended,
        per_second=total / wall if wall else 0.0,
        retries=facts.retries,
        put_back=facts.put_back,
        requests=sum(one.requests for one in facts.models),
        refused=sum(one.refused for one in facts.models),
        failed=sum(one.failed for one in facts.models),
        tokens=sum(one.tokens for one in facts.models),
        in_doubt=in_doubt,
        spent=tuple(_spent(one) for one in own),
    )


def _spent(one: Balance) -> Spent:
    return Spent(
        one.account.scope,
        one.spent.micros,
        one.spent.tokens,
        one.reserved.micros,
        one.reserved.tokens,
        one.bought,
        one.reused,
        one.resent,
        one.estimated,
    )

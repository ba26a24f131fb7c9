# SPDX-License-Identifier: Apache-2.0
"""What has a run done, and what did it cost?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import JobState
from penstock.model.run import AsyncCapacityPlan, CapacityFact, CapacityValue, RunPart
from penstock.model.spending import ALL, Balance, Period
from penstock.observe.explain import RunFacts, WorkerPlace, readable_parts, worker_places

__all__ = ["AsyncCapacityPlan", "CapacityValue", "capacity_of", "sections"]

SECTIONS = ("configured", "runtime_snapshot", "observed_maxima")


def capacity_of(parts: Sequence[RunPart]) -> AsyncCapacityPlan | None:
    """The plan of a run; None if no worker has left one."""
    plans = [plan for place in worker_places(readable_parts(parts)) if (plan := _plan_of(place))]
    if not plans:
        return None
    return AsyncCapacityPlan(
        plans[0].configured,
        _added(plan.runtime_snapshot for plan in plans),
        _added(plan.observed_maxima for plan in plans),
    )


def _plan_of(place: WorkerPlace) -> AsyncCapacityPlan | None:
    """Of those who had a place one after the other: the last, and the most of all."""
    plans = [document.capacity for document in place.documents]
    plans = [plan for plan in plans if plan.configured or plan.observed_maxima]
    if not plans:
        return None
    most: dict[str, CapacityValue] = {}
    for name, one in (entry for plan in plans for entry in plan.observed_maxima.items()):
        known = most.get(name)
        if known is None or known.value is None:
            most[name] = one
        elif one.value is not None:
            most[name] = msgspec.structs.replace(known, value=_most(known.value, one.value))
    return msgspec.structs.replace(plans[-1], observed_maxima=most)


def sections(plan: AsyncCapacityPlan) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """For people, by section: name, value, and where it is from or why there is none."""
    for section in SECTIONS:
        values: dict[str, CapacityValue] = getattr(plan, section)
        yield section, [(name, _shown(one.value), _from(one)) for name, one in values.items()]


def _added(sections: Iterable[dict[str, CapacityValue]]) -> dict[str, CapacityValue]:
    """The same values of several workers, added up; whoever has none takes nothing away."""
    found: dict[str, CapacityValue] = {}
    counts: dict[str, int] = {}
    for values in sections:
        for name, one in values.items():
            known = found.get(name)
            if known is None or known.value is None:
                found[name] = one
                counts[name] = 0 if one.value is None else 1
            elif one.value is not None:
                counts[name] += 1
                source = f"{counts[name]} workers, added up"
                value = _sum(known.value, one.value)
                found[name] = msgspec.structs.replace(known, value=value, source=source)
    return found


def _sum(one: CapacityFact, other: CapacityFact) -> CapacityFact:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in [*one, *other]}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return one


def _most(one: CapacityFact, other: CapacityFact) -> CapacityFact:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in [*one, *other]}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return max(one, other)
    return one


def _shown(value: CapacityFact) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:,g}" for name, number in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int | float) else value


def _from(one: CapacityValue) -> str:
    if one.missing_reason is not None:
        return one.missing_reason
    return one.source if one.fallback_from is None else f"{one.source} of {one.fallback_from}"


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

# SPDX-License-Identifier: Apache-2.0
"""The report of a run (ends, rate, requests, spending) and its capacity plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import JobState
from penstock.model.run import AsyncCapacityPlan, CapacityFact, CapacityValue, RunPart
from penstock.model.spending import ALL, Balance, Period
from penstock.observe.explain import RunFacts, WorkerPlace, readable_parts, worker_places

SECTIONS = ("configured", "runtime_snapshot", "observed_maxima")
ENDS = (JobState.DONE, JobState.SKIPPED, JobState.ERROR, JobState.CANCELLED)


def capacity_of(parts: Sequence[RunPart]) -> AsyncCapacityPlan | None:
    """The capacity plan of a run over all workers; None if none has saved one."""
    plans = [plan for place in worker_places(readable_parts(parts)) if (plan := _plan_of(place))]
    if not plans:
        return None
    return AsyncCapacityPlan(
        plans[0].configured,
        _added(plan.runtime_snapshot for plan in plans),
        _added(plan.observed_maxima for plan in plans),
    )


def _plan_of(place: WorkerPlace) -> AsyncCapacityPlan | None:
    """The plan of one place: of its last worker, with the maxima of all."""
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
            most[name] = msgspec.structs.replace(known, value=_combine(known.value, one.value, max))
    return msgspec.structs.replace(plans[-1], observed_maxima=most)


def sections(plan: AsyncCapacityPlan) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Rows by section: name, value, and its source or why there is none."""
    for section in SECTIONS:
        values: dict[str, CapacityValue] = getattr(plan, section)
        yield section, [(name, _shown(one.value), _from(one)) for name, one in values.items()]


def _added(sections: Iterable[dict[str, CapacityValue]]) -> dict[str, CapacityValue]:
    """The values of several workers, added up; a missing one counts as nothing."""
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
                value = _combine(known.value, one.value, add)
                found[name] = msgspec.structs.replace(known, value=value, source=source)
    return found


def _combine(
    one: CapacityFact, other: CapacityFact, combine: Callable[[float, float], float]
) -> CapacityFact:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: combine(one.get(key, 0.0), other.get(key, 0.0)) for key in [*one, *other]}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return combine(one, other)
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


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers, beside its facts."""

    wall_seconds: float
    ended: dict[JobState, int]  # jobs that workers of this run have ended, by every end
    #: all that have: also those that were cancelled, or skipped because of others
    ended_in_store: dict[JobState, int]
    per_second: float
    requests: int
    refused: int
    failed: int
    tokens: int
    in_doubt: int  # calls of all runs whose outcome is unknown
    spent: tuple[Balance, ...]  # by scope, all first; empty: nothing was paid


def run_report(
    facts: RunFacts,
    ended_in_run: dict[JobState, int],
    in_store: dict[JobState, int],
    balances: Sequence[Balance],
    in_doubt: int,
    now_at: int,
) -> RunReport:
    """The report of a run, from the records of its workers and the counts of the store."""
    ended = {state: ended_in_run.get(state, 0) for state in ENDS}
    wall = facts.wall_seconds
    if not facts.is_over:  # the records are some seconds old, and jobs have ended since
        wall = max(wall, (now_at - facts.began_at) / MICROSECONDS)
    own = (Period.RUN, facts.run_id)
    spent = [one for one in balances if (one.account.period, one.account.span) == own]
    spent.sort(key=lambda one: (one.account.scope != ALL, -one.spent.micros, one.account.scope))
    return RunReport(
        wall_seconds=wall,
        ended=ended,
        ended_in_store={state: in_store.get(state, 0) for state in ENDS},
        per_second=sum(ended.values()) / wall if wall else 0.0,
        requests=sum(one.requests for one in facts.models),
        refused=sum(one.refused for one in facts.models),
        failed=sum(one.failed for one in facts.models),
        tokens=sum(one.tokens for one in facts.models),
        in_doubt=in_doubt,
        spent=tuple(spent),
    )

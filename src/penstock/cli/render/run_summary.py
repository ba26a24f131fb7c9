# SPDX-License-Identifier: Apache-2.0
"""The closing report of a run: throughput, providers, money, bottleneck, next command.

One line at least; the other parts only where there is something to report.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.cli.live.poller import RunPoller
from penstock.cli.render.throughput import Throughput
from penstock.errors import StoreError
from penstock.model.job import JobKind, JobState, WorkerId, kind_of_name
from penstock.model.run import ModelFigures
from penstock.model.spending import Balance
from penstock.observe.explain import (
    RunFacts,
    Unreadable,
    advise,
    format_unheard,
    mostly_idle,
    run_facts,
)
from penstock.observe.live import RunSnapshot, Units, total_balance
from penstock.redaction.secrets import redacted
from penstock.sentences import command, counted
from penstock.stores.protocol import Store
from penstock.stores.store_future import within
from penstock.terminal_text import escaped, format_duration, format_spending, print_line

SUMMARY_SECONDS = 5.0  # for each number that is asked for
PROVIDERS_NAMED = 4
LIMITED_SECONDS = 5.0  # of a shorter run the bottleneck is not shown

log = logging.getLogger("penstock.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The figures of a run at its end."""

    pace: Throughput
    ended: Mapping[JobState, int]  # by this run
    paused: bool = False
    providers: Mapping[str, ModelFigures] = field(
        default_factory=dict
    )  # that got requests, by name
    money: Balance | None = None
    in_doubt: int = 0
    limited_by: str | None = None  # the sentence of `explain` about the whole run
    is_over_budget: bool = False
    lacks_price: bool = False  # of what the budget counts
    units: Units | None = None  # of schedules
    daemon: bool = False
    build: bool = False  # its own report follows, and lists what failed
    may_retry: bool = True  # a job has failed that is of no plan
    unheard: str | None = None  # workers that were killed, and what is not counted


def summary_lines(summary: RunSummary) -> Iterator[str]:
    """The summary as plain text, a dozen lines at most."""
    yield _ended(summary)
    for name, figures in list(summary.providers.items())[:PROVIDERS_NAMED]:
        yield _provider(name, figures)
    more = len(summary.providers) - PROVIDERS_NAMED
    if more > 0:
        yield f"{counted(more, 'more provider')}: {command('providers')}"
    if summary.unheard is not None:
        yield summary.unheard
    if summary.units is not None:
        yield ", ".join(_format_units(summary.units))
    if summary.money is not None:
        yield _paid(summary.money, summary.in_doubt)
    if summary.limited_by is not None:
        yield f"Limited by: {escaped(summary.limited_by)}"
    failed = summary.ended.get(JobState.ERROR, 0)
    if failed and not summary.build:
        listed = command("queue", "list", "--state", JobState.ERROR.value)
        yield f"{counted(failed, 'job')} failed: {listed}"
    following = _next(summary, failed)
    if following is not None:
        yield f"Next: {following}"


def _ended(summary: RunSummary) -> str:
    if not summary.build:
        return summary.pace.summary(summary.ended)
    jobs = counted(sum(summary.ended.values()), "job")
    return f"{jobs} ended in {format_duration(summary.pace.elapsed_seconds)}"


def _format_units(units: Units) -> Iterator[str]:
    """The units of schedules after the end of a run."""
    calm = replace(units.troubles, late=0)  # all of them are, from now on
    words = list(replace(units, troubles=calm).parts())
    yield words[0]
    troubles = words[2:]
    yield from troubles
    if troubles:
        yield f"see {command('doctor')}"


def _provider(name: str, total: ModelFigures) -> str:
    parts = [counted(total.requests, "request"), f"{total.refused:,} refused with 429"]
    if total.failed:
        parts.append(f"{total.failed:,} errored")
    return (
        f"{escaped(name)}: {', '.join(parts)}; "
        f"limit {total.limit:,} of {total.limit_max:,} at the end"
    )


def _paid(money: Balance, in_doubt: int) -> str:
    most = format_spending(money.in_doubt.micros, money.in_doubt.tokens)
    doubt = f", at most {most} in doubt (counted in budgets)" if any(money.in_doubt) else ""
    concerned = in_doubt and (any(money.in_doubt) or money.resent)
    runs = f"; {counted(in_doubt, 'send')} of all runs in doubt" if concerned else ""
    again = f", {money.resent:,} sent again" if money.resent else ""
    guessed = f" ({counted(money.estimated, 'answer')} at an estimate)" if money.estimated else ""
    return (
        f"Paid calls: {money.bought:,} bought, {money.reused:,} reused{again}; "
        f"{format_spending(money.spent.micros, money.spent.tokens)} spent{guessed}{doubt}{runs}"
    )


def _next(summary: RunSummary, failed: int) -> str | None:
    """The most useful next command; None if there is nothing to do."""
    if summary.paused and summary.pace.left:
        return f"{command('queue', 'resume')}, since the queue is paused"
    if summary.build:
        return _next_of_build(summary)
    if failed and summary.may_retry:
        return f"{command('queue', 'retry-failed')}, once the cause is fixed"
    again = command("run") if summary.daemon else command("queue", "run", "--drain")
    if summary.is_over_budget:
        return f"{_budget_remedy(summary)}, then {again} continues"
    if summary.pace.left:
        return f"{again} continues with the remaining jobs"
    if summary.daemon and summary.units is not None and summary.units.live:
        return f"{again} continues with the schedules"
    return None if summary.limited_by is None else f"{command('explain')} shows what would help"


def _next_of_build(summary: RunSummary) -> str | None:
    if summary.is_over_budget:
        return f"{_budget_remedy(summary)}, then the same command continues"
    return None


def _budget_remedy(summary: RunSummary) -> str:
    return "set the missing price" if summary.lacks_price else "raise the used-up budget"


def print_summary(poller: RunPoller | None, store: Store | None, run_id: str | None) -> None:
    """Print the summary of a run, if there was one; its counts are its own, not the store's."""
    if poller is None or store is None or run_id is None:
        return
    try:
        stats = within(store.stats(), SUMMARY_SECONDS)
        own = within(store.outlook(WorkerId(""), run_id), SUMMARY_SECONDS).ended_in_run
        balances = within(store.balances([run_id]), SUMMARY_SECONDS)
        money = total_balance(balances)
        figures = within(store.call_figures(None), SUMMARY_SECONDS) if money else None
        parts = within(store.run_parts(run_id), SUMMARY_SECONDS)
        build = poller.build_view(SUMMARY_SECONDS)
    except (StoreError, TimeoutError) as error:
        log.warning("The store cannot be read for the summary of the run: %s", error)
        return
    facts = run_facts(parts, alive=())
    if build is not None:
        stats, own = build.stats_of(stats), build.ended_in(own)
    pace = poller.throughput_of(stats, own)
    stopped = isinstance(facts, RunFacts) and facts.over_budget is not None
    is_over_budget = bool(pace.left) and stopped
    is_told = pace.elapsed_seconds >= LIMITED_SECONDS and not is_over_budget
    summary = RunSummary(
        pace=pace,
        ended=own,
        paused=stats.paused,
        providers=_totals(facts, poller.snapshot),
        money=money,
        in_doubt=0 if figures is None else figures.in_doubt,
        limited_by=_limited_by(facts) if is_told else None,
        is_over_budget=is_over_budget,
        lacks_price=isinstance(facts, RunFacts) and facts.lacks_price,
        units=poller.units(stats),
        daemon=poller.daemon,
        build=poller.build,
        may_retry=any(
            counts.get(JobState.ERROR)
            for task, counts in stats.tasks.items()
            if kind_of_name(task) is JobKind.JOB
        ),
        unheard=format_unheard(facts) if isinstance(facts, RunFacts) else None,
    )
    # What was built is told on stdout, perhaps as a document.
    stream = sys.stderr if poller.build else sys.stdout
    for line in summary_lines(summary):
        print_line(redacted(line), stream)


def _totals(
    facts: RunFacts | Unreadable | None, snapshot: RunSnapshot | None
) -> dict[str, ModelFigures]:
    """The totals of each model; its limit is that of the last snapshot, if there is one."""
    if not isinstance(facts, RunFacts):
        return {}
    seen = {line.name: line.live for line in (snapshot.providers if snapshot else ())}
    providers = [one.provider for one in facts.models]
    found = {}
    for one in filter(lambda one: one.requests, facts.models):
        several = providers.count(one.provider) > 1
        name = f"{one.provider}/{one.model}" if several else one.provider
        last = seen.get(name, one)
        found[name] = replace(one, limit=last.limit, limit_max=last.limit_max)
    return found


def _limited_by(facts: RunFacts | Unreadable | None) -> str | None:
    if not isinstance(facts, RunFacts) or mostly_idle(facts):
        return None
    said = advise(facts)
    return None if said is None else said.sentence

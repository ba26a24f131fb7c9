# SPDX-License-Identifier: Apache-2.0
"""`penstock explain`: the bottlenecks of a run, and the change that would help most."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.target import AppOption, JsonOption, RunOption, StoreOption, Target, chosen_run
from penstock.clock import MICROSECONDS, SystemClock
from penstock.errors import PenstockError
from penstock.model.run import AsyncCapacityPlan
from penstock.observe.explain import (
    Advice,
    RunFacts,
    advise,
    cause_name,
    format_unheard,
    mostly_idle,
    run_state,
)
from penstock.observe.report import capacity_of, sections
from penstock.sentences import counted
from penstock.terminal_text import (
    escaped,
    format_duration,
    format_table,
    iso_time,
    print_document,
    say,
)

SHARES_SHOWN = 12


def explain(
    run: RunOption = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Show the capacity plan of the run as well.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what limited a run, in percent of its time, and the one change that would help most."""
    with Target.named(app=app, store=store).opened_store() as opened:
        parts, facts = chosen_run(opened, run)
    plan = capacity_of(parts) if capacity else None
    if capacity and plan is None:
        raise PenstockError(f"Run {facts.run_id!r} has left no capacity plan.")
    now = round(SystemClock().now() * MICROSECONDS)
    if as_json:
        print_document(document_of(facts, plan, now))
        return
    for line in lines_of(facts, plan, now):
        say(line)


def document_of(facts: RunFacts, plan: AsyncCapacityPlan | None, now: int) -> dict[str, object]:
    """The explanation as a document; times as ISO in UTC."""
    said = advise(facts)
    found: dict[str, object] = {
        "run": facts.run_id,
        "is_over": facts.is_over,
        "over_budget": facts.over_budget,
        "closed_account": facts.closed_account,
        "began_at": iso_time(facts.began_at),
        "as_of": iso_time(facts.told_at),
        "as_of_seconds": None if facts.is_over else _age(facts, now),
        "wall_seconds": facts.wall_seconds,
        "workers": facts.workers,
        "unheard_workers": facts.unheard,
        "unheard_seconds": facts.unheard_seconds,
        "idle_seconds": facts.idle_seconds,
        "sentence": None if said is None else said.sentence,
        "change": None if said is None else said.change,
        "shares": [
            {"cause": cause_name(share, facts), **msgspec.to_builtins(share)}
            for share in facts.shares
        ],
        "doing": [msgspec.to_builtins(one) for one in facts.doing],
        "models": [msgspec.to_builtins(one) for one in facts.models],
    }
    if plan is not None:
        found["capacity"] = msgspec.to_builtins(plan)
    return found


def lines_of(facts: RunFacts, plan: AsyncCapacityPlan | None, now: int) -> list[str]:
    """The explanation as text: the answer first."""
    head = (
        f"Run {escaped(facts.run_id)}: {counted(facts.workers, 'worker')}, "
        f"{format_duration(facts.wall_seconds)}"
    )
    if not facts.is_over:
        head += f", as of {format_duration(_age(facts, now))} ago"
    elif facts.unheard == facts.workers:
        head += f", {run_state(facts)}"
    lines = [head, ""]
    unheard = format_unheard(facts)
    if unheard is not None:
        lines += [unheard, ""]
    if facts.over_budget is not None:
        lines += [f"A budget ended workers of this run: {escaped(facts.over_budget)}", ""]
    if facts.closed_account is not None:
        lines += [escaped(facts.closed_account), ""]
    lines += _answer(advise(facts), facts)
    shares = [share for share in facts.shares if share.percent][:SHARES_SHOWN]
    if shares:
        rows = [[cause_name(share, facts), f"{share.percent}%"] for share in shares]
        lines += ["", *format_table(["limited by", "time"], rows)]
        rest = 100 - sum(share.percent for share in shares)
        if rest:
            lines.append(f"{rest}% is spread over smaller causes; --json lists all.")
    if facts.idle_seconds >= 1 and not mostly_idle(facts):
        lines += [
            "",
            f"In addition, there was nothing to do for {format_duration(facts.idle_seconds)}.",
        ]
    for section, values in sections(plan) if plan is not None else ():
        lines += ["", *format_table([section, "value", "from"], values, left=3)]
    return lines


def _answer(said: Advice | None, facts: RunFacts) -> list[str]:
    if said is None and facts.unheard:
        return ["It left no record of what limited it."]
    if said is None:
        return ["Nothing limited this run: there was nothing to do."]
    if mostly_idle(facts):
        idle = format_duration(facts.idle_seconds)
        return [f"Nothing limited most of this run: there was nothing to do for {idle} of it."]
    return [escaped(said.sentence), f"What would help most: {escaped(said.change)}"]


def _age(facts: RunFacts, now: int) -> float:
    return max(0, now - facts.told_at) / MICROSECONDS

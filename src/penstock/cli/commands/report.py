# SPDX-License-Identifier: Apache-2.0
"""`penstock report`: what a run has done, and what it cost."""

from __future__ import annotations

import msgspec

from penstock.cli.target import AppOption, JsonOption, RunOption, StoreOption, Target, chosen_run
from penstock.clock import MICROSECONDS, SystemClock
from penstock.model.job import WorkerId
from penstock.model.spending import Amount, Balance, format_exact_dollars, format_usd
from penstock.observe.explain import RunFacts, advise, format_unheard, mostly_idle, run_state
from penstock.observe.report import RunReport, run_report
from penstock.sentences import counted
from penstock.terminal_text import (
    escaped,
    format_duration,
    format_table,
    iso_time,
    print_document,
    say,
)


def report(
    run: RunOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run has done: jobs by end, rate, requests, refusals, and what was paid."""
    with Target.named(app=app, store=store).opened_store() as opened:
        _, facts = chosen_run(opened, run)
        ended = opened.outlook(WorkerId(""), facts.run_id).result().ended_in_run
        in_store = opened.stats().result().states
        balances = opened.balances([facts.run_id]).result()
        in_doubt = opened.call_figures(None).result().in_doubt if balances else 0
    now = round(SystemClock().now() * MICROSECONDS)
    found = run_report(facts, ended, in_store, balances, in_doubt, now)
    if as_json:
        print_document(document_of(found, facts))
        return
    for line in lines_of(found, facts, now):
        say(line)


def document_of(found: RunReport, facts: RunFacts) -> dict[str, object]:
    """The report as a document; times as ISO in UTC, money as decimal texts."""
    said = None if mostly_idle(facts) else advise(facts)
    return {
        "run": facts.run_id,
        "is_over": facts.is_over,
        "over_budget": facts.over_budget,
        "closed_account": facts.closed_account,
        "began_at": iso_time(facts.began_at),
        "as_of": iso_time(facts.told_at),
        "workers": facts.workers,
        "unheard_workers": facts.unheard,
        "unheard_seconds": facts.unheard_seconds,
        "wall_seconds": found.wall_seconds,
        "ended": {state.value: count for state, count in found.ended.items()},
        "ended_in_store": {state.value: count for state, count in found.ended_in_store.items()},
        "per_second": found.per_second,
        "retries": facts.retries,
        "put_back": facts.put_back,
        "requests": found.requests,
        "refused": found.refused,
        "failed": found.failed,
        "tokens": found.tokens,
        "models": [msgspec.to_builtins(one) for one in facts.models],
        "in_doubt": found.in_doubt,
        "spent": [_spent_document(one) for one in found.spent],
        "limited_by": None if said is None else said.sentence,
    }


def _spent_document(one: Balance) -> dict[str, object]:
    return {
        "scope": one.account.scope,
        "usd": format_usd(one.spent.micros),
        "tokens": one.spent.tokens,
        "reserved_usd": format_usd(one.reserved.micros),
        "reserved_tokens": one.reserved.tokens,
        "in_doubt_usd": format_usd(one.in_doubt.micros),
        "in_doubt_tokens": one.in_doubt.tokens,
        "bought": one.bought,
        "reused": one.reused,
        "resent": one.resent,
        "estimated": one.estimated,
    }


def _unsettled(found: RunReport, whole: Balance) -> list[str]:
    """Calls that are not settled, or were settled at an estimate."""
    lines, reserved, doubt = [], whole.reserved.micros, whole.in_doubt
    if whole.resent:
        lines.append(
            f"{counted(whole.resent, 'call')} in doubt sent again: some may be paid twice."
        )
    if whole.estimated:
        lines.append(f"{counted(whole.estimated, 'answer')} settled at an estimate.")
    if found.in_doubt or any(doubt):
        kept = f"; of this run {_most(doubt)}, counted in its budgets" if any(doubt) else ""
        lines.append(f"{counted(found.in_doubt, 'send')} of all runs in doubt{kept}.")
    if reserved:
        lines.append(
            f"{format_exact_dollars(reserved)} reserved for calls without an answer so far."
        )
    return lines


def _most(doubt: Amount) -> str:
    money = f"{format_exact_dollars(doubt.micros)}, " if doubt.micros else ""
    return f"at most {money}{doubt.tokens:,} tokens"


def lines_of(found: RunReport, facts: RunFacts, now: int) -> list[str]:
    """The report as text."""
    total = sum(found.ended.values())
    age = max(0, now - facts.told_at) / MICROSECONDS
    told = f"still running; attempts, requests and limits as of {format_duration(age)} ago"
    state = run_state(facts) if facts.is_over else told
    lines = [
        f"Run {escaped(facts.run_id)}, {state}",
        "",
        f"{counted(total, 'job')} ended in {format_duration(found.wall_seconds)}, "
        f"{found.per_second:,.1f}/s, by {counted(facts.workers, 'worker')}; "
        f"{counted(facts.retries, 'attempt')} ended in an error"
        f"{f', {facts.put_back:,} refused by providers' if facts.put_back else ''}.",
        *format_table(
            ["jobs that ended", *(state.value for state in found.ended)],
            [
                ["by this run", *found.ended.values()],
                ["in the store, in all", *found.ended_in_store.values()],
            ],
        ),
    ]
    unheard = format_unheard(facts)
    if unheard is not None:
        lines.append(unheard)
    if found.requests:
        lines += [
            "",
            f"{counted(found.requests, 'request')}: {found.refused:,} refused, {found.failed:,} "
            f"errored; {found.tokens:,} tokens.",
        ]
    if found.spent:
        head = ["paid", "dollars", "tokens", "bought", "reused"]
        rows: list[list[str | int]] = [
            [one.account.scope, _money(one.spent.micros), one.spent.tokens, one.bought, one.reused]
            for one in found.spent
        ]
        lines += ["", *format_table(head, rows)]
        lines += _unsettled(found, found.spent[0])
    if facts.over_budget is not None:
        lines += ["", f"A budget ended workers of this run: {escaped(facts.over_budget)}"]
    if facts.closed_account is not None:
        lines += ["", escaped(facts.closed_account)]
    said = None if mostly_idle(facts) else advise(facts)
    if said is not None:
        lines += ["", f"Limited by: {escaped(said.sentence)}"]
    return lines


def _money(micros: int) -> str:
    """Dollars; without prices none are counted."""
    return format_exact_dollars(micros) if micros else "-"

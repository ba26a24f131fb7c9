# SPDX-License-Identifier: Apache-2.0
"""`penstock runs`: lists the runs of a store with their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, run_of
from penstock.clock import MICROSECONDS, SystemClock
from penstock.model.job import JobState, WorkerId
from penstock.model.spending import ALL, Amount, Balance, Period, format_exact_dollars, format_usd
from penstock.observe.explain import RunFacts
from penstock.observe.report import ENDS
from penstock.sentences import command
from penstock.stores.protocol import Store
from penstock.terminal_text import (
    escaped,
    format_duration,
    format_table,
    iso_time,
    print_document,
    say,
)

SHOWN = 20
LIMIT_MAX = 1_000


class RunLine(msgspec.Struct, frozen=True):
    """One run of the list; without facts its records are of another version of penstock."""

    run_id: str
    facts: RunFacts | None
    ended: dict[JobState, int]  # jobs that workers of this run have ended
    spent: Amount
    now_at: int

    @property
    def state(self) -> str:
        """How it stands."""
        if self.facts is None:
            return "unreadable"
        if not self.facts.is_over:
            return "at work"
        return "killed" if self.facts.unheard == self.facts.workers else "ended"

    @property
    def seconds(self) -> float | None:
        """How long it took; of one at work, so far."""
        if self.facts is None:
            return None
        if self.facts.is_over:
            return self.facts.wall_seconds
        return max(self.facts.wall_seconds, (self.now_at - self.facts.began_at) / MICROSECONDS)


def runs(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LIMIT_MAX, help="How many, the last ones first.")
    ] = SHOWN,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the last one first: id, begin, duration, state, jobs by end, what was spent."""
    with Target.named(app=app, store=store).opened_store() as opened:
        found = listed(opened, opened.runs(limit).result())
    if as_json:
        print_document({"runs": [document_of(line) for line in found]})
        return
    if not found:
        say(f"No run has left a record yet; begin one with '{command('queue', 'run')}'.")
        return
    head = ["run", "began", "took", "state", *(state.value for state in ENDS), "spent"]
    for text in format_table(head, map(_row, found), left=2):
        say(text)


def listed(store: Store, run_ids: Sequence[str]) -> list[RunLine]:
    """What is told of some runs."""
    now = round(SystemClock().now() * MICROSECONDS)
    balances = store.balances(run_ids).result() if run_ids else []
    lines = []
    for run_id in run_ids:
        _, facts = run_of(store, run_id)
        ended = store.outlook(WorkerId(""), run_id).result().ended_in_run
        known = facts if isinstance(facts, RunFacts) else None
        lines.append(RunLine(run_id, known, ended, _spent(balances, run_id), now))
    return lines


def document_of(line: RunLine) -> dict[str, object]:
    """The same for programs; times as ISO in UTC, money as decimal text."""
    facts = line.facts
    return {
        "run": line.run_id,
        "state": line.state,
        "began_at": None if facts is None else iso_time(facts.began_at),
        "seconds": line.seconds,
        "workers": None if facts is None else facts.workers,
        "ended": {state.value: line.ended.get(state, 0) for state in ENDS},
        "spent_usd": format_usd(line.spent.micros),
        "spent_tokens": line.spent.tokens,
    }


def _spent(balances: Sequence[Balance], run_id: str) -> Amount:
    """What a run has spent, over all apps."""
    whole = (ALL, Period.RUN, run_id)
    own = [one.spent for one in balances if one.account[:3] == whole]
    return Amount(sum(one.micros for one in own), sum(one.tokens for one in own))


def _row(line: RunLine) -> list[str | int]:
    began = None if line.facts is None else iso_time(line.facts.began_at)
    return [
        escaped(line.run_id),
        "-" if began is None else f"{began[:19]}Z",
        "-" if line.seconds is None else format_duration(line.seconds),
        line.state,
        *(line.ended.get(state, 0) for state in ENDS),
        _money(line.spent),
    ]


def _money(spent: Amount) -> str:
    if spent.micros:
        return format_exact_dollars(spent.micros)
    return f"{spent.tokens:,} tokens" if spent.tokens else "-"

# SPDX-License-Identifier: Apache-2.0
"""`penstock queue stats`: counts jobs by state, task and group."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.cli.render.money import calls_document, calls_line
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import MICROSECONDS, SystemClock
from penstock.model.job import JobState
from penstock.model.views import Stats
from penstock.model.worker import UnresponsiveWorker, unresponsive_workers
from penstock.observe.phrases import some
from penstock.process_identity import is_gone
from penstock.redaction.secrets import redacted
from penstock.sentences import counted
from penstock.terminal_text import (
    escaped,
    format_duration,
    format_table,
    iso_time,
    print_document,
    say,
)

GROUPS_SHOWN = 20  # rows for people; the document has more


def stats(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show how many jobs are in which state, by task and by group."""
    with Target.named(app=app, store=store).opened_store() as opened:
        found, url = opened.stats().result(), opened.url
        silent = unresponsive_workers(opened.workers().result(), is_gone).values()
        calls = calls_document(opened.call_figures(None).result())
    if as_json:
        print_document({**document_of(found, silent), "calls": calls})
        return
    for line in lines_of(found, url, silent, round(SystemClock().now() * MICROSECONDS)):
        say(line)
    if calls is not None:
        say(f"Paid calls that are kept: {calls_line(calls)}.")


def document_of(found: Stats, silent: Collection[UnresponsiveWorker]) -> dict[str, object]:
    """The stats document; every state is there, also with 0."""
    return {
        "states": _every_state(found.states),
        "tasks": {name: _every_state(counts) for name, counts in found.shown_tasks.items()},
        "schedules": {name: _every_state(counts) for name, counts in found.schedules.items()},
        "groups": {name: _every_state(counts) for name, counts in found.groups.items()},
        "groups_total": found.groups_total,
        "oldest_ready_seconds": found.oldest_ready_seconds,
        "next_due_at": iso_time(found.next_due_at),
        "suspects": found.suspects,
        "workers": max(found.workers - len(silent), 0),
        "workers_silent": len(silent),
        "paused": found.paused,
        "paused_schedules": [*found.paused_schedules],
    }


def lines_of(
    found: Stats, url: str, silent: Collection[UnresponsiveWorker], now_at: int
) -> list[str]:
    """The same for people."""
    head = ["", *(state.value for state in JobState)]
    rows: list[list[str | int]] = [["all", *_every_state(found.states).values()]]
    rows += [[f"task {name}", *_every_state(c).values()] for name, c in found.shown_tasks.items()]
    rows += [[name, *_every_state(counts).values()] for name, counts in found.schedules.items()]
    groups = {} if set(found.groups) == set(found.tasks) else found.groups
    shown = list(groups.items())[:GROUPS_SHOWN]
    rows += [[f"group {name}", *_every_state(counts).values()] for name, counts in shown]
    lines = [f"Store {escaped(redacted(url))}", "", *format_table(head, rows), ""]
    if len(shown) < len(groups):
        lines.append(f"{found.groups_total - len(shown):,} more groups are in --json.")
    if found.oldest_ready_seconds is not None:
        lines.append(
            f"The oldest ready job has waited for {format_duration(found.oldest_ready_seconds)}."
        )
    if found.next_due_at is not None:
        lines.append(_due(found.next_due_at, now_at))
    if found.suspects:
        lines.append(f"{found.suspects:,} jobs are in quarantine after a crash.")
    if found.paused:
        lines.append("The queue is paused.")
    if found.paused_schedules:
        lines.append(f"Paused: {escaped(some(found.paused_schedules))}.")
    lines.append(f"Workers alive: {max(found.workers - len(silent), 0):,}.")
    if silent:
        last = format_duration(max(one.lease_seconds for one in silent))
        verb = "answers" if len(silent) == 1 else "answer"
        lines.append(
            f"{counted(len(silent), 'worker')} no longer {verb}, killed most likely: "
            f"what is held there is taken back when the lease ends, in {last} at the latest."
        )
    return lines


def _due(due_at: int, now_at: int) -> str:
    """When the next delayed job is due; one that is overdue waits for a worker."""
    if due_at > now_at:
        return f"The next delayed job is due at {iso_time(due_at)}."
    return f"A delayed job has been due since {iso_time(due_at)} and waits for a worker."


def _every_state(counts: Mapping[JobState, int]) -> dict[str, int]:
    return {state.value: counts.get(state, 0) for state in JobState}

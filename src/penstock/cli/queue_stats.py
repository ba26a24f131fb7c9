# SPDX-License-Identifier: Apache-2.0
"""How is the queue told in numbers?"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cli.money import calls_document, calls_line
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.cli.text import escaped, iso_time, print_document, say, span, table
from penstock.model.job import JobState
from penstock.model.views import Stats
from penstock.redaction import redacted

GROUPS_SHOWN = 20  # rows for people; the document has more


def stats(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show how many jobs are in which state, by task and by group."""
    with Target.named(app=app, store=store).opened_store() as opened:
        found, url = opened.stats().result(), opened.url
        calls = calls_document(opened.call_figures(None).result())
    if as_json:
        print_document({**document_of(found), "calls": calls})
        return
    for line in lines_of(found, url):
        say(line)
    if calls is not None:
        say(f"Paid calls that are kept: {calls_line(calls)}.")


def document_of(found: Stats) -> dict[str, object]:
    """The stats document; every state is there, also with 0."""
    return {
        "states": _every_state(found.states),
        "tasks": {name: _every_state(counts) for name, counts in found.tasks.items()},
        "schedules": {name: _every_state(counts) for name, counts in found.schedules.items()},
        "groups": {name: _every_state(counts) for name, counts in found.groups.items()},
        "groups_total": found.groups_total,
        "oldest_ready_seconds": found.oldest_ready_seconds,
        "next_due_at": iso_time(found.next_due_at),
        "suspects": found.suspects,
        "workers": found.workers,
        "paused": found.paused,
    }


def lines_of(found: Stats, url: str) -> list[str]:
    """The same for people."""
    head = ["", *(state.value for state in JobState)]
    rows: list[list[str | int]] = [["all", *_every_state(found.states).values()]]
    rows += [[f"task {name}", *_every_state(c).values()] for name, c in found.tasks.items()]
    rows += [[name, *_every_state(counts).values()] for name, counts in found.schedules.items()]
    groups = {} if set(found.groups) == set(found.tasks) else found.groups
    shown = list(groups.items())[:GROUPS_SHOWN]
    rows += [[f"group {name}", *_every_state(counts).values()] for name, counts in shown]
    lines = [f"Store {escaped(redacted(url))}", "", *table(head, rows), ""]
    if len(shown) < len(groups):
        lines.append(f"{found.groups_total - len(shown):,} more groups are in --json.")
    if found.oldest_ready_seconds is not None:
        lines.append(f"The oldest ready job has waited for {span(found.oldest_ready_seconds)}.")
    if found.next_due_at is not None:
        lines.append(f"The next delayed job is due at {iso_time(found.next_due_at)}.")
    if found.suspects:
        lines.append(f"{found.suspects:,} jobs must run alone after a crash.")
    if found.paused:
        lines.append("The queue is paused.")
    lines.append(f"Workers alive: {found.workers}.")
    return lines


def _every_state(counts: Mapping[JobState, int]) -> dict[str, int]:
    return {state.value: counts.get(state, 0) for state in JobState}

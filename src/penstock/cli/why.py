# SPDX-License-Identifier: Apache-2.0
"""Why does a job not run, or what became of it?"""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from penstock import wiring
from penstock.cli.completion import complete_key
from penstock.cli.operator import only_utf8
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.cli.text import escaped, iso_time, print_document, say, span
from penstock.clock import MICROSECONDS, SystemClock
from penstock.config.budgets import budgets_of
from penstock.errors import PenstockError
from penstock.observe.phrases import at
from penstock.observe.why import explain
from penstock.observe.why_facts import Gate, Limit, Why
from penstock.observe.why_gather import gather

KEYS_COMPARED = 50  # keys of the store that begin like one that is unknown
KEYS_NAMED = 3

#: What a time says about a gate; that of another job is in the sentence about it.
WHEN = {
    Gate.NOT_DUE: "at",
    Gate.RUNNING: "by",
    Gate.SILENT: "at",
    Gate.LINGERING: "by",
    Gate.SLOTS: "about",
    Gate.FAIR_SHARE: "about",
    Gate.COOLDOWN: "about",
    Gate.POLICY: "about",
}


def why(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="The job's key.",
            autocompletion=complete_key,
            callback=only_utf8,
        ),
    ],
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a job does not run, what will let it go on, and which command would."""
    target = Target.named(app=app, store=store)
    configured = target.configured()
    with target.opened_store() as opened:
        budgets = budgets_of(configured.settings, configured.sources)
        facts = gather(opened, key, configured.settings.caps(), SystemClock(), budgets)
        url = opened.url
    if facts is None:
        raise PenstockError(
            f"No job has the key {key!r} in the store {url}{_nearest(target, key)}. Correct the "
            "key, or name another store with --store."
        )
    found = explain(facts)
    if as_json:
        print_document(document_of(found, facts.now))
    else:
        for line in lines_of(found, facts.now):
            say(line)


def _nearest(target: Target, key: str) -> str:
    """The nearest of the keys that begin alike, as far as a short look finds them."""
    known: dict[str, str] = {}  # whatever its case → a key
    for start in dict.fromkeys((key[: len(key) // 2], key[:1], key[:1].swapcase(), "")):
        try:
            url = target.store()[0]
            keys = wiring.keys_beginning(url, start, KEYS_COMPARED, folder=target.folder)
        except (PenstockError, TimeoutError):
            return ""
        known |= {other.casefold(): other for other in keys}
    near = difflib.get_close_matches(key.casefold(), known, KEYS_NAMED, 0.5)
    return f"; closest: {', '.join(repr(known[name]) for name in near)}" if near else ""


def document_of(found: Why, now: int) -> dict[str, object]:
    """The explanation as a document; times as ISO in UTC."""
    return {
        "key": found.key,
        "state": found.state.value,
        "gate": found.gate.value,
        "sentence": found.sentence,
        "unblocks": found.unblocks,
        "when": iso_time(found.when),
        "command": found.command,
        "details": list(found.details),
        "waits_for": [
            {"key": link.key, "kind": link.kind.value, "state": link.state.value}
            for link in found.waits_for
        ],
        "chain": list(found.chain),
        "limits": [_limit(limit) for limit in found.limits],
        "worker": found.worker,
        "as_of": iso_time(found.as_of),
        "as_of_seconds": _age(found, now),
    }


def _limit(limit: Limit) -> dict[str, object]:
    return {
        "limit_key": limit.held.limit_key,
        "cap": limit.cap,
        "source": limit.source,
        "count": limit.held.count,
        "holders": [
            {
                "key": holder.key,
                "worker": holder.worker,
                "since": iso_time(holder.since),
                "lingers": holder.lingers,
            }
            for holder in limit.held.holders
        ],
    }


def _age(found: Why, now: int) -> float | None:
    return None if found.as_of is None else max(now - found.as_of, 0) / MICROSECONDS


def lines_of(found: Why, now: int) -> list[str]:
    """The same for people: the answer first."""
    lines = [escaped(found.sentence)]
    age = _age(found, now)
    if age is not None:
        lines[0] += f" (As of {span(age)} ago.)"
    if found.unblocks is not None:
        word = WHEN.get(found.gate)
        when = "" if found.when is None or word is None else f", {word} {at(found.when)}"
        lines.append(f"It goes on when {escaped(found.unblocks)}{when}.")
    if found.command is not None:
        lines.append(f"Command: {escaped(found.command)}")
    if found.details:
        lines += ["", *(escaped(detail) for detail in found.details)]
    return lines

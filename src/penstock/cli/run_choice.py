# SPDX-License-Identifier: Apache-2.0
"""Which run is a command about?"""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError
from penstock.model.run_part import RunPart
from penstock.model.worker_silence import answering
from penstock.observe.explain import RunFacts, Unreadable, facts_of
from penstock.process_identity import is_gone
from penstock.redaction.secrets import redacted
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped

RUNS_COMPARED = 200
RUNS_NAMED = 3

RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="The run; the last one unless this is given."),
]


def chosen_run(store: Store, run_id: str | None) -> tuple[list[RunPart], RunFacts]:
    """What the workers of a run left behind; a sentence if there is nothing."""
    parts = store.run_parts(run_id).result()
    workers = answering(store.workers().result(), is_gone) if parts else []
    alive = {one.id for one in workers if one.alive and one.run_id == parts[0].run_id}
    facts = facts_of(parts, alive=alive)
    url = redacted(store.url)
    if facts is None and run_id is None:
        raise PenstockError(
            f"No run has left a record in the store {url} yet: a worker writes one as soon as it "
            "begins. Run 'penstock queue run' first, or name another store with --store."
        )
    if facts is None:
        near = _known(store, run_id)
        raise UsageError(f"No run {run_id!r:.80} is known in the store {url}{near}.")
    if isinstance(facts, Unreadable):
        raise PenstockError(
            f"The record of run {facts.run_id!r} was written by another version of penstock and "
            "cannot be read by this one."
        )
    return parts, facts


def _known(store: Store, run_id: str | None) -> str:
    """The nearest of the runs that are known, or the last ones."""
    known = store.runs(RUNS_COMPARED).result()
    if not known:
        return "; no run has left a record there"
    near = difflib.get_close_matches(run_id or "", known, RUNS_NAMED, 0.6)
    word = "closest" if near else "the last ones are"
    names = ", ".join(repr(escaped(name)) for name in (near or known[:RUNS_NAMED]))
    return f"; {word}: {names}" if near else f"; {word} {names}"

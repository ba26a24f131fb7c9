# SPDX-License-Identifier: Apache-2.0
"""The state and the duration of runs in `penstock runs`."""

from __future__ import annotations

import pytest

from penstock.cli.commands.runs import RunLine, document_of
from penstock.model.job import JobState, WorkerId
from penstock.model.run import RunDocument, RunPart
from penstock.model.spending import Amount
from penstock.observe.explain import RunFacts, run_facts

SECOND = 1_000_000


def line(*, over: bool, alive: bool) -> RunLine:
    document = RunDocument(began_at=0, told_at=20 * SECOND, over=over, worker="w")
    part = RunPart("run-1", WorkerId("w"), 20 * SECOND, document.encoded())
    facts = run_facts([part], alive={WorkerId("w")} if alive else set())
    assert isinstance(facts, RunFacts)
    return RunLine("run-1", facts, {JobState.DONE: 3}, Amount(1_500_000, 7), 50 * SECOND)


@pytest.mark.parametrize(
    ("over", "alive", "state", "seconds"),
    [(True, False, "ended", 20.0), (False, True, "at work", 50.0), (False, False, "killed", 20.0)],
)
def test_a_run_ended_is_at_work_or_was_killed(
    over: bool, alive: bool, state: str, seconds: float
) -> None:
    found = document_of(line(over=over, alive=alive))

    assert (found["state"], found["seconds"]) == (state, seconds)
    assert (found["spent_usd"], found["spent_tokens"]) == ("1.5", 7)
    assert found["ended"] == {"done": 3, "skipped": 0, "error": 0, "cancelled": 0}


def test_a_run_of_another_version_is_listed_all_the_same() -> None:
    found = document_of(RunLine("run-2", None, {}, Amount(), 0))

    assert (found["run"], found["state"], found["seconds"]) == ("run-2", "unreadable", None)

# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/ say what the code says."""

from __future__ import annotations

from pathlib import Path

from penstock.events.kinds import RequestEventKind, SchedulerEventKind
from penstock.model.job import TERMINAL, TRANSITIONS, JobState

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_states_md_lists_every_transition() -> None:
    text = (DOCS / "states.md").read_text()

    expected = [
        f"| {source} | {target} | {why} |"
        for source, targets in TRANSITIONS.items()
        for target, why in targets.items()
    ]
    assert [line for line in text.splitlines() if line.startswith("| ")][1:] == [
        "| --- | --- | --- |",
        *expected,
    ]


def test_every_state_has_a_row_of_transitions_and_done_and_cancelled_are_final() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {state for state, targets in TRANSITIONS.items() if not targets} == {
        JobState.DONE,
        JobState.CANCELLED,
    }
    assert {JobState.DONE, JobState.CANCELLED} < TERMINAL


def test_events_md_lists_every_kind() -> None:
    text = (DOCS / "events.md").read_text()

    for kind in (*SchedulerEventKind, *RequestEventKind):
        assert f"| `{kind}` |" in text

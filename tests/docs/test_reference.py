# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference say what the code says: `make reference` would change nothing."""

from __future__ import annotations

import pytest

from penstock.events.kinds import RequestEventKind, SchedulerEventKind
from penstock.model.job import TERMINAL, TRANSITIONS, ErrorCategory, JobState
from penstock.model.journal import CallState
from tools.make_reference import FOLDER, PAGES
from tools.reference.configuration import page as configuration
from tools.reference.remarks import members, remarks


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_as_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_nothing_else_is_in_the_folder() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_state_has_a_row_of_transitions_and_cancelled_is_final() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert [state for state, targets in TRANSITIONS.items() if not targets] == [JobState.CANCELLED]
    assert JobState.CANCELLED in TERMINAL


@pytest.mark.parametrize(
    "kinds", [JobState, CallState, ErrorCategory, SchedulerEventKind, RequestEventKind]
)
def test_every_member_says_what_it_means(kinds: type) -> None:
    assert [member.name for member in members(kinds) if not member.remark] == []


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in configuration().splitlines() if line.startswith("| `")]

    assert [row for row in rows if row.endswith("|  |")] == []


def test_a_remark_is_beside_its_member_or_above_it() -> None:
    class Sample:
        here = 1  # beside
        #: above,
        #: on two lines
        there = 2
        nowhere = "3 # not a remark"

    assert remarks(Sample) == {"here": "beside", "there": "above, on two lines", "nowhere": ""}

# SPDX-License-Identifier: Apache-2.0
"""Is every failed preflight named, with what to do, and is nothing given away?"""

from __future__ import annotations

from penstock.cli.commands.run import ROWS_MAX, check_lines, checks_document
from penstock.supervisor.protocol import Check, Checked

GOOD = Check(name="reachable", partition="a/b", passed=True)
BAD = Check(name="schema", partition="", passed=False, problem="ValueError: old", hint="Migrate.")


def test_failures_come_first_with_their_hints() -> None:
    lines = check_lines([GOOD, BAD], Checked(passed=1, failed=1))
    assert lines == [
        "FAILED  schema         ValueError: old",
        "                       Migrate.",
        "passed  reachable:a/b",
        "1 of 2 preflights failed; nothing else was started.",
    ]


def test_all_passed_one_passed_none_there() -> None:
    assert check_lines([], Checked(passed=3, failed=0)) == ["All 3 preflights passed."]
    assert check_lines([], Checked(passed=1, failed=0)) == ["The preflight has passed."]
    assert check_lines([], Checked(passed=0, failed=0)) == ["The app has no preflights."]


def test_thousands_of_failures_are_counted_and_some_are_shown() -> None:
    checks = [
        Check(name="up", partition=f"{n:05}", passed=False, problem="no") for n in range(5_000)
    ]
    lines = check_lines(checks, Checked(passed=0, failed=5_000))
    assert len(lines) == ROWS_MAX + 2
    assert lines[-2] == "… and 4,800 more"
    assert lines[0].startswith("FAILED  up:00000  no")


def test_a_terminal_is_given_no_orders_and_no_secrets() -> None:
    hostile = Check(
        name="up",
        partition="\x1b[2J",
        passed=False,
        problem="GET https://user:hunter2secret@host/ \x1b]0;x\x07",
    )
    text = "\n".join(check_lines([hostile], Checked(passed=0, failed=1)))
    assert "\x1b" not in text
    assert "hunter2secret" not in text
    assert "hunter2secret" not in str(checks_document([hostile], Checked(passed=0, failed=1)))


def test_the_document_has_every_check() -> None:
    assert checks_document([GOOD, BAD], Checked(passed=1, failed=1)) == {
        "passed": 1,
        "failed": 1,
        "left_out": 0,
        "preflights": [
            {
                "name": "reachable",
                "partition": "a/b",
                "passed": True,
                "required": True,
                "problem": None,
                "hint": None,
            },
            {
                "name": "schema",
                "partition": None,
                "passed": False,
                "required": True,
                "problem": "ValueError: old",
                "hint": "Migrate.",
            },
        ],
    }


def test_a_check_that_is_not_required_is_no_failed_start() -> None:
    optional = Check(name="reachable", partition="c", passed=False, required=False, problem="404")

    lines = check_lines([GOOD, optional], Checked(passed=1, failed=0, left_out=1))

    assert lines[0] == "failed  reachable:c    404"
    assert lines[1].strip().startswith("Not required: the units that it is about are left out")
    assert lines[-1].startswith("1 of 2 preflights did not pass; they are not required")

# SPDX-License-Identifier: Apache-2.0
"""Does the example miss no issue, through a failed start, a stop and a kill?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloned_commands import run_example

WATCH = Path(__file__).resolve().parents[2] / "examples/repo_watch"
PROGRAM = WATCH / "repo_watch.py"
pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


def test_the_example_looks_at_every_issue_once() -> None:
    done = run_example(PROGRAM, "--issues", "6")

    told = done.stdout
    assert done.returncode == 0, told + done.stderr
    assert "18 issues were opened; 18 were looked at\nmissed: 0, repeated: 0" in told
    assert "FAILED  repository_exists:penstock/site" in done.stderr
    assert "All 3 preflights passed." in told
    assert "Next: penstock run continues with the schedules" in told, told
    assert "'schedule:poll_issues:penstock/site' is not due: its next tick is at" in told
    assert "Traceback" not in done.stderr


def test_readme_types_what_the_example_types() -> None:
    """The commands by hand are among those of the program."""
    page = (WATCH / "README.md").read_text()
    by_hand = page.rpartition("```text\n")[2].partition("```")[0].splitlines()

    program = PROGRAM.read_text()
    typed = [line for line in by_hand if line.startswith("penstock")]
    assert len(typed) == 3
    assert all(
        f'"{line}"' in program.replace("{UNIT}", "schedule:poll_issues:penstock/site")
        for line in typed
    )

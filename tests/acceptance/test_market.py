# SPDX-License-Identifier: Apache-2.0
"""Does the example keep its datasets current, through a kill, a new version, and mistakes?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloned_commands import run_example
from tests.forked import ForkedWithExchange

MARKET = Path(__file__).resolve().parents[2] / "examples/market"
PROGRAM = MARKET / "market.py"
END = "2024-04-01"
PLAN = """\
level 0   prices      61 slices, 2024-01-02 to 2024-03-28
level 1   returns     60 slices, 2024-01-03 to 2024-03-28
level 2   volatility  3 slices, 2024-01-31 to 2024-03-28
level 3   report      3 slices in 1 job, 2024-01-31 to 2024-03-31
"""
pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


def test_the_example_keeps_its_datasets_current() -> None:
    done = run_example(PROGRAM, "--to", END, popen=ForkedWithExchange)

    told, warned = done.stdout, done.stderr
    assert done.returncode == 0, told + warned
    assert "in a circle: prices → report → prices." in warned
    assert "Dataset 'prices' needs 'price', which is not defined" in warned
    assert "minutes@2024-01-01 needs prices at exactly 2024-01-01T12:34:00Z" in warned
    assert told.count("exit 2") == 3
    assert PLAN in told
    assert "committed: 61 prices, 0 returns" in told
    assert "where it was left" in warned
    assert "Built 127 slices (plan " in told
    assert "Up to date: 127 slices, nothing to build." in told
    assert "volatility  3 of another version or root\nreport      3 after their inputs\n" in told
    assert "Built 6 slices, 121 were up to date" in told
    assert "built anew: volatility and report" in told
    assert "2024-03,INITECH,73.87,0.6858," in told
    assert "Traceback" not in warned


def test_readme_types_what_the_example_types() -> None:
    """The commands by hand are among those of the program."""
    page = (MARKET / "README.md").read_text()
    by_hand = page.rpartition("```text\n")[2].partition("```")[0].splitlines()

    program = PROGRAM.read_text().replace("{asked}", "report --from 2024-01-01 --to 2025-01-01")
    typed = [line for line in by_hand if line.startswith("penstock")]
    assert len(typed) == 4
    assert all(f'"{line}"' in program for line in typed)

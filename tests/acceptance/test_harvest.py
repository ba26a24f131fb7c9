# SPDX-License-Identifier: Apache-2.0
"""Does the harvest example find the hidden limits, and begin with them the second time?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cloned_commands import run_example

HARVEST = Path(__file__).resolve().parents[2] / "examples/harvest"
FOUND = re.compile(r"archive limit (?:\d+ → )?(\d+) of 256")
pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


def test_harvest_finds_the_limits_and_keeps_them() -> None:
    done = run_example(HARVEST / "harvest.py", "--documents", "240")

    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert "240 done, 0 skipped, 0 error" in told
    assert "60 done, 0 skipped, 0 error" in told
    document = told.partition("$ penstock providers --json\n")[2].partition("\n\n")[0]
    (row,) = json.loads(document)["providers"]
    assert row["provider"] == "archive"
    assert row["learned"]["latency_seconds"] > 0
    limits = [int(one) for one in FOUND.findall(done.stderr)]
    assert limits, done.stderr


def test_readme_types_what_the_harvest_types() -> None:
    """The commands by hand are those of the program, in the same order."""
    page = (HARVEST / "README.md").read_text()
    by_hand = page.rpartition("```text\n")[2].partition("```")[0].splitlines()

    typed = [line for line in by_hand if line.startswith("penstock")]

    program = (HARVEST / "harvest.py").read_text()
    assert len(typed) == 4
    assert all(f'"{line}"' in program for line in typed)

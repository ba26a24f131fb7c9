# SPDX-License-Identifier: Apache-2.0
"""Does the example of a table buy again no more than was in flight when it was killed?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cloned_commands import run_example
from tests.forked import ForkedWithArrow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/reviews"
ROWS = 96
MAX_PARALLEL = 16
pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.faults]


def test_the_same_command_goes_on_and_reuses_what_was_bought() -> None:
    done = run_example(EXAMPLE / "reviews.py", "--rows", str(ROWS), popen=ForkedWithArrow)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ kill -9 " in done.stdout
    (again,) = _numbers(rf"{ROWS} rows, {ROWS * 2} answers needed; bought again: (\d+)", done)
    assert again <= MAX_PARALLEL
    bought, reused = _numbers(r"Paid calls: (\d+) bought, (\d+) reused", done)
    assert 0 < bought <= ROWS * 2
    assert reused > 0
    assert "hub/README.md\nhub/data/train-00000-of-00001.parquet" in done.stdout


def _numbers(pattern: str, done: object) -> list[int]:
    text = f"{getattr(done, 'stdout', '')}{getattr(done, 'stderr', '')}"
    found = re.search(pattern, text)
    assert found, text
    return [int(one) for one in found.groups()]


def test_readme_types_what_the_example_types() -> None:
    page = (EXAMPLE / "README.md").read_text()
    by_hand = page.rpartition("```text\n")[2].partition("```")[0].splitlines()
    program = (EXAMPLE / "reviews.py").read_text()

    assert by_hand[1] == "penstock table generate --rows 500"
    assert 'generate = f"penstock table generate --rows {rows}"' in program
    for command in by_hand[2:]:
        assert f'shell.type("{command}")' in program
    assert f"max_parallel={MAX_PARALLEL}" in (EXAMPLE / "pipeline.py").read_text()

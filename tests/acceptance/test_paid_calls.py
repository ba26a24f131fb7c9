# SPDX-License-Identifier: Apache-2.0
"""Does the example of paid calls reuse what it had bought before it was killed?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cloned_commands import run_example
from tests.forked import ForkedWithOpenAI

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/paid_calls"
REVIEWS = 12
MAX_PARALLEL = 8
pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.faults]


def test_second_run_reuses_what_the_first_one_bought() -> None:
    program = EXAMPLE / "paid_calls.py"
    done = run_example(program, "--reviews", str(REVIEWS), popen=ForkedWithOpenAI)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ kill -9 " in done.stdout
    left, needed = _numbers(r"(\d+) reviews were left, which need (\d+) answers", done.stdout)
    reused, bought = _numbers(r"reused (\d+), bought (\d+)", done.stdout)
    (twice,) = _numbers(r"asked twice: (\d+)", done.stdout)
    assert needed == left * 3 == reused + bought
    assert reused > 0
    assert twice <= MAX_PARALLEL


def _numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    assert found, text
    return [int(one) for one in found.groups()]


def test_readme_types_what_the_example_types() -> None:
    page = (EXAMPLE / "README.md").read_text()
    by_hand = page.rpartition("```text\n")[2].partition("```")[0].splitlines()
    program = (EXAMPLE / "paid_calls.py").read_text()

    assert 'shell.type("penstock queue import reviews.jsonl --task judge")' in program
    assert by_hand[1] == "penstock queue import reviews.jsonl --task judge"
    assert by_hand[2].startswith("penstock queue run --drain &")
    assert by_hand[3] == "penstock queue run --drain"
    assert f"max_parallel={MAX_PARALLEL}" in (EXAMPLE / "pipeline.py").read_text()

# SPDX-License-Identifier: Apache-2.0
"""Does a supervised run tell its statistics once, and not once per worker?"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked

pytestmark = pytest.mark.faults

APP = """
import asyncio
from penstock import Context, Penstock

app = Penstock("told")

@app.task()
async def sleeps(ctx: Context, n: int) -> None:
    await asyncio.sleep(1.5)

if __name__ == "__main__":
    app.enqueue_many(sleeps.job(n=n) for n in range(4))
"""
CONFIG = """
app = "told.py"
durability = "normal"
[runtime]
async_slots = 1
statistics_seconds = 0.3
"""


def test_one_line_per_interval_for_the_whole_run(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(CONFIG)
    run_forked([sys.executable, "told.py"], cwd=tmp_path, check=True)

    ended = run_forked(
        [sys.executable, "-m", "penstock_command", "queue", "run", "--drain", "--processes", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert ended.returncode == 0
    lines = re.findall(r" INFO statistics: (.*)", ended.stderr)
    assert lines
    assert any(
        re.fullmatch(r"\d queued, [12] running, \d done \([0-9.]+/s\), 0 failed.*", line)
        for line in lines
    ), lines
    assert len(lines) == len(set(lines))  # told by one, and only when something changed

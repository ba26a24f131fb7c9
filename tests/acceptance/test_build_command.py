# SPDX-License-Identifier: Apache-2.0
"""What does `penstock build` say while it builds, and does no worker stand still for an import?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked

pytestmark = pytest.mark.acceptance

APP = """
import sys
from pathlib import Path
from penstock import Context, Penstock
from penstock.calendars import Daily

app = Penstock("shop")

@app.dataset(calendar=Daily(), max_attempts=1)
async def prices(ctx: Context, at) -> bytes:
    if Path("broken").exists() and at.day == 2:
        raise ValueError("the feed is down")
    return b"loaded" if "pyarrow" in sys.modules else b"not yet"

"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(APP)
    return tmp_path


def build(folder: Path, *more: str) -> subprocess.CompletedProcess[Any]:
    typed = ["build", "prices", "--from", "2024-01-01", "--to", "2024-01-05", *more]
    return run_forked(
        [sys.executable, "-m", "penstock_command", *typed],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_build_tells_its_plan_and_only_its_own_jobs(folder: Path) -> None:
    done = build(folder)

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Built 4 slices \(plan \w+\)\.\n", done.stdout)
    assert re.search(r"Planned prices as plan \w+: 4 slices in 4 jobs, 1 level\.", done.stderr)
    assert not re.search(r"[56] jobs ended", done.stderr), done.stderr  # its barrier and its end
    assert not re.search("Next:|retry-failed|queue run|event loop", done.stderr), done.stderr
    (first, *_) = folder.rglob("part-*")
    assert first.read_bytes() == b"loaded"


def test_a_build_that_failed_leaves_the_advice_to_its_report(folder: Path) -> None:
    (folder / "broken").touch()
    done = build(folder, "--json")
    document = json.loads(done.stdout)

    assert done.returncode == 1
    assert [one["slices"] for one in document["failed"]] == ["prices@2024-01-02"]
    assert document["slices"] == 3
    assert not re.search("Next:|retry-failed|queue run", done.stderr), done.stderr

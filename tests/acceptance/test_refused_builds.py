# SPDX-License-Identifier: Apache-2.0
"""Is a build that can never be planned refused in one sentence, before anything is written?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 60.0
APP = """
from datetime import datetime
from penstock import Context, Penstock, Slices
from penstock.calendars import Daily, Hourly

app = Penstock("refused")

@app.dataset(calendar=Daily("12:30"))
def prices(ctx: Context, at: datetime) -> bytes:
    return b""

@app.dataset(calendar=Hourly(), needs=[prices.exact()])
def report(ctx: Context, at: datetime, prices: Slices) -> bytes:
    return b""
"""


def build(folder: Path, target: str, end: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    asked = ["build", target, "--from", "2024-01-01", "--to", end, "--app", "pipeline:app"]
    return run_forked(
        [*PENSTOCK, *asked],
        cwd=folder,
        env={**environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("target", "end", "sentence"),
    [
        ("price", "2024-01-03", "No dataset named 'price' is registered"),
        ("report", "2024-01-03", "needs prices at exactly"),
        ("report", "2023-01-03", "lies after the end"),
    ],
)
def test_nothing_is_written_for_what_cannot_be_planned(
    tmp_path: Path, target: str, end: str, sentence: str
) -> None:
    (tmp_path / "pipeline.py").write_text(APP)

    refused = build(tmp_path, target, end)

    assert refused.returncode == 2, refused.stderr
    assert sentence in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == ["pipeline.py"]

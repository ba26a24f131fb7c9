# SPDX-License-Identifier: Apache-2.0
"""Is what cannot be built refused in one sentence, before there is a store or a folder?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import UsageError
from tests.forked import run_forked

pytestmark = pytest.mark.acceptance

HEAD = """
from datetime import datetime
from penstock import Context, Penstock, Slices
from penstock.calendars import Daily, Monthly

app = Penstock("market")
"""
CYCLE = """
@app.dataset(calendar=Daily(), needs=["report"])
def prices(ctx: Context, at: datetime, report: Slices) -> bytes: ...

@app.dataset(calendar=Daily(), needs=[prices])
def report(ctx: Context, at: datetime, prices: Slices) -> bytes: ...
"""
UNKNOWN = """
@app.dataset(calendar=Daily())
def prices(ctx: Context, at: datetime) -> bytes: ...

@app.dataset(calendar=Daily(), needs=["price"])
def report(ctx: Context, at: datetime, price: Slices) -> bytes: ...
"""
IMPOSSIBLE = """
@app.dataset(calendar=Daily("16:00"))
def prices(ctx: Context, at: datetime) -> bytes: ...

@app.dataset(calendar=Monthly(day=-1), needs=[prices.exact()])
def report(ctx: Context, at: datetime, prices: Slices) -> bytes: ...
"""
MISTAKES = {
    "a cycle": (CYCLE, "report", "in a circle: prices → report → prices."),
    "an unknown dependency": (UNKNOWN, "report", "'report' needs 'price', which is not defined;"),
    "an impossible mapping": (
        IMPOSSIBLE,
        "report",
        "report@2024-01-31 needs prices at exactly 2024-01-31T00:00:00Z, but the calendar of prices"
        " (daily 16:00 UTC) has no slice there",
    ),
    "an unknown target": (IMPOSSIBLE, "reprt", "No dataset named 'reprt' is registered"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["plan", "build"])
def test_a_mistake_is_told_in_one_sentence_and_nothing_is_written(
    folder: Path, command: str, mistake: str
) -> None:
    text, target, said = MISTAKES[mistake]
    (folder / "pipeline.py").write_text(HEAD + text)
    typed = [command, target, "--from", "2024-01-01", "--to", "2024-07-01"]

    done = run_forked(
        [sys.executable, "-m", "penstock_command", *typed],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["pipeline.py"]


def test_a_program_writes_nothing_either(folder: Path) -> None:
    found: dict[str, object] = {"__name__": "market"}
    exec(HEAD + IMPOSSIBLE, found)

    with pytest.raises(UsageError, match="needs prices at exactly"):
        found["app"].build("report", start="2024-01-01", end="2024-07-01")  # type: ignore[attr-defined]
    assert list(folder.iterdir()) == []

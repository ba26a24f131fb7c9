# SPDX-License-Identifier: Apache-2.0
"""Does a person on a terminal see a daemon check and tick, and get the terminal back by Ctrl-C?"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import environment_of_tests, kill_run
from tests.terminal import ProgramOnTerminal

pytestmark = pytest.mark.acceptance

APP = """
import asyncio
from pathlib import Path

from penstock import Context, Penstock, TickContext

app = Penstock("watch")
repos = app.partitions("repo", ["docs", "engine", "ill"])


@app.preflight(over=repos, hint="Make it.")
async def exists(ctx: Context, repo: str) -> None:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    if repo == "ill" and Path("go").read_text() == "refuse":
        raise LookupError("not there")


@app.every(0.2, over=repos)
async def poll(ctx: TickContext, repo: str) -> None:
    if repo == "ill":
        raise ValueError("it is broken")
    ctx.cursor = (ctx.cursor or 0) + 1
    ctx.enqueue(look_at.job(number=ctx.cursor), key=f"{repo}#{ctx.cursor}")


@app.task()
async def look_at(ctx: Context, number: int) -> int:
    return number
"""
RUN = (sys.executable, "-m", "penstock.cli.main", "run", "watch.py")


@contextmanager
def daemon(folder: Path) -> Iterator[ProgramOnTerminal]:
    (folder / "watch.py").write_text(APP)
    with ProgramOnTerminal(RUN, cwd=folder, env=environment_of_tests(TERM="xterm")) as program:
        try:
            yield program
        finally:
            kill_run(program.process)


def assert_given_back(program: ProgramOnTerminal) -> None:
    assert program.modes == program.modes_before
    assert program.screen.modes == {"1049": False, "25": True, "7": True, "2004": False}


def test_a_daemon_is_seen_checking_and_ticking_and_ended_by_ctrl_c(tmp_path: Path) -> None:
    with daemon(tmp_path) as program:
        program.wait_for(r"^penstock · checking .*\n0 of 3 preflights have passed$")
        (tmp_path / "go").write_text("on")
        program.wait_for(r"^penstock · working ")
        program.wait_for(r"^[1-9]\d* done ")
        program.wait_for(r"^3 units of schedules · \d ticking · 1 degraded$")

        program.type("\x03")
        assert program.ended() == 130

        shown = program.screen.text()
        assert_given_back(program)
        assert "Stopping: what runs has" in shown
        assert re.search(r"^[1-9]\d* done, 0 skipped, 0 error in ", shown, re.MULTILINE)
        assert "\n3 units of schedules, 1 degraded, see penstock doctor --app watch.py\n" in shown
        last = shown.splitlines()[-1]
        assert last.startswith("Next: penstock run --app watch.py continues with ")
        assert "Traceback" not in shown


def test_ctrl_c_while_preflights_run_starts_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path) as program:
        program.wait_for(r"^0 of 3 preflights have passed$")
        program.type("\x03")
        assert program.ended() == 130

        shown = program.screen.text()
        assert_given_back(program)
        assert "Traceback" not in shown
        assert "done" not in shown


def test_a_preflight_that_fails_is_named_on_the_terminal_that_comes_back(tmp_path: Path) -> None:
    with daemon(tmp_path) as program:
        program.wait_for(r"^0 of 3 preflights have passed$")
        (tmp_path / "go").write_text("refuse")
        assert program.ended() == 3

        shown = program.screen.text()
        assert_given_back(program)
        assert re.search(r"^FAILED  exists:ill  LookupError: not there\n +Make it\.$", shown, re.M)
        assert shown.endswith("1 of 3 preflights failed; nothing else was started.")

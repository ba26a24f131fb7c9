# SPDX-License-Identifier: Apache-2.0
"""Does a person on a terminal see a run, steer it by keys, and get the terminal back?"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.admission.requests.adaptive.window import FREE
from penstock.model.job import NewJob
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing import ProviderRules, SimulatedProvider
from tests.processes import environment_of_tests, kill_run
from tests.terminal import ProgramOnTerminal

pytestmark = pytest.mark.acceptance

APP = """
import os
from penstock import Context, Penstock

app = Penstock("shop")
crossref = app.provider("crossref", base_url=os.environ["SHOP_URL"])


@app.task(uses=crossref)
async def fetch(ctx: Context, number: int) -> int:
    reply = await crossref.http.get(f"/works/{number}")
    reply.raise_for_status()
    return number
"""

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
NEVER = 3600.0  # seconds that a reply takes
JOBS = FREE + 8  # more than a window grows to before anything has ended: some wait, for good

DONE = """\
penstock · working · # s · # worker (pid #) · # of # slots
# done # failed # running # queued
[bar] #/s · nothing left · mean #/s · #% of #

provider limit in flight waiting 429s failed rpm binds now
crossref # of # # # # # # not the provider"""

BUSY = """\
penstock · draining · # s · # worker (pid #) · # of # slots
# done # failed # running # queued
[bar] #/s · time left – · mean #/s · #% of #

provider limit in flight waiting 429s failed rpm binds now
crossref # of # # # # # – adaptive limit

waiting for # crossref is at its adaptive limit of #"""

TINY = """\
working · # s
# done # failed
#/s · # left
provider limit
crossref # of #
p pause d drain"""


def masked(screen: str) -> str:
    """The screen without what differs from run to run: numbers, widths, the bar, the log."""
    screen = re.sub(r" · sqlite:\S+", "", screen)
    screen = re.sub(r"[█▏▎▍▌▋▊▉░]+", "[bar]", screen)
    screen = re.sub(r"\b(?!429s)(\d+:)*\d[\d,.]*", "#", screen)
    screen = re.sub(r" +", " ", screen)
    return re.split(r"\n\n(?:# (?:INFO|WARNING)|p pause)", screen)[0].rstrip()


@contextmanager
def shop(folder: Path, *arguments: str, latency: float, **env: str) -> Iterator[ProgramOnTerminal]:
    """A run of JOBS jobs on a terminal, against a provider on loopback."""
    (folder / "shop.py").write_text(APP)
    with SimulatedProvider(ProviderRules(latency=latency)) as provider:
        known = {"SHOP_URL": provider.url, "TERM": "xterm", "PENSTOCK_RUNTIME__GRACE_SECONDS": "0"}
        environment = environment_of_tests(**{**known, **env})
        (folder / ".penstock").mkdir()
        with closing(SqliteStore.open(folder / ".penstock/shop.db", durability="normal")) as store:
            store.enqueue([_job(number) for number in range(JOBS)]).result()
        command = arguments or (*PENSTOCK, "queue", "run", "shop.py")
        with ProgramOnTerminal(command, cwd=folder, env=environment) as program:
            try:
                yield program
            finally:
                kill_run(program.process)


def _job(number: int) -> NewJob:
    payload = f'{{"number":{number}}}'
    return NewJob(key=f"fetch:{number}", task="fetch", payload=payload, group="fetch")


def is_taken(program: ProgramOnTerminal) -> bool:
    return program.screen.is_alternate


def assert_given_back(program: ProgramOnTerminal) -> None:
    assert program.modes == program.modes_before
    assert program.screen.modes == {"1049": False, "25": True, "7": True, "2004": False}


def test_a_run_is_seen_resized_paused_and_drained(tmp_path: Path) -> None:
    with shop(tmp_path, latency=0.01) as program:
        program.wait_for(rf"^{JOBS} done .* 0 running")
        assert masked(program.wait_for("not the provider")) == DONE
        assert program.screen.colours > 0

        program.resize(20, 6)
        assert masked(program.wait_for(r"^p pause   d drain$")) == TINY
        program.resize(90, 24)
        program.wait_for(r"^penstock · working")

        program.type("p")
        program.wait_for(r"^penstock · paused")
        program.type("?")
        program.wait_for(r"^q  stop, as Ctrl-C does")
        program.type("?p")
        program.wait_for(r"^penstock · working")
        assert program.modes != program.modes_before  # keys come at once and unseen

        program.type("d")
        assert program.ended() == 0

        shown = program.screen.text()
        assert_given_back(program)
        assert re.search(rf"^{JOBS} done, 0 skipped, 0 error in ", shown, re.MULTILINE)
        assert f"\ncrossref: {JOBS} requests, 0 refused with 429; limit" in shown
        assert "supervisor: The queue was paused by a key." in shown  # the log is not lost


@pytest.mark.parametrize(("how", "code"), [("q", 130), ("TERM", 0), ("QUIT", -signal.SIGQUIT)])
def test_the_terminal_is_given_back_however_the_run_ends(
    tmp_path: Path, how: str, code: int
) -> None:
    command = (*PENSTOCK, "queue", "run", "shop.py", "--drain")
    with shop(tmp_path, *command, latency=NEVER, NO_COLOR="1") as program:
        seen = program.wait_for(r"adaptive limit of \d+$")
        if how == "q":
            assert masked(seen) == BUSY

        if len(how) == 1:
            program.type(how)
        else:
            os.kill(program.process.pid, signal.Signals[f"SIG{how}"])

        assert program.ended() == code
        assert_given_back(program)
        assert program.screen.colours <= 1  # the one that takes all colours back
        if code >= 0:
            assert "0 done, 0 skipped, 0 error in " in program.screen.text()
            assert "penstock queue run --drain --app shop.py continues" in program.screen.text()


BROKEN = """
from penstock.cli import main
from penstock.supervisor import supervisor

look = supervisor.Supervisor._look_around

def broken(self):
    look(self)
    if self._display._terminal._drawn:
        raise ZeroDivisionError("a bug of ours")

supervisor.Supervisor._look_around = broken
main.run(["queue", "run", "shop.py"])
"""


def test_the_terminal_is_given_back_by_a_bug(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)

    with shop(tmp_path, sys.executable, "broken.py", latency=NEVER) as program:
        assert program.ended() == 1
        assert_given_back(program)
        assert "a bug of ours. This is our bug" in program.screen.text()


def test_ctrl_z_gives_the_terminal_back_until_the_run_is_in_the_foreground_again(
    tmp_path: Path,
) -> None:
    with shop(tmp_path, "/bin/sh", "-i", latency=NEVER, PS1="shell> ", ENV="") as program:
        program.wait_for(r"^shell>$")
        program.type(f"{' '.join(PENSTOCK)} queue run shop.py\n")
        program.wait_for(r"^penstock · working")
        program.wait_for("adaptive limit of")
        assert is_taken(program)

        program.type("\x1a")
        program.wait_for(r"(?i)stopped|suspended")
        assert not is_taken(program)
        program.type("echo back in the $((40 + 2))\n")
        program.wait_for("back in the 42")
        program.type("fg\n")
        program.wait_for(r"^penstock · working")
        program.type("\x03")
        program.wait_for(r"^0 done, 0 skipped, 0 error in ")
        program.wait_for(r"^shell>$")

        assert_given_back(program)
        program.type("exit\n")
        program.ended()


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(tmp_path: Path) -> None:
    command = (*PENSTOCK, "queue", "run", "shop.py", "--drain")
    with shop(tmp_path, *command, latency=0.01, TERM="dumb") as program:
        assert program.ended() == 0

        assert "\x1b" not in program.written
        assert "jobs to do." in program.written
        assert f"{JOBS} done, 0 skipped, 0 error in " in program.written
        assert f"crossref: {JOBS} requests, " in program.written

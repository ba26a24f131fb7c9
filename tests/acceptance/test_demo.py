# SPDX-License-Identifier: Apache-2.0
"""Is what `penstock demo` tells true, and does it leave nothing behind, whenever it is stopped?"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from penstock.model.job import JobId, JobState
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter
from tests.forked import run_forked
from tests.processes import environment_of_tests
from tests.pseudo_terminal import on_terminal
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.faults]

DEMO = [sys.executable, "-m", "penstock_command", "demo", "--fast"]
SECONDS = 240.0  # of a busy machine
CALLS_EACH = 3
INTERRUPTED = "Interrupted: the processes of the demo are ended, its folder is removed.\n"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def environment(scratch: Path, **more: str) -> dict[str, str]:
    """Where a proxy and another app are set, which are none of the demo's business."""
    return environment_of_tests(
        TMPDIR=str(scratch),
        PENSTOCK_APP="nosuch.py",
        PENSTOCK_STORE="postgresql://nobody@127.0.0.1:1/none",
        HTTP_PROXY="http://127.0.0.1:1",
        http_proxy="http://127.0.0.1:1",
        **more,
    )


def left_running(scratch: Path) -> list[int]:
    """Processes that the demo has started, known by its environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={scratch}\0".encode() in told:
            found.append(int(entry.name))
    return found


def numbers(line: str) -> list[int]:
    return [int(one.replace(",", "")) for one in re.findall(r"\d[\d,]*", line)]


def test_story_says_what_journal_and_provider_say(tmp_path: Path, scratch: Path) -> None:
    """The printed numbers against the store that was kept, and against a tap on the provider."""
    tap, kept = tmp_path / "tap.json", tmp_path / "kept"

    done = subprocess.run(
        [sys.executable, "-m", "tests.tapped_demo", "demo", "--fast", "--keep", str(kept)],
        env=environment(scratch, DEMO_TAP=str(tap)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    told = {
        line.split()[0]: line for line in done.stdout.partition("\nReport\n")[2].splitlines()[:6]
    }
    accepted_documents, done_documents, lost = numbers(told["documents"])
    assert (done_documents, lost) == (accepted_documents, 0)
    total = accepted_documents * CALLS_EACH

    tapped = json.loads(tap.read_text())
    taken, served = tapped["accepted"], tapped["served"]
    bought, reused, bought_again = numbers(told["answers"])
    assert (bought, bought_again) == (total, 0)
    taken_told, total_told, twice_told, served_told = numbers(told["provider"])
    assert taken_told == sum(taken.values()) == total + twice_told
    assert (total_told, served_told) == (total, sum(served.values()))
    assert len(taken) == total  # no call has another body the second time
    assert numbers(told["429s"])[1:] == [tapped["refused"], 0]
    assert tapped["refused"] > 0

    in_hand = next(line for line in done.stdout.splitlines() if "documents in hand" in line)
    _, documents, to_reuse, in_flight = numbers(in_hand)
    assert reused == to_reuse > 0
    assert f"  {reused} answers reused, 0 bought again.\n" in done.stdout
    assert documents > 0
    assert sum(served.values()) - total <= twice_told <= in_flight

    found, fallen, back = numbers(re.findall(r"The limit went (.*?)\.", done.stdout)[0])
    assert found > fallen < back

    store = open_store("sqlite:///.penstock/demo.db", folder=kept, reading_will_do=True)
    try:
        jobs = store.jobs(JobFilter(), JobId(0), 500).result()
        figures = store.call_figures(None).result()
        calls = [call for job in jobs for call in store.calls(job.id).result()]
    finally:
        store.close()
    assert {job.state for job in jobs} == {JobState.DONE}
    assert all(job.attempts == 0 for job in jobs), "a refusal or the kill was charged"
    assert (figures.bought, figures.reused) == (bought, reused)
    assert figures.in_doubt <= in_flight  # cut off by the kill: they may have been served
    assert [call.bought for call in calls] == [1] * total
    assert f"{figures.spent.tokens:,} tokens" in told["spent"]

    assert list(scratch.iterdir()) == []
    assert left_running(scratch) == []
    commands = [line.split("#")[0].split() for line in done.stdout.splitlines() if "  # " in line]
    assert commands[0] == ["cd", str(kept)]
    for command in commands[1:]:
        subprocess.run(
            [sys.executable, "-m", "penstock_command", *command[1:]],
            cwd=kept,
            env=environment_of_tests(),
            check=True,
            capture_output=True,
        )


@pytest.mark.parametrize("moment", ["documents, 3 paid calls", "Now the provider allows"])
def test_ctrl_c_ends_it_and_nothing_is_left(moment: str, scratch: Path) -> None:
    """At the first line, and in a burst of refusals."""
    with subprocess.Popen(
        DEMO,
        env=environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        read_until(demo.stdout, moment)
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)  # impatience changes nothing
        rest, said = demo.communicate(timeout=SECONDS)

    assert demo.returncode == 130, rest + said
    assert said == INTERRUPTED
    assert "bought again" not in rest
    assert list(scratch.iterdir()) == []
    assert left_running(scratch) == []


def read_until(lines: IO[str], text: str) -> None:
    for line in lines:
        if text in line:
            return
    raise AssertionError(f"the demo has not said {text!r}")


def test_a_reader_that_leaves_ends_it_in_silence(scratch: Path) -> None:
    with subprocess.Popen(
        DEMO, env=environment(scratch), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        demo.stdout.readline()
        demo.stdout.close()
        said = demo.stderr.read()

    assert (demo.returncode, said) == (0, b"")
    assert list(scratch.iterdir()) == []
    assert left_running(scratch) == []


def test_death_of_the_demo_itself_takes_its_run_along(scratch: Path) -> None:
    """Nobody can tidy up after a kill -9 of everything, but nothing may go on running."""
    with subprocess.Popen(
        DEMO, env=environment(scratch), stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        read_until(demo.stdout, "  limit ")
        assert len(left_running(scratch)) >= 3  # it, a supervisor, a worker
        demo.kill()

    wait_until(lambda: left_running(scratch) == [])


def test_on_a_terminal_a_line_moves_and_ctrl_c_at_the_kill_is_clean(scratch: Path) -> None:
    with on_terminal(DEMO, env=environment(scratch)) as terminal:
        terminal.read_until(b"$ kill -9")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until(None)
        code = terminal.process.wait(SECONDS)

    assert code == 130
    text = terminal.seen.decode()
    assert "\x1b[1mAct 1: " in text
    drawn = [part for part in text.split("\r\x1b[2K") if part.startswith("  limit")]
    assert sum("\n" not in part for part in drawn) > 1, "the line is redrawn in place"
    end = f"{INTERRUPTED[:-1]}\r\n"
    assert text.endswith((f"\n{end}", f"\r\x1b[2K{end}"))
    assert list(scratch.iterdir()) == []
    assert left_running(scratch) == []


def test_a_folder_with_something_in_it_is_not_touched(scratch: Path) -> None:
    (scratch / "mine.txt").write_text("mine")

    done = run_forked([*DEMO, "--keep", str(scratch)], capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr == f"{str(scratch)!r} is not an empty folder; name a new one with --keep.\n"
    assert [path.name for path in scratch.iterdir()] == ["mine.txt"]

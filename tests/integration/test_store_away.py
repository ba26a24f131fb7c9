# SPDX-License-Identifier: Apache-2.0
"""What do real processes do while their store's server is away, and when it is back?"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import JobState
from tests.faults.shop import NOTES, Shop
from tests.integration.away import FILE, SENTENCE
from tests.processes import children_of, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

APP = (
    NOTES
    + """
@app.task()
async def sleeps(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)

@app.task()
def deaf_at_first(ctx: Context) -> None:
    first = not os.path.exists(HERE + "/bodies.log")
    note("start", ctx)
    time.sleep(600 if first else 0)
    note("end", ctx)
"""
)
LONG = "60"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def start(shop: Shop, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    entry = "tests.integration.away"
    return shop.run(*arguments, quick=True, cloned=True, entry=entry, **environment)


def goes_away(shop: Shop) -> None:
    (shop.folder / FILE).touch()


def comes_back(shop: Shop) -> None:
    (shop.folder / FILE).unlink()


def hears(run: subprocess.Popen[str], words: str) -> str:
    """Read what a run says up to these words."""
    assert run.stderr is not None
    said = ""
    while words not in said:
        line = run.stderr.readline()
        assert line, said
        said += line
    return said


def rest_of(run: subprocess.Popen[str]) -> str:
    _, err = run.communicate(timeout=240)
    return err


def test_a_run_waits_at_its_start_for_a_server_that_comes_up(shop: Shop) -> None:
    shop.add("sleeps", 3, seconds=0)
    goes_away(shop)
    run = start(shop, "--drain", "--processes", "2")
    said = hears(run, "The store is unreachable: " + SENTENCE + " Waiting for it up to 30 s.")
    comes_back(shop)
    said += rest_of(run)

    assert run.returncode == 0, said
    assert said.count("is unreachable") == said.count("is reachable again after") == 1
    assert set(shop.states().values()) == {JobState.DONE}


def test_a_run_whose_server_does_not_come_up_ends_with_one_sentence(shop: Shop) -> None:
    goes_away(shop)
    run = start(shop, "--drain", PENSTOCK_TEST_WAIT="0.6")
    lines = rest_of(run).splitlines()

    assert run.returncode == 1
    assert "Waiting for it up to 0.6 s." in lines[0]
    assert lines[1:] == [SENTENCE]


def test_work_goes_on_after_an_outage_and_nothing_is_done_twice(shop: Shop) -> None:
    shop.add("sleeps", 12, seconds=1.5)
    run = start(shop, "--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS=LONG)
    wait_until(lambda: len(shop.bodies()) >= 4)
    goes_away(shop)
    said = hears(run, "Running jobs go on; none is started until it is reachable again.")
    wait_until(lambda: len(shop.bodies("end")) >= 4)
    assert not any(state is JobState.DONE for state in shop.states().values())
    comes_back(shop)
    said += rest_of(run)

    assert run.returncode == 0, said
    assert "The store is reachable again after" in said
    assert set(shop.states().values()) == {JobState.DONE}
    assert set(shop.starts().values()) == {1}


def test_a_body_that_does_not_stop_dies_with_its_worker_while_the_server_is_away(
    shop: Shop,
) -> None:
    shop.add("deaf_at_first")
    run = start(shop, "--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="3")
    wait_until(lambda: len(shop.bodies()) == 1)
    ((_, pid, _),) = shop.bodies()
    goes_away(shop)
    said = hears(run, "runs jobs after the end of its lease and is killed")
    wait_until(lambda: not is_alive(pid))
    said += hears(run, "Waiting for it.")  # the next worker, however long
    comes_back(shop)
    said += rest_of(run)

    assert run.returncode == 0, said
    assert shop.starts() == {"deaf_at_first-0": 2}
    assert shop.outcomes("deaf_at_first-0")[-1] == "done"
    assert "quarantine" not in said, "nobody is under suspicion: the server was away"


def test_a_worker_that_dies_while_the_server_is_away_is_reaped_when_it_is_back(
    shop: Shop,
) -> None:
    """Long before its lease ends."""
    shop.add("sleeps", 1, seconds=4)
    run = start(shop, "--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="600")
    wait_until(lambda: len(shop.bodies()) == 1)
    (worker,) = children_of(run.pid)
    goes_away(shop)
    os.kill(worker, signal.SIGKILL)
    said = hears(run, "come back when the store answers")
    comes_back(shop)
    said += rest_of(run)

    assert run.returncode == 0, said
    assert shop.outcomes("sleeps-0") == ["lost", "done"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_while_the_server_is_away_ends_soon(
    shop: Shop, number: signal.Signals
) -> None:
    shop.add("sleeps", 1, seconds=600)
    run = start(shop, PENSTOCK_RUNTIME__LEASE_TTL_SECONDS=LONG)
    wait_until(lambda: len(shop.bodies()) == 1)
    goes_away(shop)
    hears(run, "The store is unreachable")
    run.send_signal(number)
    said = rest_of(run)

    assert run.returncode in {0, 1, 130}, said
    assert "Traceback" not in said
    assert shop.job("sleeps-0").state is JobState.IN_PROGRESS

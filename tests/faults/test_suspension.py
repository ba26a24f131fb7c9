# SPDX-License-Identifier: Apache-2.0
"""Does a run that is stopped as a whole, by Ctrl-Z or by SIGSTOP, go on as one?"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import JobState
from penstock.model.worker import is_abandoned
from penstock.process_identity import identity, is_gone, parent_of
from penstock.process_tree import descendants
from penstock.worker.process_guard import GUARD_NAME
from tests.faults.shop import CONFIG, NOTES, Shop
from tests.processes import children_of, environment_of_tests, freeze
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

LIMITED = CONFIG.replace("lease_ttl_seconds = 30.0", "lease_ttl_seconds = 4.0") + (
    "[limits.door]\none = 1\n"
)
APP = (
    NOTES
    + """
import fcntl, subprocess

def wait(ctx):
    note("start", ctx)
    for _ in range(4_000):
        if os.path.exists(HERE + "/go"):
            break
        time.sleep(0.05)
    note("end", ctx)

@app.task()
def waits(ctx: Context) -> None:
    wait(ctx)

@app.task()
def dies(ctx: Context) -> None:
    wait(ctx)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(executor="process")
def waits_with_program(ctx: Context) -> None:
    with subprocess.Popen(["sleep", "300"]) as program:
        wait(ctx)
        program.kill()

def stands_in(door):
    with open(door) as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

@app.task()
def stands_in_the_door(ctx: Context) -> None:
    before = [HERE + "/" + name for name in os.listdir(HERE) if name.startswith("door-")]
    with open(f"{HERE}/door-{os.getpid()}-{ctx.job.key}", "w") as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        note("beside" if any(map(stands_in, before)) else "alone", ctx)
        while not before and not os.path.exists(HERE + "/go"):
            time.sleep(0.02)
"""
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def start(shop: Shop, **environment: str) -> subprocess.Popen[str]:
    """A run in a process group of its own, as a shell starts it."""
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "queue", "run", "--drain"],
        cwd=shop.folder,
        env=environment_of_tests(**environment),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    shop.running.append(run)
    return run


def states(run: subprocess.Popen[str]) -> set[str]:
    """Of the supervisor and of all that it has started, but for guards."""
    found = set()
    for pid in (run.pid, *descendants(run.pid)):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        if name != GUARD_NAME:
            found.add(rest.split()[0])
    return found


def suspend(run: subprocess.Popen[str], shop: Shop) -> None:
    """Press Ctrl-Z; again, if it came while one of them had the turn to write."""
    with (shop.folder / "shop.db-turn").open() as turn:
        for _ in range(100):
            run.send_signal(signal.SIGTSTP)
            wait_until(lambda: states(run) == {"T"})
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                run.send_signal(signal.SIGCONT)
                wait_until(lambda: "T" not in states(run))
            else:
                return
    raise AssertionError("somebody always has the turn to write")


def test_f79_ctrl_z_stops_workers_and_task_processes_and_fg_continues_them(shop: Shop) -> None:
    keys = [*shop.add("waits"), *shop.add("waits_with_program")]
    run = start(shop)
    wait_until(lambda: len(shop.bodies()) == 2)
    wait_until(lambda: len(list(descendants(run.pid))) == 5)  # two with their guards, a program

    suspend(run, shop)
    (shop.folder / "go").touch()
    assert shop.bodies("end") == []
    run.send_signal(signal.SIGCONT)

    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    assert shop.starts() == dict.fromkeys(keys, 1)
    assert len(shop.bodies("end")) == 2


def test_f79_a_body_whose_lease_ended_while_it_was_stopped_never_goes_on(shop: Shop) -> None:
    shop.add("waits")
    run = start(shop, PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="4")
    wait_until(lambda: len(shop.bodies()) == 1)
    suspend(run, shop)
    (shop.folder / "go").touch()

    code, err = shop.drain()  # waits for the end of the lease, then works

    assert code == 0, err
    run.send_signal(signal.SIGCONT)
    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    assert "lost its lease while it was stopped" in err
    assert len(shop.bodies("end")) == 1
    assert shop.job("waits-0").state is JobState.DONE
    assert shop.outcomes("waits-0") == ["lost", "done"]


@pytest.fixture(params=["sqlite", "postgres"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop in which one may stand in the door at a time."""
    url = "sqlite:///shop.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        (tmp_path / "shop.db-turn").touch()  # nobody has a turn to write there
    shop = Shop(tmp_path, APP, LIMITED, url)
    yield shop
    shop.close()


def stop_all(run: subprocess.Popen[str], shop: Shop) -> list[int]:
    """Stop a whole run as a suspended machine does."""
    stopped = [*children_of(run.pid), run.pid]
    freeze(stopped, shop.folder / "shop.db")
    return stopped


def test_f79_a_run_that_wakes_without_its_lease_begins_nothing_beside_what_it_cannot_recall(
    limited: Shop,
) -> None:
    """Counted by locks of files: the body of the first job never ends by itself."""
    first = limited.add("stands_in_the_door", name="first", limit_key="door:one")
    run = limited.run("--drain")
    wait_until(lambda: len(limited.bodies("alone")) == 1)
    stopped = stop_all(run, limited)
    code, err = limited.drain()  # takes the job over when its lease has ended
    assert code == 0, err
    assert len(limited.bodies("beside")) == 1  # the heir: that one no longer counts
    later = limited.add("stands_in_the_door", 4, name="later", limit_key="door:one")

    for pid in stopped:
        os.kill(pid, signal.SIGCONT)

    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    assert limited.states() == dict.fromkeys([*first, *later], JobState.DONE)
    assert limited.outcomes("first-0") == ["lost", "done"]
    assert len(limited.bodies("beside")) == 1
    assert limited.store.check().result() == []


def test_a_worker_that_dies_while_its_supervisor_stands_still_is_left_for_it_to_report(
    shop: Shop,
) -> None:
    """Else what it ran would be no suspect, and would run beside others again."""
    shop.add("dies")
    run = start(shop)
    wait_until(lambda: bool(shop.bodies("start")))
    wait_until(lambda: bool(shop.store.workers().result()[0].status))
    (view,) = shop.store.workers().result()
    ((_, worker, _),) = shop.bodies("start")
    guard = identity(parent_of(worker))
    freeze([run.pid], shop.folder / "shop.db")

    (shop.folder / "go").touch()
    wait_until(lambda: is_gone(guard))

    assert not is_abandoned(view, is_gone)
    run.send_signal(signal.SIGCONT)
    wait_until(lambda: shop.job("dies-0").state is JobState.ERROR)
    assert shop.outcomes("dies-0")[:2] == ["lost", "crashed"]  # alone at once

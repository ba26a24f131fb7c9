# SPDX-License-Identifier: Apache-2.0
"""Do real processes stop, die and recover as docs/operations/deaths.md says?

Bodies leave a line at their start and their end; the store tells the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import JobId, JobState, WorkerId
from penstock.model.lease import ConfiguredCaps, JobRef, LeaseRequest, WorkerInfo
from tests.faults.shop import NOTES, Shop, ends_in_time
from tests.processes import children_of, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

MANY = 256

APP = (
    NOTES
    + """
@app.task()
async def sleeps(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)

@app.task()
async def waits_first(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    while not os.path.exists(HERE + "/go"):
        await asyncio.sleep(0.01)
    await asyncio.sleep(seconds)
    note("end", ctx)

@app.task()
async def deaf(ctx: Context) -> None:
    note("start", ctx)
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            continue

@app.task()
def deaf_thread(ctx: Context) -> None:
    note("start", ctx)
    time.sleep(600)

@app.task()
async def poison(ctx: Context) -> None:
    note("start", ctx)
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task()
async def leaves(ctx: Context) -> None:
    note("start", ctx)
    await asyncio.sleep(0.05)
    os._exit(0)
"""
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def test_signals_stop_a_run_in_order_and_what_is_left_is_done_by_the_next(shop: Shop) -> None:
    keys = shop.add("sleeps", 40, seconds=0.4)

    # SIGTERM: running jobs finish, the others are back in the queue, exit code 0.
    run = shop.run(PENSTOCK_RUNTIME__GRACE_SECONDS="50")
    wait_until(lambda: len(shop.bodies()) >= 4)
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)
    assert run.returncode == 0
    states = Counter(shop.states().values())
    assert set(states) == {JobState.QUEUED, JobState.DONE}
    assert states[JobState.DONE] == len(shop.bodies("end")) == len(shop.bodies()) >= 4

    # SIGINT: the same with 130.
    before = len(shop.bodies())
    run = shop.run(PENSTOCK_RUNTIME__GRACE_SECONDS="50")
    wait_until(lambda: len(shop.bodies()) > before)
    run.send_signal(signal.SIGINT)
    ends_in_time(run)
    assert run.returncode == 130
    assert JobState.IN_PROGRESS not in shop.states().values()

    code, err = shop.drain()
    assert code == 0, err
    assert shop.states() == dict.fromkeys(keys, JobState.DONE)
    assert shop.starts() == dict.fromkeys(keys, 1)  # nothing ran twice
    assert shop.store.check().result() == []


def test_nothing_that_a_task_does_can_hold_the_process(shop: Shop) -> None:
    shop.add("deaf")
    shop.add("deaf_thread")
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 2)
    workers = children_of(run.pid)
    run.send_signal(signal.SIGTERM)

    ends_in_time(run)

    assert run.returncode in (0, 1)
    assert not any(is_alive(pid) for pid in workers)
    assert set(shop.states().values()) == {JobState.QUEUED}
    assert [shop.job(key).attempts for key in ("deaf-0", "deaf_thread-0")] == [0, 0]


def test_a_second_signal_ends_at_once(shop: Shop) -> None:
    shop.add("sleeps", seconds=60.0)
    run = shop.run(PENSTOCK_RUNTIME__GRACE_SECONDS="50")
    wait_until(lambda: len(shop.bodies()) >= 1)
    run.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert run.poll() is None  # it lets the job finish
    run.send_signal(signal.SIGTERM)

    ends_in_time(run)  # and not after the 50 s of grace

    assert shop.states() == {"sleeps-0": JobState.QUEUED}
    assert shop.job("sleeps-0").attempts == 0


def test_a_killed_workers_jobs_come_back_at_once_and_its_running_ones_in_quarantine(
    shop: Shop,
) -> None:
    keys = shop.add("waits_first", 24, seconds=0.3)
    run = shop.run("--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="600")
    wait_until(lambda: len(shop.bodies()) >= 4)
    (worker,) = children_of(run.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))
    (shop.folder / "go").touch()

    run.wait(90)  # long before the 600 s of the lease, however busy the machine is
    assert run.returncode == 0
    assert shop.states() == dict.fromkeys(keys, JobState.DONE)
    suspects = {key for key, pid, _ in shop.bodies() if pid == worker}
    assert len(suspects) == 4
    assert not {key for key, pid, _ in shop.bodies("end") if pid == worker}
    again = [body for body in shop.bodies() if body[0] in suspects and body[1] != worker]
    assert len(again) == len(suspects)  # at most one repeat of each running job
    (quarantine,) = {pid for _, pid, _ in again}  # they ran together in a fresh worker
    assert {key for key, pid, _ in shop.bodies() if pid == quarantine} == suspects
    assert all(n == 1 for key, n in shop.starts().items() if key not in suspects)
    assert [a.outcome for a in shop.attempts(next(iter(suspects)))] == ["lost", "done"]


def test_of_many_jobs_that_ran_when_their_worker_was_killed_each_runs_once_more_with_the_others(
    shop: Shop,
) -> None:
    keys = shop.add("waits_first", MANY, seconds=2.0)
    run = shop.run("--drain", PENSTOCK_RUNTIME__ASYNC_SLOTS=str(MANY))
    wait_until(lambda: len(shop.bodies()) == MANY)
    (worker,) = children_of(run.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))
    (shop.folder / "go").touch()
    began = time.monotonic()

    run.wait(240)

    assert run.returncode == 0
    assert time.monotonic() - began < MANY * 2.0 / 8  # one after the other it is 8 min
    assert shop.states() == dict.fromkeys(keys, JobState.DONE)
    assert shop.starts() == dict.fromkeys(keys, 2)
    assert len({pid for _, pid, _ in shop.bodies("end")}) == 1


def test_after_a_kill_of_everything_the_next_run_goes_on_long_before_the_leases_end(
    shop: Shop,
) -> None:
    keys = shop.add("waits_first", 12, seconds=0.1)
    run = shop.run("--processes", "2", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="600")
    wait_until(lambda: len({pid for _, pid, _ in shop.bodies()}) >= 2)
    workers = children_of(run.pid)
    for order in (signal.SIGSTOP, signal.SIGKILL):  # none may see another one die, and act
        for pid in (run.pid, *workers):
            with contextlib.suppress(ProcessLookupError):  # it ends with its supervisor
                os.kill(pid, order)
    run.wait(30)
    wait_until(lambda: not any(is_alive(pid) for pid in workers))
    (shop.folder / "go").touch()
    ran = set(shop.starts())

    again = shop.run("--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="600")
    again.wait(90)  # and not after the 600 s of the leases

    assert again.returncode == 0
    assert shop.states() == dict.fromkeys(keys, JobState.DONE)
    assert [a.outcome for a in shop.attempts(ran.pop())] == ["lost", "done"]


def test_a_poison_job_ends_in_error_with_its_cause_and_takes_nobody_with_it(shop: Shop) -> None:
    keys = shop.add("sleeps", 12, seconds=0.1)
    shop.add("poison")
    shop.add("leaves")

    code, err = shop.drain()

    assert code == 1, err
    states = shop.states()
    assert {key: states[key] for key in keys} == dict.fromkeys(keys, JobState.DONE)
    for key, cause in (("poison-0", "killed by SIGKILL"), ("leaves-0", "exit code 0")):
        job = shop.job(key)
        assert job.state is JobState.ERROR
        assert job.last_error is not None
        assert job.last_error.category == "crashed"
        assert cause in job.last_error.message
        assert (job.crashes, job.attempts) == (2, 0)
        # In a crowd, together again, perhaps in halves, which costs nothing; twice alone.
        assert 3 <= shop.starts()[key] <= 5
    assert all(n <= 4 for key, n in shop.starts().items() if key in keys)
    assert shop.store.check().result() == []


def test_workers_do_not_outlive_a_killed_supervisor_and_another_run_finishes(shop: Shop) -> None:
    keys = shop.add("sleeps", 16, seconds=0.5)
    run = shop.run("--processes", "2", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="45")
    wait_until(lambda: len({pid for _, pid, _ in shop.bodies()}) >= 2)
    workers = children_of(run.pid)
    assert len(workers) == 2
    run.kill()

    wait_until(lambda: not any(is_alive(pid) for pid in workers), 40)  # not when the leases end

    code, err = shop.drain()
    assert code == 0, err
    assert shop.states() == dict.fromkeys(keys, JobState.DONE)
    assert all(shop.job(key).attempts == 0 for key in keys)
    assert shop.store.check().result() == []


def test_an_app_that_cannot_be_imported_is_told_in_one_sentence(shop: Shop) -> None:
    (shop.folder / "shop.py").write_text("import no_such_module\n")

    code, err = shop.drain()

    assert code == 2
    assert "no_such_module" in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_worker_that_dies_at_its_start_is_tried_three_times(shop: Shop) -> None:
    (shop.folder / "shop.py").write_text(
        "import os, signal\nopen('tries', 'a').write('x')\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    shop.add("sleeps", seconds=0.1)

    code, err = shop.drain()

    assert code == 1
    assert (shop.folder / "tries").read_text() == "xxx"
    assert "No worker could be started: killed by SIGSEGV." in err
    assert "Traceback" not in err
    assert shop.states() == {"sleeps-0": JobState.QUEUED}


def test_a_suspect_that_nobody_here_knows_does_not_start_one_process_after_another(
    shop: Shop,
) -> None:
    with (shop.folder / "shop.py").open("a") as source:
        source.write("\nopen('imports', 'a').write('x')\n")
    shop.store.sign_on("shop", None, JobId(0)).result()  # it is of this app, though of no task
    shop.add("gone", 1)
    shop.add("sleeps", 1, seconds=4.0)
    dead = WorkerId("dead")
    shop.store.register(WorkerInfo(id=dead, run_id="r", tasks=("gone",)), 60).result()
    request = LeaseRequest(worker=dead, tasks=("gone",), limit=1, caps=ConfiguredCaps())
    (job,) = shop.store.lease(request).result().jobs
    shop.store.reap(dead, [JobRef(job.id, job.token)], "killed by SIGKILL", 3).result()

    code, err = shop.drain()

    assert code == 1  # a job was left
    assert "'gone'" in err
    assert len((shop.folder / "imports").read_text()) <= 5

# SPDX-License-Identifier: Apache-2.0
"""What of bodies that do not stop, foul their process, or outlive their supervisor?"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import ErrorCategory, JobState
from tests.faults.shop import NOTES, Shop, ends_in_time
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

@app.task(timeout=0.5, max_attempts=1)
async def blocks(ctx: Context, how: str) -> None:
    note("start", ctx)
    if how == "sleep":
        time.sleep(600)
    elif how == "regex":
        import re
        re.match(r"(a+)+$", "a" * 60 + "b")
    while True:
        pass

@app.task(timeout=0.5, max_attempts=1)
def spins(ctx: Context) -> None:
    note("start", ctx)
    while True:
        pass

@app.task(timeout=0.5, max_attempts=1)
async def deaf(ctx: Context) -> None:
    note("start", ctx)
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            continue

@app.task(timeout=0.5, max_attempts=1)
async def tidies(ctx: Context) -> None:
    note("start", ctx)
    try:
        await asyncio.sleep(600)
    finally:
        time.sleep(0.01)
        await asyncio.shield(asyncio.sleep(600))

@app.task()
def hoards(ctx: Context) -> None:
    note("start", ctx)
    ctypes.PyDLL(None).sleep(600)  # a C call that keeps the GIL

@app.task()
def fouls(ctx: Context, how: str) -> None:
    note("start", ctx)
    if how == "folder":
        os.chdir("/")
    elif how == "slowly":
        os.chdir("/")
        time.sleep(0.2)
    elif how == "mask":
        os.umask(0o077)
    elif how == "descriptors":
        for descriptor in range(21):
            try:
                os.close(descriptor)
            except OSError:
                pass
    elif how == "children":
        reading, writing = os.pipe()
        if os.fork() == 0:
            note("child", ctx)
            os.write(writing, b"x")
            time.sleep(600)
        os.read(reading, 1)
    elif how == "environment":
        os.environ.clear()
    note("end", ctx)

@app.task(limits={"door": "one"})
def holds(ctx: Context) -> None:
    note("start", ctx)
    time.sleep(1.2)
    note("end", ctx)

@app.task(limits={"door": "one"})
async def stays(ctx: Context) -> None:
    note("start", ctx)
    while True:
        note("still", ctx)
        try:
            await asyncio.sleep(0.005)
        except BaseException:
            continue

@app.task(limits={"door": "one"})
async def enters(ctx: Context) -> None:
    note("start", ctx)
"""
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def test_f07_a_worker_that_keeps_the_gil_ends_a_second_after_its_supervisor(shop: Shop) -> None:
    shop.add("hoards")
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 1)
    (_, worker, _) = shop.bodies()[0]

    os.kill(run.pid, signal.SIGKILL)

    wait_until(lambda: not is_alive(worker))
    assert shop.job("hoards-0").state is JobState.IN_PROGRESS  # until its lease expires
    shop.store.cancel(["hoards-0"]).result()


def test_f07_a_worker_whose_supervisor_died_gives_back_what_has_not_started(shop: Shop) -> None:
    shop.add("sleeps", 30, seconds=600)
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 4)
    (worker,) = {pid for _, pid, _ in shop.bodies()}

    os.kill(run.pid, signal.SIGKILL)

    wait_until(lambda: not is_alive(worker))
    assert all(state is JobState.QUEUED for state in shop.states().values())
    assert all(shop.job(key).attempts == 0 for key in shop.states())


@pytest.mark.parametrize("how", ["sleep", "spin", "regex"])
def test_f53_a_body_that_blocks_the_loop_fails_by_its_time_limit(shop: Shop, how: str) -> None:
    neighbours = shop.add("sleeps", 3, seconds=0.2)
    shop.add("blocks", how=how)

    code, err = shop.drain(quick=True)

    assert code == 1
    job = shop.job("blocks-0")
    assert job.state is JobState.ERROR
    assert job.last_error is not None
    assert job.last_error.category is ErrorCategory.TIMEOUT
    assert (job.attempts, job.crashes) == (1, 0)
    assert shop.starts()["blocks-0"] == 1
    for key in neighbours:
        assert shop.job(key).state is JobState.DONE
        assert (shop.job(key).attempts, shop.job(key).crashes) == (0, 0)
    assert "is past its time limit and is killed" in err


def test_f53_a_thread_that_never_ends_is_given_up_and_its_worker_replaced(shop: Shop) -> None:
    shop.add("spins")
    neighbours = shop.add("sleeps", 8, seconds=0.6)

    code, err = shop.drain(quick=True)

    assert code == 1
    job = shop.job("spins-0")
    assert (job.state, job.attempts) == (JobState.ERROR, 1)
    assert job.last_error is not None
    assert job.last_error.category is ErrorCategory.TIMEOUT
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)
    assert all(count == 1 for count in shop.starts().values())
    assert "'spins-0' of task 'spins' was detached and still runs" in err
    assert shop.store.check().result() == []


@pytest.mark.parametrize("task", ["deaf", "tidies"])
def test_f54_a_swallowed_cancellation_is_given_up_and_the_process_recycled(
    shop: Shop, task: str
) -> None:
    shop.add(task)
    run = shop.run(quick=True)
    wait_until(lambda: shop.job(f"{task}-0").state is JobState.ERROR)
    (_, recycled, _) = shop.bodies()[0]

    wait_until(lambda: not is_alive(recycled))  # nothing else ran in it
    shop.add("sleeps", 2, seconds=0.01)
    wait_until(lambda: len(shop.bodies("end")) >= 2)

    assert recycled not in {pid for _, pid, _ in shop.bodies("end")}
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)
    assert run.returncode == 0
    assert run.stderr is not None
    assert f"'{task}-0' of task '{task}'" in run.stderr.read()


def test_f54_a_run_ends_in_time_although_a_body_swallows_everything(shop: Shop) -> None:
    shop.add("sleeps", 1, seconds=600)
    shop.add("deaf")
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 2)

    run.send_signal(signal.SIGTERM)

    ends_in_time(run)
    assert shop.job("sleeps-0").state is JobState.QUEUED
    assert shop.job("sleeps-0").attempts == 0


@pytest.mark.parametrize("how", ["folder", "mask"])
def test_f56_a_worker_whose_process_a_task_has_changed_is_replaced(shop: Shop, how: str) -> None:
    shop.add("fouls", how=how)
    run = shop.run(quick=True)
    wait_until(lambda: shop.job("fouls-0").state is JobState.DONE)
    (_, recycled, _) = shop.bodies()[0]

    wait_until(lambda: not is_alive(recycled))
    shop.add("sleeps", 1, seconds=0.01)
    wait_until(lambda: shop.job("sleeps-0").state is JobState.DONE)

    run.send_signal(signal.SIGTERM)
    ends_in_time(run)
    assert run.returncode == 0


@pytest.mark.parametrize("how", ["descriptors", "environment"])
def test_f56_closed_descriptors_do_not_reach_the_store(shop: Shop, how: str) -> None:
    shop.add("fouls", how=how)
    neighbours = shop.add("sleeps", 20, seconds=0.05)

    code, err = shop.drain()

    assert code == 0, err
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)
    assert all(count == 1 for count in shop.starts().values())


def test_f56_children_that_a_task_left_behind_end_with_the_worker(shop: Shop) -> None:
    shop.add("fouls", how="children")

    code, err = shop.drain()

    assert code == 0, err
    ((_, child, _),) = shop.bodies("child")
    wait_until(lambda: not is_alive(child))


def test_a_cancelled_thread_keeps_its_place_at_a_limit_until_its_body_has_ended(
    shop: Shop,
) -> None:
    (shop.folder / "penstock.toml").write_text(
        (shop.folder / "penstock.toml").read_text() + "[limits.door]\none = 1\n"
    )
    shop.add("holds", limit_key="door:one")
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 1)
    shop.add("enters", limit_key="door:one")

    assert shop.store.cancel(["holds-0"]).result() == {"holds-0"}

    assert shop.job("holds-0").state is JobState.CANCELLED
    wait_until(lambda: shop.job("enters-0").state is JobState.DONE)
    (ended,) = [at for key, _, at in shop.bodies("end") if key == "holds-0"]
    (entered,) = [at for key, _, at in shop.bodies() if key == "enters-0"]
    assert entered >= ended
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)


def test_a_cancelled_coroutine_is_stopped(shop: Shop) -> None:
    keys = shop.add("sleeps", 30, seconds=600)
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 4)

    assert shop.store.cancel(keys).result() == frozenset(keys)

    wait_until(lambda: not _detached(shop))
    assert set(shop.states().values()) == {JobState.CANCELLED}
    assert len(shop.bodies()) == 4  # those that waited in the window never began
    assert len(children_of(run.pid)) == 1
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)


def _detached(shop: Shop) -> bool:
    workers = shop.store.workers().result()
    return any(shop.store.inbox(worker.id).result().detached for worker in workers)


def test_f56_workers_that_are_fouled_again_and_again_are_replaced_ever_more_slowly(
    shop: Shop,
) -> None:
    shop.add("fouls", 400, how="slowly")
    run = shop.run(quick=True)

    wait_until(lambda: len({pid for _, pid, _ in shop.bodies()}) >= 4)

    run.send_signal(signal.SIGTERM)
    ends_in_time(run)
    firsts: dict[int, float] = {}
    for _, pid, at in shop.bodies():
        firsts.setdefault(pid, at)
    moments = list(firsts.values())[:4]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert gaps[2] > 0.4  # the third pause is 0.4 s, beside what a start takes


def test_a_worn_worker_that_dies_was_replaced_already(shop: Shop) -> None:
    shop.add("spins", 1)
    shop.add("sleeps", 1, seconds=600)
    run = shop.run(quick=True)
    wait_until(lambda: len(children_of(run.pid)) == 2)
    (recycled,) = {pid for key, pid, _ in shop.bodies() if key == "spins-0"}

    os.kill(recycled, signal.SIGKILL)

    wait_until(lambda: not is_alive(recycled))
    wait_until(lambda: shop.starts()["sleeps-0"] >= 2)  # alone, as a suspect
    wait_until(lambda: len(children_of(run.pid)) == 2)  # one worker, and one for the suspect
    time.sleep(1.0)
    assert len(children_of(run.pid)) == 2
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)


def test_a_body_that_outlives_its_run_keeps_its_place_until_its_process_has_ended(
    shop: Shop,
) -> None:
    (shop.folder / "penstock.toml").write_text(
        (shop.folder / "penstock.toml").read_text() + "[limits.door]\none = 1\n"
    )
    shop.add("stays", limit_key="door:one")
    first = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 1)
    shop.add("enters", limit_key="door:one")
    second = shop.run()
    wait_until(lambda: len(shop.store.workers().result()) == 2)

    first.send_signal(signal.SIGTERM)

    wait_until(lambda: len(shop.bodies()) >= 2)  # whichever comes first; the other may follow
    ends_in_time(first)
    (_, old, _), (_, new, entered) = shop.bodies()[:2]
    assert old != new
    assert entered > max(at for _, pid, at in shop.bodies("still") if pid == old)
    assert (shop.job("stays-0").attempts, shop.job("stays-0").crashes) == (0, 0)
    second.kill()


def test_a_long_job_comes_to_its_end_beside_tasks_that_wear_their_worker_out(shop: Shop) -> None:
    shop.add("sleeps", seconds=6)
    shop.add("fouls", 200, how="slowly")
    run = shop.run(quick=True)

    wait_until(lambda: shop.job("sleeps-0").state is JobState.DONE)

    assert shop.starts()["sleeps-0"] == 1
    assert len({pid for _, pid, _ in shop.bodies()}) >= 2
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)

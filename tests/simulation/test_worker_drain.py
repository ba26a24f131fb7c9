# SPDX-License-Identifier: Apache-2.0
"""Does a drain end when nothing is left, and only then?"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobRef, LeaseRequest, WorkerInfo
from penstock.model.worker import WorkerStatus
from penstock.process_identity import own_identity
from penstock.worker.drain import LOOK_SECONDS
from tests.processes import MARK_OF_NOBODY
from tests.unit.worker.worker_world import World, simulate

PAUSED = "Waiting: the queue is paused; 'penstock queue resume' lets it go on."


def make_app(name: str = "drain", *extra: str) -> Penstock:
    app = Penstock(name)

    @app.task()
    async def sleeps(ctx: Context, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    @app.task(max_attempts=3)
    async def fails(ctx: Context) -> None:
        raise ValueError("mine")

    return app


def other_worker(world: World, tasks: tuple[str, ...], ttl: float = 1e6) -> WorkerId:
    worker = WorkerId(world.ids.new_id("other"))
    world.store.register(WorkerInfo(id=worker, run_id="elsewhere", tasks=tasks), ttl).result()
    return worker


def take(world: World, worker: WorkerId, tasks: tuple[str, ...], limit: int = 1) -> list[JobRef]:
    request = LeaseRequest(worker=worker, tasks=tasks, limit=limit, caps=ConfiguredCaps())
    return [JobRef(job.id, job.token) for job in world.store.lease(request).result().jobs]


def test_an_empty_queue_is_drained_at_once() -> None:
    async def main(world: World) -> None:
        worker = await world.drain()

        assert world.clock.monotonic() < 0.01
        assert (worker.totals.ended, worker.left_behind) == (0, 0)

    simulate(make_app(), main)


def test_delayed_jobs_and_retries_are_waited_for_and_start_when_they_are_due() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "late", delay=60)
        world.enqueue("sleeps", "later", delay=90)
        world.enqueue("fails", "fails")

        await world.drain()

        assert world.states() == {"late": "done", "later": "done", "fails": "error"}
        assert 89.999 < world.clock.monotonic() < 90.1

    simulate(make_app(), main)


def test_while_all_is_delayed_the_store_is_seldom_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        asked: list[float] = []
        outlook = world.store.outlook

        def ask(*about: Any) -> Any:
            asked.append(world.clock.monotonic())
            return outlook(*about)

        monkeypatch.setattr(world.store, "outlook", ask)
        world.enqueue("sleeps", "late", delay=60)

        await world.drain()

        assert len([at for at in asked if 1 < at < 59]) <= 60
        assert world.clock.monotonic() < 60.1

    simulate(make_app(), main)


def test_jobs_that_another_worker_holds_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "theirs")
        other = other_worker(world, ("sleeps",))
        refs = take(world, other, ("sleeps",))
        worker = world.worker()
        running = world.start(worker)

        await asyncio.sleep(100)
        assert not running.done()
        world.store.release(other, refs).result()
        world.store.retire(other).result()
        await running

        assert world.states() == {"theirs": "done"}
        assert world.clock.monotonic() < 100 + 2 * LOOK_SECONDS

    with caplog.at_level(logging.INFO, "penstock.worker"):
        simulate(make_app(), main)
    assert caplog.text.count("Waiting: 1 job is held by other workers.") == 1


def test_a_wait_for_a_delayed_job_says_its_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "late", delay=500)

        await world.drain()

    with caplog.at_level(logging.INFO, "penstock.worker"):
        simulate(make_app(), main)
    assert caplog.text.count("Waiting: 1 job is delayed") == 1


def test_a_dead_workers_jobs_are_taken_over_when_its_lease_has_expired() -> None:
    async def main(world: World) -> None:
        for n in range(3):
            world.enqueue("sleeps", f"j{n}")
        dead = other_worker(world, ("sleeps",), ttl=50)
        assert len(take(world, dead, ("sleeps",), 3)) == 3

        await world.drain()

        assert set(world.states().values()) == {JobState.DONE}
        assert 50 <= world.clock.monotonic() < 52
        assert [world.outcomes(f"j{n}") for n in range(3)] == [["lost", "done"]] * 3

    simulate(make_app(), main)


def test_jobs_of_unknown_tasks_are_named_and_left(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        world.put(*(NewJob(key=f"x{n}", task="gone", payload="{}", group="g") for n in range(3)))
        world.put(NewJob(key="y", task="also_gone", payload="{}", group="g", delay_seconds=1e6))
        world.enqueue("sleeps", "mine", seconds=5)

        worker = await world.drain()

        assert world.states()["mine"] == "done"
        assert worker.left_behind == 4
        assert world.clock.monotonic() < 6

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(make_app(), main)
    assert "3 jobs of task 'gone' are left" in caplog.text
    assert "1 job of task 'also_gone' is left" in caplog.text
    assert "cancel what is left: penstock queue cancel --task gone --yes" in caplog.text


def test_jobs_that_wait_for_unknown_ones_are_stuck_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        world.put(NewJob(key="x", task="gone", payload="{}", group="g"))
        world.enqueue("sleeps", "child", after=["x"])
        world.enqueue("sleeps", "grandchild", after=["child"])
        world.enqueue("sleeps", "free", seconds=3)

        worker = await world.drain()

        assert world.states() == {
            "x": "queued",
            "child": "waiting",
            "grandchild": "waiting",
            "free": "done",
        }
        assert worker.left_behind == 3
        assert world.clock.monotonic() < 4

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(make_app(), main)
    assert "2 jobs wait for those and are left as well." in caplog.text


def test_tasks_that_another_live_worker_knows_are_waited_for() -> None:
    async def main(world: World) -> None:
        world.put(NewJob(key="x", task="theirs", payload="{}", group="g"))
        other = other_worker(world, ("theirs",), ttl=30)
        running = world.start(world.worker())

        await asyncio.sleep(20)
        assert not running.done()  # somebody alive may still do it
        await running

        assert world.states() == {"x": "queued"}
        assert world.clock.monotonic() == pytest.approx(30.5, abs=0.51)
        assert other not in [view.id for view in world.store.workers().result() if view.alive]

    simulate(make_app(), main)


def test_two_draining_workers_of_different_apps_end_together() -> None:
    first, second = Penstock("one"), Penstock("two")

    @first.task()
    async def ping(ctx: Context, n: int) -> None:
        await asyncio.sleep(1)

    @second.task()
    async def pong(ctx: Context, n: int) -> None:
        await asyncio.sleep(2)

    async def main(world: World) -> None:
        world.enqueue("ping", "a", n=1)
        world.put(NewJob(key="b", task="pong", payload='{"n": 1}', group="g"))
        world.enqueue("ping", "c", after=["b"], n=2)

        both = [world.start(world.worker()), world.start(world.worker(app=second))]
        await asyncio.gather(*both)

        assert world.states() == {"a": "done", "b": "done", "c": "done"}

    simulate(first, main)


def test_a_paused_queue_is_waited_for_and_goes_on_when_it_is_resumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main(world: World) -> None:
        world.store.set_paused(True).result()
        world.enqueue("sleeps", "k")
        running = world.start(world.worker())
        await asyncio.sleep(100)
        assert world.states() == {"k": "queued"}
        assert caplog.messages.count(PAUSED) == 1

        world.store.set_paused(False).result()
        await running

        assert world.states() == {"k": "done"}
        assert world.clock.monotonic() < 100 + 2 * LOOK_SECONDS

    simulate(make_app(), main)


def test_work_that_arrives_while_the_last_job_runs_is_done_as_well() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "first", seconds=10)
        running = world.start(world.worker())
        await asyncio.sleep(9.99)
        world.enqueue("sleeps", "second", seconds=1)

        await running

        assert world.states() == {"first": "done", "second": "done"}

    simulate(make_app(), main)


def test_an_idle_worker_starts_new_work_at_once() -> None:
    """No fixed sleep: between a job's arrival and its start no time passes."""

    async def main(world: World) -> None:
        worker = world.worker(drain=False)
        running = world.start(worker)
        for n in range(20):
            await asyncio.sleep(0.7 + n * 0.013)
            now = world.clock.now()
            world.enqueue("sleeps", f"j{n}")
            await asyncio.sleep(0.001)
            job = world.job(f"j{n}")
            assert job.state is JobState.DONE
            assert job.started_at is not None
            assert job.started_at / 1e6 - now == pytest.approx(0, abs=1e-5)
        running.cancel()

    simulate(make_app(), main)


def test_suspects_run_with_each_other_only_when_there_is_no_supervisor() -> None:
    app = Penstock("drain")
    running: set[str] = set()
    beside: dict[str, set[str]] = {}

    @app.task()
    async def work(ctx: Context) -> None:
        running.add(ctx.job.key)
        for _ in range(10):
            await asyncio.sleep(0.1)
            beside.setdefault(ctx.job.key, set()).update(running)
        running.discard(ctx.job.key)

    async def main(world: World) -> None:
        for n in range(3):
            world.enqueue("work", f"suspect-{n}")
        dead = other_worker(world, ("work",))
        refs = take(world, dead, ("work",), 3)
        world.store.reap(dead, refs, "killed by SIGKILL", 3).result()
        for n in range(30):
            world.enqueue("work", f"plain-{n}", delay=0.3 * (n % 10))

        await world.drain()

        assert set(world.states().values()) == {JobState.DONE}
        suspects = {f"suspect-{n}" for n in range(3)}
        assert [beside[key] for key in sorted(suspects)] == [suspects] * 3
        assert max(map(len, beside.values())) > 3  # the others did run together

    simulate(app, main, runtime={"async_slots": 8})


def test_a_supervised_worker_leaves_suspects_to_the_solo_one() -> None:
    async def main(world: World) -> None:
        for n in range(3):
            world.enqueue("sleeps", f"s{n}", seconds=1)
        dead = other_worker(world, ("sleeps",))
        refs = take(world, dead, ("sleeps",), 3)
        world.store.reap(dead, refs, "killed by SIGKILL", 3).result()
        world.enqueue("sleeps", "plain")
        running = world.start(world.worker(supervised=True))
        await asyncio.sleep(10)
        assert world.states() == {"s0": "queued", "s1": "queued", "s2": "queued", "plain": "done"}

        solo = world.worker(solo=True, drain=False, supervised=True)
        await solo.run()

        assert world.clock.monotonic() == pytest.approx(11, abs=0.1)  # all at once
        await running
        assert set(world.states().values()) == {JobState.DONE}

    simulate(make_app(), main)


def test_a_worker_in_quarantine_runs_one_cell_after_the_other() -> None:
    """Two deaths are two cells; with two slots the four of the first take two turns."""
    app = Penstock("drain")
    running: set[str] = set()
    together: set[frozenset[str]] = set()

    @app.task()
    async def work(ctx: Context) -> None:
        running.add(ctx.job.key)
        await asyncio.sleep(1)
        together.add(frozenset(running))
        running.discard(ctx.job.key)

    async def main(world: World) -> None:
        for cell, size in (("a", 4), ("b", 2)):
            for n in range(size):
                world.enqueue("work", f"{cell}{n}")
            dead = other_worker(world, ("work",))
            world.store.reap(dead, take(world, dead, ("work",), size), "killed", 3).result()

        await world.worker(solo=True, drain=False, supervised=True).run()

        assert set(world.states().values()) == {JobState.DONE}
        assert {"".join(sorted({key[0] for key in keys})) for keys in together} == {"a", "b"}
        assert max(map(len, together)) == 2
        assert world.clock.monotonic() == pytest.approx(3, abs=0.1)

    simulate(app, main, runtime={"async_slots": 2})


def test_limits_hold_in_quarantine_and_a_full_one_does_not_end_it() -> None:
    app = Penstock("drain")
    running: list[str] = []
    most = 0

    @app.task(limits={"host": "a"})
    async def work(ctx: Context) -> None:
        nonlocal most
        running.append(ctx.job.key)
        most = max(most, len(running))
        await asyncio.sleep(1)
        running.remove(ctx.job.key)

    async def main(world: World) -> None:
        for n in range(3):
            world.enqueue("work", f"j{n}")
        dead = other_worker(world, ("work",))
        world.store.reap(dead, take(world, dead, ("work",), 3), "killed", 3).result()

        await world.worker(solo=True, drain=False, supervised=True).run()

        assert set(world.states().values()) == {JobState.DONE}
        assert most == 1

    simulate(app, main, limits={"host": {"*": 1}})


@pytest.mark.parametrize(
    ("supervisor", "seconds"),
    [("", 1.0), (MARK_OF_NOBODY, 1.0), (own_identity(), 601.0)],
    ids=["none", "gone", "alive"],
)
def test_jobs_of_a_worker_that_is_gone_unseen_go_on_at_once(
    supervisor: str, seconds: float
) -> None:
    """Its supervisor reports it while that lives, and knows what ran."""

    async def main(world: World) -> None:
        for n in range(3):
            world.enqueue("sleeps", f"s{n}", seconds=1)
        dead = other_worker(world, ("sleeps",), ttl=600.0)
        take(world, dead, ("sleeps",), 3)
        status = WorkerStatus(captured_at=0, process=MARK_OF_NOBODY, supervisor=supervisor)
        world.store.publish(dead, status.encoded()).result()

        await world.drain()

        assert set(world.states().values()) == {JobState.DONE}
        assert world.outcomes("s0") == ["lost", "done"]
        assert world.clock.monotonic() == pytest.approx(seconds, abs=0.5)

    simulate(make_app(), main)


def test_a_suspect_that_cannot_run_here_does_not_keep_ready_jobs_waiting() -> None:
    """A suspect of an unknown task: its turn comes, finds nothing, and the others go on at once."""

    async def main(world: World) -> None:
        world.put(NewJob(key="x", task="gone", payload="{}", group="g"))
        dead = other_worker(world, ("gone",))
        world.store.reap(dead, take(world, dead, ("gone",)), "killed", 3).result()
        for n in range(100):
            world.enqueue("sleeps", f"j{n}", seconds=0.01)

        worker = await world.drain()

        assert worker.left_behind == 1
        assert world.clock.monotonic() < 1  # 100 × 0.01 s in 2 slots are 0.5 s

    simulate(make_app(), main, runtime={"async_slots": 2})

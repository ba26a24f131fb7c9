# SPDX-License-Identifier: Apache-2.0
"""What do apps that share a store have for themselves, and what have they in common?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import EnqueueRefused, KeyOfSeveralApps, UsageError
from penstock.model.job import Edge, JobId, JobState, LeasedJob, WorkerId
from penstock.model.lease import Rearm, SetCursor
from penstock.model.schedule import UnitPlan
from penstock.model.views import FIRST_END
from penstock.stores.protocol import CHORE_SLICE, JobFilter
from tests.contract.world import StoreWorld, refusal


def be(world: StoreWorld, app: str | None, tasks: Sequence[str] | None = None) -> None:
    """Sign on as an app, to the end; None: be about everybody."""
    if app is None:
        world.store.look_as(None).result()
        return
    after = JobId(0)
    for _ in range(100):
        moved = world.store.sign_on(app, tasks, after).result()
        if not moved.more:
            return
        after = moved.last
    raise AssertionError("a sign-on that never ends")


def worker_of(world: StoreWorld, app: str) -> WorkerId:
    be(world, app)
    return world.new_worker()


def open_tasks(world: StoreWorld) -> dict[str, dict[JobState, int]]:
    return world.store.outlook(WorkerId(""), "run-1").result().open_by_task


def test_a_worker_gets_no_job_of_another_app(store_world: StoreWorld) -> None:
    be(store_world, "a")
    store_world.add("k")
    b = worker_of(store_world, "b")

    assert store_world.take(b) == {}
    assert open_tasks(store_world) == {}

    a = worker_of(store_world, "a")
    assert open_tasks(store_world) == {"work": {JobState.QUEUED: 1}}
    assert list(store_world.take(a)) == ["k"]


def test_a_key_is_unique_inside_its_app_only(store_world: StoreWorld) -> None:
    be(store_world, "a")
    store_world.add(store_world.job("k", payload='{"of":"a"}'), "more")
    be(store_world, "b")
    report = store_world.add(store_world.job("k", payload='{"of":"b"}'), "other")
    assert report.created == {"k", "other"}
    assert store_world.add("k").existing == {"k"}

    assert store_world.view("k").payload == '{"of":"b"}'
    be(store_world, "a")
    assert store_world.view("k").payload == '{"of":"a"}'
    assert store_world.view("k").app == "a"
    assert store_world.store.job("other").result() is None
    found = store_world.store.job("other", "b").result()
    assert found is not None
    assert found.app == "b"
    assert store_world.store.job("k", "nobody").result() is None


def test_who_is_about_no_app_sees_all_and_must_say_which_is_meant(store_world: StoreWorld) -> None:
    for app in ("a", "b"):
        be(store_world, app)
        store_world.add("k", f"only {app}")
    be(store_world, None)
    store = store_world.store

    for error in (
        refusal(store.job("k"), KeyOfSeveralApps),
        refusal(store.attempts("k"), KeyOfSeveralApps),
        refusal(store.job_context("k"), KeyOfSeveralApps),
        refusal(store.cancel(["k"]), KeyOfSeveralApps),
    ):
        assert "'a', 'b'" in str(error)
    assert store_world.state("only a") is JobState.QUEUED
    assert store.cancel(["k"], "b").result() == {"k"}
    states = {app: store.job("k", app).result() for app in ("a", "b")}
    assert {app: job and job.state for app, job in states.items()} == {
        "a": JobState.QUEUED,
        "b": JobState.CANCELLED,
    }
    listed = store.jobs(JobFilter(), JobId(0), 10).result()
    assert [(job.app, job.key) for job in listed] == [
        ("a", "k"),
        ("a", "only a"),
        ("b", "k"),
        ("b", "only b"),
    ]
    of_a = store.jobs(JobFilter(app="a"), JobId(0), 10).result()
    assert [job.key for job in of_a] == ["k", "only a"]
    assert store.stats().result().states[JobState.QUEUED] == 3


def test_no_edge_crosses_apps(store_world: StoreWorld) -> None:
    be(store_world, "a")
    store_world.add("first")
    be(store_world, "b")
    job = store_world.job("second", after=[Edge("first")])

    assert "'first'" in str(refusal(store_world.store.enqueue([job]), EnqueueRefused))
    store_world.add("first")
    store_world.add(job)
    assert store_world.state("second") is JobState.WAITING

    store_world.run(worker_of(store_world, "a"), "first")
    be(store_world, "b")
    assert store_world.states("first", "second") == [JobState.QUEUED, JobState.WAITING]


def test_a_keyed_limit_holds_for_all_apps(store_world: StoreWorld) -> None:
    store_world.caps = {"host:x": 1}
    for app in ("a", "b"):
        be(store_world, app)
        store_world.add(store_world.job("k", limit_keys=["host:x"]))
    a = worker_of(store_world, "a")
    held = store_world.take_one(a)
    b = worker_of(store_world, "b")

    batch = store_world.lease(b)
    assert batch.jobs == []
    assert [(one.limit_key, one.holders) for one in batch.blocked] == [("host:x", ("k",))]

    be(store_world, "a")
    store_world.ack(a, held)
    be(store_world, "b")
    assert list(store_world.take(b)) == ["k"]


def test_counts_are_those_of_the_app(store_world: StoreWorld) -> None:
    be(store_world, "a")
    store_world.add("1", "2")
    be(store_world, "b")
    store_world.add("1")
    b = store_world.new_worker()
    store_world.run(b, "1")

    assert store_world.store.stats().result().tasks == {"work": {JobState.DONE: 1}}
    be(store_world, "a")
    assert store_world.store.stats().result().tasks == {"work": {JobState.QUEUED: 2}}
    be(store_world, None)
    assert store_world.store.stats().result().tasks == {
        "work": {JobState.QUEUED: 2, JobState.DONE: 1}
    }
    found = {app.name: (app.tasks, app.workers) for app in store_world.store.apps().result()}
    assert found == {
        "a": ({"work": {JobState.QUEUED: 2}}, 0),
        "b": ({"work": {JobState.DONE: 1}}, 1),
    }


def test_a_suspect_is_its_apps(store_world: StoreWorld) -> None:
    be(store_world, "a")
    store_world.add("k")
    a = store_world.new_worker()
    store_world.reap(a, [store_world.take_one(a)])
    b = worker_of(store_world, "b")

    assert store_world.lease(b).suspects == 0
    assert store_world.lease(b, quarantine=True).jobs == []
    assert store_world.store.outlook(b, "run-1").result().suspects == 0
    a = worker_of(store_world, "a")
    assert store_world.take_one(a, quarantine=True).key == "k"


def test_an_app_forgets_and_retries_its_own(store_world: StoreWorld) -> None:
    for app in ("a", "b"):
        be(store_world, app)
        store_world.add("done", "failed")
        worker = store_world.new_worker()
        store_world.run(worker, "done")
        store_world.run(worker, "failed", JobState.ERROR)
    store_world.clock.advance(10.0)
    now = store_world.clock.now_micros

    assert store_world.retry_failed() == 1
    assert store_world.store.would_purge(now).result() == 1
    assert store_world.purge(now) == 1
    be(store_world, "a")
    assert store_world.states("done", "failed") == [JobState.DONE, JobState.ERROR]
    be(store_world, None)
    assert store_world.store.would_purge(now).result() == 2
    progress, _ = store_world.store.purge(now, FIRST_END).result()
    assert progress.count == 2


def _unit(first_at: int) -> UnitPlan:
    return UnitPlan(
        key="schedule:watch",
        task="schedule:watch",
        payload="{}",
        group="watch",
        limit_keys=(),
        partition=None,
        timing="every 1m",
        first_at=first_at,
    )


def _tick(world: StoreWorld, worker: WorkerId, cursor: str) -> LeasedJob:
    (job,) = world.lease(worker, tasks=["schedule:watch"]).jobs
    later = Rearm(world.clock.now_micros + 60_000_000)
    world.ack(worker, job, effects=[SetCursor("schedule:watch", cursor), later])
    return job


def test_units_and_cursors_are_those_of_the_app(store_world: StoreWorld) -> None:
    for app in ("a", "b"):
        be(store_world, app)
        assert store_world.store.arm(app, [_unit(1)]).result().new == 1
        _tick(store_world, store_world.new_worker(["schedule:watch"]), f'"{app}"')
    store = store_world.store

    assert store.cursor("schedule:watch").result() == '"b"'
    assert store.cursors(["schedule:watch"]).result() == {"schedule:watch": '"b"'}
    be(store_world, "a")
    assert store.cursor("schedule:watch").result() == '"a"'
    unit = store.unit("schedule:watch").result()
    assert unit is not None
    assert (unit.app, unit.ticks) == ("a", 1)
    assert store.retire_units(["schedule:watch"]).result() == 1
    be(store_world, None)
    assert "several apps" in str(refusal(store.unit("schedule:watch"), KeyOfSeveralApps))
    units = store.units(None, "", 1).result()
    assert [(one.app, one.retired_at is None) for one in units] == [("a", False), ("b", True)]


# What has no owner


def test_the_only_app_takes_over_what_has_no_owner(store_world: StoreWorld) -> None:
    store_world.add("old", store_world.job("x", task="other"))
    be(store_world, "a", ["work", "other", "new"])

    assert store_world.add("old").existing == {"old"}
    assert store_world.view("old").app == "a"
    be(store_world, None)
    assert [app.name for app in store_world.store.apps().result()] == ["a"]


def test_an_app_takes_what_it_serves_and_leaves_the_rest(store_world: StoreWorld) -> None:
    keys = [f"{n:04}" for n in range(CHORE_SLICE + 10)]
    store_world.add(*keys, store_world.job("x", task="other", limit_keys=["host:x"]))
    store_world.add(store_world.job("last", after=[Edge("0000")]))
    be(store_world, "a", ["work"])

    assert store_world.add(*keys).created == frozenset()
    worker = store_world.new_worker(["work", "other"])
    assert sorted(store_world.take_all(worker)) == keys
    assert store_world.state("last") is JobState.WAITING
    be(store_world, None)
    found = {app.name: app.tasks for app in store_world.store.apps().result()}
    assert found[""] == {"other": {JobState.QUEUED: 1}}
    assert found["a"] == {"work": {JobState.WAITING: 1, JobState.IN_PROGRESS: len(keys)}}

    be(store_world, "b", ["other"])  # the store names another app: nothing is given away
    assert store_world.store.job("x").result() is None
    assert _adopt(store_world, "b", ["other"]) == 1
    worker = store_world.new_worker(["other"])
    assert list(store_world.take(worker)) == ["x"]


def test_a_unit_names_its_app(store_world: StoreWorld) -> None:
    store_world.store.arm("a", [_unit(1)]).result()
    _tick(store_world, store_world.new_worker(["schedule:watch"]), '"old"')
    store_world.add("k")
    be(store_world, "b", ["work"])
    assert store_world.store.job("k").result() is None
    be(store_world, "a", ["work"])

    assert store_world.store.job("k").result() is None
    assert store_world.store.cursor("schedule:watch").result() == '"old"'
    assert store_world.store.arm("a", [_unit(1)]).result().kept == 1


def test_nobody_takes_anything_by_looking(store_world: StoreWorld) -> None:
    store_world.add("k")
    be(store_world, "a")
    assert store_world.store.job("k").result() is None
    store_world.store.look_as("b").result()
    assert store_world.store.job("k").result() is None
    be(store_world, None)
    assert store_world.view("k").app == ""


def _adopt(world: StoreWorld, app: str, tasks: Sequence[str]) -> int:
    after, count = JobId(0), 0
    for _ in range(100):
        moved = world.store.adopt_jobs(app, tasks, after).result()
        after, count = moved.last, count + moved.count
        if not moved.more:
            return count
    raise AssertionError("an adoption that never ends")


# Names


def _rename(world: StoreWorld, old: str, new: str) -> int:
    after, count = JobId(0), 0
    for _ in range(100):
        moved = world.store.rename_app(old, new, after).result()
        after, count = moved.last, count + moved.count
        if not moved.more:
            return count
    raise AssertionError("a renaming that never ends")


def test_an_app_is_renamed_with_all_that_it_has(store_world: StoreWorld) -> None:
    be(store_world, "a")
    store_world.add("k")
    store_world.store.arm("a", [_unit(store_world.clock.now_micros * 2)]).result()
    be(store_world, None)

    _rename(store_world, "a", "z")

    be(store_world, "z")
    assert store_world.view("k").app == "z"
    assert [unit.app for unit in store_world.store.units("z", "", 10).result()] == ["z"]
    be(store_world, "a")
    assert store_world.store.job("k").result() is None


def test_two_apps_become_one_unless_their_keys_collide(store_world: StoreWorld) -> None:
    for app, keys in (("a", ("1", "2")), ("b", ("2", "3")), ("c", ("4",))):
        be(store_world, app)
        store_world.add(*keys)
    be(store_world, None)

    error = refusal(store_world.store.rename_app("a", "b", JobId(0)), UsageError)
    assert "'2'" in str(error)
    assert _rename(store_world, "a", "c") == 2
    be(store_world, "c")
    assert sorted(store_world.take_all(store_world.new_worker())) == ["1", "2", "4"]


def test_an_app_with_workers_keeps_its_name(store_world: StoreWorld) -> None:
    worker = worker_of(store_world, "a")
    be(store_world, None)

    error = refusal(store_world.store.rename_app("a", "b", JobId(0)), UsageError)
    assert "live worker" in str(error)
    assert "penstock app list" in str(
        refusal(store_world.store.rename_app("nobody", "b", JobId(0)), UsageError)
    )
    store_world.store.retire(worker).result()
    _rename(store_world, "a", "b")
    assert [app.name for app in store_world.store.apps().result()] == ["b"]

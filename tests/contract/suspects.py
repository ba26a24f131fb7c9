# SPDX-License-Identifier: Apache-2.0
"""How do jobs run again that may have killed their worker?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log2

from penstock.model.job import STEP, Edge, ErrorCategory, JobKind, JobState, LeasedJob, WorkerId
from penstock.model.lease import Verdict
from penstock.stores.protocol import EXPIRIES_BEFORE_SUSPECT
from tests.contract.world import StoreWorld, ref

MAX_CRASHES = 3  # of a worker that says nothing else


def _lose(store_world: StoreWorld, times: int) -> None:
    """Let the only ready job be leased by workers that are never heard of again."""
    for _ in range(times):
        store_world.take_one(store_world.new_worker())
        store_world.expire()


def _suspect(store_world: StoreWorld, key: str = "a") -> None:
    """A job that was running when its worker died."""
    store_world.add(key)
    worker = store_world.new_worker()
    job = store_world.take_all(worker)[key]
    store_world.reap(worker, [job])


def _solo(store_world: StoreWorld, max_crashes: int = MAX_CRASHES) -> tuple[WorkerId, LeasedJob]:
    worker = store_world.new_worker(max_crashes=max_crashes)
    return worker, store_world.take_one(worker, quarantine=True)


def test_a_job_that_is_lost_too_often_becomes_a_suspect(store_world: StoreWorld) -> None:
    store_world.add("a")

    _lose(store_world, EXPIRIES_BEFORE_SUSPECT - 1)
    before = store_world.view("a")
    _lose(store_world, 1)

    assert not before.suspect
    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)
    assert store_world.suspects() == 1


def test_a_suspect_keeps_its_kind(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("a", task=STEP))
    worker = store_world.new_worker((STEP,))
    store_world.reap(worker, [store_world.take_one(worker)])

    worker = store_world.new_worker((STEP,))
    assert store_world.take_one(worker, quarantine=True).kind is JobKind.STEP


def test_losses_count_in_a_row_only(store_world: StoreWorld) -> None:
    store_world.add("a")
    nearly = EXPIRIES_BEFORE_SUSPECT - 1

    _lose(store_world, nearly)
    worker = store_world.new_worker()
    store_world.fail(worker, store_world.take_one(worker), charge=False)
    _lose(store_world, nearly)
    worker = store_world.new_worker()
    store_world.give_back(worker, [store_world.take_one(worker)])
    _lose(store_world, nearly)
    worker = store_world.new_worker()
    store_world.take_one(worker)
    store_world.store.retire(worker).result()
    _lose(store_world, nearly)

    assert not store_world.view("a").suspect


def test_a_suspect_is_not_handed_out_with_others(store_world: StoreWorld) -> None:
    _suspect(store_world)
    store_world.add("b")

    batch = store_world.lease(store_world.new_worker())

    assert [job.key for job in batch.jobs] == ["b"]
    assert batch.suspects == 1


def _cell(store_world: StoreWorld, *keys: str) -> None:
    """Jobs that were running together when their worker died."""
    store_world.add(*keys)
    worker = store_world.new_worker()
    store_world.reap(worker, list(store_world.take_all(worker).values()))


def _quarantined(store_world: StoreWorld, limit: int = 1_000) -> tuple[WorkerId, list[LeasedJob]]:
    """A fresh worker, and the suspects that it may run together."""
    worker = store_world.new_worker()
    return worker, store_world.lease(worker, limit, quarantine=True).jobs


def _keys(jobs: Sequence[LeasedJob]) -> list[str]:
    return [job.key for job in jobs]


def test_suspects_of_one_death_run_again_together_and_with_nobody_else(
    store_world: StoreWorld,
) -> None:
    _cell(store_world, "c", "a", "b")
    store_world.add("ordinary")

    _, jobs = _quarantined(store_world)

    assert [(job.key, job.token) for job in jobs] == [("c", 2), ("a", 2), ("b", 2)]  # by id
    assert len({job.cell for job in jobs}) == 1
    assert jobs[0].cell
    assert store_world.suspects() == 0
    assert store_world.view("c").suspect is False


def test_suspects_of_two_deaths_do_not_run_together(store_world: StoreWorld) -> None:
    _cell(store_world, "a", "b")
    _cell(store_world, "c", "d")

    _, first = _quarantined(store_world)
    _, second = _quarantined(store_world)

    assert (_keys(first), _keys(second)) == (["a", "b"], ["c", "d"])


def test_a_cell_belongs_to_the_worker_that_runs_some_of_it(store_world: StoreWorld) -> None:
    _cell(store_world, "a", "b", "c")

    worker, (first,) = _quarantined(store_world, 1)
    _, others = _quarantined(store_world)
    more = store_world.lease(worker, 1, quarantine=True, cell=first.cell or 0).jobs
    for job in (first, *more):
        store_world.ack(worker, job)
    _, rest = _quarantined(store_world)

    assert (first.key, others, _keys(more), _keys(rest)) == ("a", [], ["b"], ["c"])


def test_a_cell_that_kills_its_worker_is_run_in_halves(store_world: StoreWorld) -> None:
    _cell(store_world, "a", "b", "c", "d", "e")
    worker, jobs = _quarantined(store_world)

    store_world.reap(worker, jobs, max_crashes=1)

    _, lower = _quarantined(store_world)
    _, upper = _quarantined(store_world)
    assert (_keys(lower), _keys(upper)) == (["a", "b"], ["c", "d", "e"])
    assert [store_world.view(job.key).crashes for job in jobs] == [0, 0, 0, 0, 0]
    assert store_world.outcomes("a") == ["lost", "lost"]


def test_what_ended_in_a_cell_is_innocent_and_what_had_not_begun_stays_in_it(
    store_world: StoreWorld,
) -> None:
    _cell(store_world, "ended", "ran", "waited-1", "waited-2")
    worker, jobs = _quarantined(store_world)
    ended, ran, *_ = jobs

    store_world.ack(worker, ended)
    store_world.reap(worker, [ran], max_crashes=1)

    alone, (job,) = _quarantined(store_world)
    _, rest = _quarantined(store_world)
    assert store_world.state("ended") is JobState.DONE
    assert (job.key, job.cell, job.crashes) == ("ran", 0, 0)
    assert (_keys(rest), rest[0].cell) == (["waited-1", "waited-2"], jobs[0].cell)
    assert store_world.outcomes("waited-1") == ["lost"]
    assert store_world.ack(alone, job) is Verdict.ACCEPTED


def test_limits_hold_inside_a_cell(store_world: StoreWorld) -> None:
    store_world.caps = {"host:a": 3}
    store_world.add(*(store_world.job(key, limit_keys=["host:a"]) for key in ("a", "b", "c")))
    worker = store_world.new_worker()
    store_world.reap(worker, store_world.lease(worker).jobs)
    store_world.caps = {"host:a": 1}

    worker, first = _quarantined(store_world)
    full = store_world.lease(worker, 10, quarantine=True, cell=first[0].cell or 0).jobs
    store_world.ack(worker, first[0])
    second = store_world.lease(worker, 10, quarantine=True, cell=first[0].cell or 0).jobs

    assert (_keys(first), full, _keys(second)) == (["a"], [], ["b"])


def test_innocents_of_a_death_are_done_after_one_more_round(store_world: StoreWorld) -> None:
    keys = [f"job-{n:03}" for n in range(256)]
    _cell(store_world, *keys)

    worker, jobs = _quarantined(store_world)
    for job in jobs:
        store_world.ack(worker, job)

    assert _keys(jobs) == keys
    assert store_world.store.stats().result().states[JobState.DONE] == 256


def test_a_poison_job_alone_ends_in_error_and_its_neighbours_run_a_few_times(
    store_world: StoreWorld,
) -> None:
    """Each worker runs all that it gets at once, and dies if the poison is among it."""
    count = 256
    runs: Counter[str] = Counter(f"job-{n:03}" for n in range(count))
    _cell(store_world, *runs)

    rounds = 0
    while store_world.suspects():
        rounds += 1
        worker, jobs = _quarantined(store_world)
        runs.update(_keys(jobs))
        if any(job.key == "job-100" for job in jobs):
            store_world.reap(worker, jobs, cause="killed by signal 11")
        else:
            for job in jobs:
                store_world.ack(worker, job)

    states = store_world.store.stats().result().states
    assert (states[JobState.DONE], states[JobState.ERROR]) == (count - 1, 1)
    view = store_world.view("job-100")
    assert (view.state, view.crashes) == (JobState.ERROR, 3)
    assert max(n for key, n in runs.items() if key != "job-100") <= 2 + log2(count)
    assert rounds <= 1 + 2 * log2(count) + 3  # all, then two halves a step, then alone


def test_a_poison_job_that_takes_its_supervisor_along_is_alone_at_the_third_restart(
    store_world: StoreWorld,
) -> None:
    """Nobody sees these deaths: every lease is lost by expiry, whatever ran."""
    count = 64
    poison = "job-20"
    runs: Counter[str] = Counter()
    store_world.add(*(f"job-{n:02}" for n in range(count)))

    restarts, beside = 0, []
    while any(store_world.state(f"job-{n:02}") is JobState.QUEUED for n in range(count)):
        worker = store_world.new_worker()
        jobs = store_world.lease(worker, 1_000).jobs
        jobs += store_world.lease(worker, 1_000, quarantine=True).jobs if not jobs else []
        runs.update(_keys(jobs))
        if poison in _keys(jobs):
            restarts += 1
            beside.append(len(jobs) - 1)
            store_world.expire()
        else:
            for job in jobs:
                store_world.ack(worker, job)

    assert beside == [63, 63, 7, 0, 0, 0]  # at the third restart it is alone
    view = store_world.view(poison)
    assert (view.state, view.crashes) == (JobState.ERROR, MAX_CRASHES)
    assert store_world.store.stats().result().states[JobState.DONE] == count - 1
    others = sorted(n for key, n in runs.items() if key != poison)
    assert others == [3] * 56 + [4] * 7  # twice in the crowd, seven of them once more beside it


def test_a_quarantine_lease_without_suspects_hands_out_nothing(store_world: StoreWorld) -> None:
    store_world.add("ordinary")

    batch = store_world.lease(store_world.new_worker(), quarantine=True)

    assert (batch.jobs, batch.more) == ([], False)


def test_a_quarantine_lease_hands_out_known_tasks_only(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("a", task="foreign"), "b")
    worker = store_world.new_worker(tasks=["work", "foreign"])
    jobs = store_world.take(worker)
    store_world.reap(worker, list(jobs.values()))

    job = store_world.take_one(store_world.new_worker(tasks=["work"]), quarantine=True)

    assert job.key == "b"


def test_a_suspect_that_ends_well_is_done(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    assert store_world.ack(worker, job) is Verdict.ACCEPTED

    assert (store_world.state("a"), store_world.suspects()) == (JobState.DONE, 0)


def test_a_suspect_that_fails_by_itself_is_an_ordinary_job_again(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    store_world.fail(worker, job)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.attempts) == (JobState.QUEUED, False, 1)
    assert store_world.take_one(store_world.new_worker()).cell is None


def test_a_suspect_that_is_released_or_revoked_stays_one(store_world: StoreWorld) -> None:
    _suspect(store_world)

    worker, job = _solo(store_world)
    store_world.give_back(worker, [job])
    released = store_world.view("a").suspect
    job = store_world.take_one(worker, quarantine=True)
    store_world.store.revoke(ref(job), "").result()
    revoked = store_world.view("a").suspect
    store_world.take_one(worker, quarantine=True)
    store_world.store.retire(worker).result()

    assert (released, revoked) == (True, True)
    assert store_world.view("a").suspect
    assert store_world.view("a").crashes == 0


def test_a_solo_lease_that_expires_counts_as_a_crash(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, _ = _solo(store_world)

    store_world.expire()

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 1)
    last = store_world.history("a")[-1]
    assert (last.outcome, last.worker) == ("crashed", worker)


def test_how_often_a_job_may_expire_alone_says_the_worker_that_held_it(
    store_world: StoreWorld,
) -> None:
    """Whoever takes it back may be of another app or run, with another setting."""
    _suspect(store_world)
    states = []

    for _ in range(MAX_CRASHES + 1):
        _solo(store_world, MAX_CRASHES + 1)
        store_world.expire()  # by one that says MAX_CRASHES
        states.append(store_world.view("a").state)

    assert states == [JobState.QUEUED] * MAX_CRASHES + [JobState.ERROR]


def test_what_one_worker_says_of_crashes_counts_for_no_other(store_world: StoreWorld) -> None:
    _suspect(store_world)
    store_world.store.retire(store_world.new_worker(max_crashes=1)).result()
    store_world.new_worker(max_crashes=1)  # it is lost beside the other, and held nothing

    _solo(store_world)
    store_world.expire()

    assert store_world.view("a").state is JobState.QUEUED


def test_a_job_that_expires_alone_too_often_ends_as_crashed(store_world: StoreWorld) -> None:
    _suspect(store_world)

    for _ in range(MAX_CRASHES):
        _solo(store_world)
        store_world.expire()

    view = store_world.view("a")
    assert (view.state, view.crashes, view.attempts) == (
        JobState.ERROR,
        MAX_CRASHES,
        0,
    )
    assert view.last_error is not None
    assert (view.last_error.category, view.last_error.kind) == (ErrorCategory.CRASHED, "crashed")
    assert view.last_error.message == (
        f"the worker died {MAX_CRASHES} times while this job ran alone: its lease expired"
    )


def test_a_solo_job_that_was_reaped_is_charged_a_crash(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    store_world.reap(worker, [job], max_crashes=2)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 1)
    assert store_world.outcomes("a") == ["lost", "crashed"]


def test_a_solo_job_that_had_not_started_is_not_charged(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, _ = _solo(store_world)

    store_world.reap(worker, [], max_crashes=1)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)


def test_a_job_that_crashes_alone_too_often_ends_in_error(store_world: StoreWorld) -> None:
    _suspect(store_world)
    store_world.add(store_world.job("after", after=[Edge("a")]))

    for _ in range(2):
        worker, job = _solo(store_world)
        store_world.reap(worker, [job], cause="killed by signal 11", max_crashes=2)

    view = store_world.view("a")
    assert (view.state, view.crashes, view.attempts) == (JobState.ERROR, 2, 0)
    assert view.last_error is not None
    assert view.last_error.category is ErrorCategory.CRASHED
    assert view.last_error.kind == "crashed"
    assert view.last_error.message == (
        "the worker died 2 times while this job ran alone: killed by signal 11"
    )
    assert store_world.why("after") == "upstream failed: a"
    assert store_world.suspects() == 0

# SPDX-License-Identifier: Apache-2.0
"""Are the right workers asked, and is the way followed to what holds a job up?"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from penstock.errors import StoreReadOnly
from penstock.model.job import Edge, JobState, WorkerId
from penstock.model.lease import JobRef
from penstock.model.views import JobContext
from penstock.model.worker import LeasePhase, LeaseReport, WorkerStatus
from penstock.observe.why.facts import Gate, JobFacts
from penstock.observe.why.gather import ASKED_MAX, CHAIN_MAX, gather_facts
from penstock.observe.why.job import explain
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld, ref

BUSY = WorkerStatus(captured_at=5, running=1)


class Answering(InProcessStore):
    """A store whose workers answer at once, and whose questions are kept."""

    def __init__(self, clock: ManualClock, document: str) -> None:
        super().__init__(clock)
        self.document = document
        self.asked: list[tuple[WorkerId, JobRef]] = []

    def ask(self, worker: WorkerId, ref: JobRef) -> Reply[int]:
        self.asked.append((worker, ref))
        number = super().ask(worker, ref)
        self.answer(number.result(), self.document).result()
        return number


def answering(document: str | None = None) -> tuple[Answering, StoreWorld, ManualClock]:
    clock = ManualClock()
    standing = LeaseReport(standing=LeasePhase.RUNNING, status=BUSY)
    store = Answering(clock, document or standing.encoded())
    return store, StoreWorld(store, clock), clock


def run_facts(world: StoreWorld, key: str) -> JobFacts:
    found = gather_facts(world.store, key, {}, world.clock)
    assert found is not None
    return found


def test_the_holder_of_a_leased_job_is_asked_about_its_lease() -> None:
    store, world, clock = answering()
    world.add("a")
    worker = world.new_worker()
    job = world.take_one(worker)

    facts = run_facts(world, "a")

    assert store.asked == [(worker, ref(job))]
    assert facts.answers[0].standing.standing is LeasePhase.RUNNING
    assert facts.answers[0].standing.status.captured_at == clock.now_micros  # not the worker's 5


def test_the_holder_of_what_a_job_waits_for_is_asked() -> None:
    store, world, _ = answering()
    world.add("a")
    world.add(world.job("b", after=[Edge("a")]))
    world.add(world.job("c", after=[Edge("b")]))
    job = world.take_one(world.new_worker())

    facts = run_facts(world, "c")

    assert [link.job.key for link in facts.chain] == ["b", "a"]
    assert [asked for _, asked in store.asked] == [ref(job)]
    assert explain(facts).chain == ("c", "b", "a")


def test_busy_workers_that_know_the_task_of_a_ready_job_are_asked_and_no_others() -> None:
    store, world, _ = answering()
    world.add("a")
    busy = [world.new_worker() for _ in range(ASKED_MAX + 1)]
    for worker in (*busy, world.new_worker(["other"])):
        store.publish(worker, BUSY.encoded()).result()
    world.new_worker()  # it has said nothing

    run_facts(world, "a")

    assert [worker for worker, _ in store.asked] == busy[:ASKED_MAX]


def test_nobody_is_asked_about_what_only_the_store_knows() -> None:
    store, world, _ = answering()
    worker = world.new_worker()
    store.publish(worker, BUSY.encoded()).result()
    world.add("done")
    world.run(worker, "done")
    world.add(world.job("late", delay=60.0))

    for key in ("done", "late"):
        run_facts(world, key)

    assert store.asked == []


def test_a_chain_is_followed_to_a_bounded_length() -> None:
    _, world, _ = answering()
    names = [f"j{n:03}" for n in range(CHAIN_MAX + 10)]
    world.add(names[0])
    for before, name in pairwise(names):
        world.add(world.job(name, after=[Edge(before)]))

    assert len(run_facts(world, names[-1]).chain) == CHAIN_MAX


def test_what_has_ended_does_not_hold_a_job_up() -> None:
    """An end of which the dependant was not told yet, beside a dependency that goes on."""

    class Untold(Answering):
        def job_context(self, key: str, app: str | None = None) -> Reply[JobContext | None]:
            found = super().job_context(key, app).result()
            assert found is not None
            edges = tuple(msgspec.structs.replace(x, open=True) for x in found.dependencies)
            return Reply.of(msgspec.structs.replace(found, dependencies=edges))

    clock = ManualClock()
    world = StoreWorld(Untold(clock, ""), clock)
    world.add("a", "b")
    world.add(world.job("c", after=[Edge("a"), Edge("b")]))
    world.run(world.new_worker(), "a")

    assert [link.job.key for link in run_facts(world, "c").chain] == ["b"]


def test_a_skipped_job_leads_to_the_one_that_failed() -> None:
    _, world, _ = answering()
    world.add("a")
    world.add(world.job("b", after=[Edge("a")]))
    world.add(world.job("c", after=[Edge("b")]))
    world.run(world.new_worker(), "a", JobState.ERROR)
    world.settle()

    found = explain(run_facts(world, "c"))

    assert (found.gate, found.chain) == (Gate.FINISHED, ("c", "b", "a"))
    assert found.command == "penstock queue retry a"


def test_an_answer_of_another_version_is_passed_over() -> None:
    _, world, _ = answering('{"standing": "dancing"}')
    world.add("a")
    world.take_one(world.new_worker())

    facts = run_facts(world, "a")

    assert facts.answers == ()
    assert "has not reported which" in explain(facts).sentence


def test_a_store_that_may_not_be_written_is_explained_all_the_same() -> None:
    class Closed(Answering):
        def ask(self, worker: WorkerId, ref: JobRef) -> Reply[int]:
            return Reply.failed(StoreReadOnly("not for us"))

    clock = ManualClock()
    world = StoreWorld(Closed(clock, ""), clock)
    world.add("a")
    world.take_one(world.new_worker())

    assert explain(run_facts(world, "a")).gate is Gate.RUNNING


def test_an_unknown_job_has_no_facts() -> None:
    _, world, clock = answering()

    assert gather_facts(world.store, "x", {}, clock) is None

# SPDX-License-Identifier: Apache-2.0
"""How does a question reach a running worker, and its answer whoever asked?"""

from __future__ import annotations

from penstock.model.job import JobId, WorkerId
from penstock.model.lease import JobRef
from penstock.model.worker import Inbox, Question
from penstock.stores.protocol import QUESTION_SECONDS, QUESTIONS_KEPT
from tests.contract.world import StoreWorld, ref

SOME = JobRef(JobId(1), 1)
NOBODY = WorkerId("nobody")


def test_a_question_is_found_by_the_worker_that_it_is_for_until_it_is_answered(
    store_world: StoreWorld,
) -> None:
    store_world.add("a")
    worker, other = store_world.new_worker(), store_world.new_worker()
    job = store_world.take_one(worker)
    store = store_world.store

    number = store.ask(worker, ref(job)).result()

    assert store.inbox(worker).result() == Inbox([], [Question(number, ref(job))])
    assert store.inbox(other).result() == Inbox([], [])
    assert store.answer_to(number).result() is None
    assert store.answer(number, '{"x": "é"}').result() is True
    assert store.answer_to(number).result() == '{"x": "é"}'
    assert store.inbox(worker).result() == Inbox([], [])


def test_the_inbox_holds_what_is_detached_and_what_is_asked(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take_all(worker)
    store_world.cancel("a")
    number = store_world.store.ask(worker, ref(jobs["b"])).result()

    inbox = store_world.store.inbox(worker).result()

    assert inbox.detached == [ref(jobs["a"])]
    assert inbox.questions == [Question(number, ref(jobs["b"]))]


def test_a_question_is_answered_once(store_world: StoreWorld) -> None:
    store = store_world.store
    number = store.ask(NOBODY, SOME).result()
    store.answer(number, "first").result()

    assert store.answer(number, "second").result() is False
    assert store.answer(number + 1, "to nobody").result() is False
    assert store.answer_to(number).result() == "first"
    assert store.answer_to(number + 1).result() is None


def test_no_number_of_a_question_is_used_twice(store_world: StoreWorld) -> None:
    store = store_world.store
    first = store.ask(NOBODY, SOME).result()
    store.answer(first, "old").result()
    store_world.clock.advance(QUESTION_SECONDS + 1)

    second = store.ask(NOBODY, SOME).result()

    assert second > first
    assert store.answer_to(first).result() is None
    assert store.answer_to(second).result() is None


def test_questions_of_the_last_minute_are_kept_and_older_ones_forgotten(
    store_world: StoreWorld,
) -> None:
    store = store_world.store
    old = store.ask(NOBODY, SOME).result()
    store_world.clock.advance(QUESTION_SECONDS - 1)
    young = store.ask(NOBODY, SOME).result()
    assert [x.id for x in store.inbox(NOBODY).result().questions] == [old, young]
    store_world.clock.advance(2)

    last = store.ask(NOBODY, SOME).result()

    assert [x.id for x in store.inbox(NOBODY).result().questions] == [young, last]


def test_no_more_than_a_bounded_number_of_questions_is_kept(store_world: StoreWorld) -> None:
    store = store_world.store
    asked = [store.ask(NOBODY, SOME) for _ in range(QUESTIONS_KEPT + 5)]
    numbers = [reply.result() for reply in asked]

    kept = [question.id for question in store.inbox(NOBODY).result().questions]

    assert kept == numbers[5:]


def test_neither_a_question_nor_a_status_is_something_to_lease(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store = store_world.store

    number = store.ask(worker, ref(job)).result()
    store.answer(number, "{}").result()
    store.publish(worker, "{}").result()

    batch = store_world.lease(worker)
    assert (batch.jobs, batch.more) == ([], False)
    assert store_world.view("a").worker == worker

# SPDX-License-Identifier: Apache-2.0
"""What is written down of a paid call before it is sent, and when it is answered?"""

from __future__ import annotations

from penstock.model.job import JobId
from penstock.model.journal import BODY_BYTES_MAX, CallFigures, CallKey, CallState
from penstock.model.spending import Amount
from tests.contract.call_words import (
    MODEL,
    PROVIDER,
    STALE,
    WRITTEN,
    again,
    answer,
    balance,
    begin,
    call,
    calls,
    intend,
    intent,
    key_of,
    leased,
    states,
)
from tests.contract.world import StoreWorld

# Intents


def test_a_job_has_no_calls_before_its_first(store_world: StoreWorld) -> None:
    _, job = leased(store_world)

    assert calls(store_world, job) == []
    assert store_world.store.answer_of(key_of(job)).result() is None
    assert store_world.store.call_figures(job.id).result() == CallFigures()
    assert store_world.store.call_figures(None).result() == CallFigures()


def test_an_intent_is_a_call_that_is_open_with_its_reserve(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    now = store_world.clock.now_micros

    assert intend(store_world, intent(job, micros=5, tokens=50)) == [WRITTEN]

    (found,) = calls(store_world, job)
    assert found.key == key_of(job)
    assert isinstance(found.key, CallKey)
    assert (found.state, found.token) == (CallState.OPEN, job.token)
    assert (found.provider, found.model) == (PROVIDER, MODEL)
    assert (found.begun_at, found.ended_at) == (now, None)
    assert (found.reserved, found.used) == (Amount(5, 50), Amount())
    assert (found.bought, found.reused) == (0, 0)


def test_no_intents_are_no_verdicts(store_world: StoreWorld) -> None:
    store = store_world.store

    assert intend(store_world) == []
    store.answered([]).result()
    store.closed([]).result()
    store.held([]).result()
    store.reused([], []).result()


def test_calls_come_in_the_order_of_their_beginning(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job, "z"), intent(job, "a"), intent(job, "m", ordinal=1))
    store_world.clock.advance(1)
    begin(store_world, intent(job, "b"))

    names = [(one.key.fingerprint, one.key.ordinal) for one in calls(store_world, job)]

    assert names == [("z", 0), ("a", 0), ("m", 1), ("b", 0)]


def test_equal_calls_of_an_attempt_are_told_apart_by_their_ordinal(
    store_world: StoreWorld,
) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, ordinal=1))
    store_world.store.answered([answer(job, ordinal=1, body=b"second")]).result()

    assert store_world.store.answer_of(key_of(job)).result() is None
    found = store_world.store.answer_of(key_of(job, ordinal=1)).result()
    assert found is not None
    assert found.body == b"second"


def test_calls_of_other_jobs_are_not_mine(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    one, other = store_world.lease(worker).jobs
    begin(store_world, intent(one), intent(other))
    store_world.store.answered([answer(one)]).result()

    assert states(store_world, one) == {"f": CallState.ANSWERED}
    assert states(store_world, other) == {"f": CallState.OPEN}


def test_a_later_lease_opens_a_call_again_under_its_token(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job, micros=5, tokens=50))
    _, later = again(store_world, job)

    begin(store_world, intent(later, micros=8, tokens=80, run_id="run-2", model="gpt-6"))

    (found,) = calls(store_world, later)
    assert (found.state, found.token, found.model) == (CallState.OPEN, later.token, "gpt-6")
    assert found.reserved == Amount(8, 80)
    assert found.begun_at == store_world.clock.now_micros


def test_the_intent_of_an_earlier_lease_is_stale(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    _, later = again(store_world, job)
    begin(store_world, intent(later))

    assert intend(store_world, intent(job, micros=999), intent(job, "new")) == [STALE, STALE]

    (found,) = calls(store_world, job)
    assert (found.token, found.reserved) == (later.token, Amount(10, 100))


def test_an_intent_is_stale_as_soon_as_a_later_lease_has_begun(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    _, later = again(store_world, job)

    assert intend(store_world, intent(job), intent(later)) == [STALE, WRITTEN]


def test_the_intent_for_a_job_that_is_forgotten_is_stale(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    store_world.ack(worker, job)
    store_world.clock.advance(1)
    store_world.purge(store_world.clock.now_micros)

    assert intend(store_world, intent(job)) == [STALE]
    assert calls(store_world, job) == []


def test_an_intent_can_be_repeated_by_its_own_lease(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))

    begin(store_world, intent(job, micros=3, tokens=30))

    assert balance(store_world).reserved == Amount(3, 30)


def test_one_key_twice_in_a_batch_is_one_call(store_world: StoreWorld) -> None:
    _, job = leased(store_world)

    begin(store_world, intent(job, micros=1, tokens=2), intent(job, micros=3, tokens=4))

    (found,) = calls(store_world, job)
    assert found.reserved == balance(store_world).reserved == Amount(3, 4)


# Answers


def test_an_answer_is_kept_whole_and_ends_the_call(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.clock.advance(2)
    given = answer(job, body=bytes(range(256)) * 300, headers=(("date", "jetzt ☃"), ("a", '"\\')))

    store_world.store.answered([given]).result()

    assert store_world.store.answer_of(given.key).result() == given
    (found,) = calls(store_world, job)
    assert (found.state, found.ended_at) == (CallState.ANSWERED, store_world.clock.now_micros)
    assert (found.reserved, found.used, found.bought) == (Amount(), Amount(7, 70), 1)


def test_an_empty_body_is_an_answer(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    given = answer(job, body=b"", headers=())

    store_world.store.answered([given]).result()

    assert store_world.store.answer_of(given.key).result() == given


def test_many_answers_come_in_one_call(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, *(intent(job, f"f{n}") for n in range(100)))

    given = [answer(job, f"f{n}", body=b"%d" % n, micros=n) for n in range(100)]
    store_world.store.answered(given).result()

    assert [store_world.store.answer_of(one.key).result() for one in given] == given
    assert balance(store_world).spent == Amount(sum(range(100)), 7_000)


def test_a_call_with_an_answer_keeps_it_and_pays_for_the_second(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job, body=b"first")]).result()

    store_world.store.answered([answer(job, body=b"second"), answer(job)]).result()

    found = store_world.store.answer_of(key_of(job)).result()
    assert found is not None
    assert found.body == b"first"
    assert (call(store_world, job).bought, call(store_world, job).used) == (3, Amount(21, 210))
    assert balance(store_world).spent == Amount(21, 210)


def test_two_answers_to_one_call_in_a_batch_are_one(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))

    store_world.store.answered([answer(job, body=b"first"), answer(job, body=b"2")]).result()

    found = store_world.store.answer_of(key_of(job)).result()
    assert found is not None
    assert (found.body, call(store_world, job).bought) == (b"first", 2)


def test_an_answer_of_a_lost_lease_is_kept_since_it_is_paid_for(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    again(store_world, job)

    store_world.store.answered([answer(job)]).result()

    assert states(store_world, job) == {"f": CallState.ANSWERED}


def test_an_answer_to_a_call_that_is_forgotten_changes_nothing(store_world: StoreWorld) -> None:
    _, job = leased(store_world)

    store_world.store.answered([answer(job), answer(JobId(4711))]).result()

    assert calls(store_world, job) == []
    assert store_world.store.call_figures(None).result() == CallFigures()


def test_an_answer_that_is_too_large_is_paid_and_bought_again(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))

    store_world.store.answered([answer(job, body=bytes(BODY_BYTES_MAX + 1))]).result()

    found = call(store_world, job)
    assert (found.state, found.bought, found.reserved) == (CallState.SPOILED, 1, Amount())
    assert store_world.store.answer_of(key_of(job)).result() is None
    assert balance(store_world).spent == Amount(7, 70)


def test_a_call_that_is_begun_again_has_no_answer_until_its_next(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job, body=b"old")]).result()
    _, later = again(store_world, job)

    begin(store_world, intent(later))

    assert store_world.store.answer_of(key_of(job)).result() is None
    store_world.store.answered([answer(job, body=b"new")]).result()
    found = store_world.store.answer_of(key_of(job)).result()
    assert found is not None
    assert found.body == b"new"
    assert (call(store_world, job).bought, call(store_world, job).used) == (2, Amount(14, 140))


def test_answers_of_several_megabytes_come_together(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, *(intent(job, name) for name in "abc"))
    given = [answer(job, name, body=name.encode() * 5_000_000) for name in "abc"]

    store_world.store.answered(given).result()

    for one in given:
        found = store_world.store.answer_of(one.key).result()
        assert found is not None
        assert found.body == one.body

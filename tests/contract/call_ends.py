# SPDX-License-Identifier: Apache-2.0
"""How does a paid call end without an answer, or lose the one it had?"""

from __future__ import annotations

import msgspec

from penstock.model.job import JobState
from penstock.model.journal import CallState
from penstock.model.lease import ForgetCalls, JobEnd, JobRef, Rearm, Verdict
from penstock.model.spending import Amount
from tests.contract.call_words import (
    again,
    answer,
    balance,
    begin,
    call,
    close,
    hold,
    intent,
    key_of,
    leased,
    states,
)
from tests.contract.world import StoreWorld

# Other ends


def test_a_closed_call_ended_without_an_answer_and_gives_its_reserve_back(
    store_world: StoreWorld,
) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))

    close(store_world, job)

    found = call(store_world, job)
    assert (found.state, found.reserved) == (CallState.CLOSED, Amount())
    assert found.ended_at == store_world.clock.now_micros
    assert balance(store_world).reserved == Amount()


def test_a_call_is_not_closed_twice_nor_after_its_answer(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    store_world.store.answered([answer(job)]).result()

    for _ in range(2):
        close(store_world, job)
        close(store_world, job, "g")
    close(store_world, job, "unknown")

    assert states(store_world, job) == {"f": CallState.ANSWERED, "g": CallState.CLOSED}
    assert balance(store_world).reserved == Amount()


def test_an_earlier_lease_closes_and_holds_nothing_of_a_later_one(
    store_world: StoreWorld,
) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    _, later = again(store_world, job)
    begin(store_world, intent(later))

    close(store_world, job)
    hold(store_world, job)

    assert states(store_world, job) == {"f": CallState.OPEN}
    assert balance(store_world).reserved == Amount(10, 100)


def test_an_answer_to_a_closed_call_is_kept_after_all(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    close(store_world, job)

    store_world.store.answered([answer(job)]).result()

    assert states(store_world, job) == {"f": CallState.ANSWERED}
    assert balance(store_world).reserved == Amount()


def test_a_closed_call_can_be_begun_again_by_the_same_lease(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    close(store_world, job)

    begin(store_world, intent(job))

    assert (call(store_world, job).state, call(store_world, job).ended_at) == (CallState.OPEN, None)


def test_a_call_in_doubt_is_held_by_the_next_lease_with_its_reserve(
    store_world: StoreWorld,
) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    _, later = again(store_world, job)

    hold(store_world, later)

    found = call(store_world, job)
    assert (found.state, found.token, found.ended_at) == (CallState.HELD, job.token, None)
    assert found.reserved == balance(store_world).in_doubt == Amount(10, 100)


def test_only_an_open_call_is_held(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    store_world.store.answered([answer(job)]).result()
    close(store_world, job, "g")

    hold(store_world, job)
    hold(store_world, job, "g")
    hold(store_world, job, "unknown")

    assert states(store_world, job) == {"f": CallState.ANSWERED, "g": CallState.CLOSED}


def test_a_held_call_goes_on_when_a_person_has_put_its_job_back(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    worker, later = again(store_world, job)
    hold(store_world, later)
    store_world.ack(worker, later, JobState.ERROR)
    store_world.retry_failed()
    third = store_world.take_one(worker)

    begin(store_world, intent(third))

    assert (call(store_world, third).state, call(store_world, third).token) == (
        CallState.OPEN,
        third.token,
    )
    assert balance(store_world).reserved == Amount(10, 100)


def test_a_held_call_can_be_closed_and_answered(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    hold(store_world, job)
    hold(store_world, job, "g")

    close(store_world, job)
    store_world.store.answered([answer(job, "g")]).result()

    assert states(store_world, job) == {"f": CallState.CLOSED, "g": CallState.ANSWERED}
    assert balance(store_world).reserved == Amount()


def test_reuse_is_counted_in_the_call(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()

    store_world.store.reused([key_of(job), key_of(job), key_of(job, "unknown")], []).result()

    assert (call(store_world, job).reused, call(store_world, job).bought) == (2, 1)
    assert call(store_world, job).state is CallState.ANSWERED


# Spoiling


def test_a_charged_failure_spoils_the_answers_that_led_to_it(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"), intent(job, "open"))
    store_world.store.answered([answer(job), answer(job, "g")]).result()
    failure = store_world.failure(job)
    failure.spoils = (key_of(job), key_of(job, "open"), key_of(job, "unknown"))

    store_world.store.fail_and_retry(worker, [failure]).result()

    assert states(store_world, job) == {
        "f": CallState.SPOILED,
        "g": CallState.ANSWERED,
        "open": CallState.OPEN,
    }
    assert store_world.store.answer_of(key_of(job)).result() is None
    assert call(store_world, job).bought == 1


def test_an_uncharged_failure_spoils_nothing(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()
    failure = store_world.failure(job, charge=False)
    failure.spoils = (key_of(job),)

    store_world.store.fail_and_retry(worker, [failure]).result()

    assert states(store_world, job) == {"f": CallState.ANSWERED}


def test_a_stale_failure_spoils_nothing(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()
    failure = store_world.failure(job)
    failure.spoils = (key_of(job),)
    again(store_world, job)

    (verdict,) = store_world.store.fail_and_retry(worker, [failure]).result()

    assert verdict is Verdict.STALE
    assert states(store_world, job) == {"f": CallState.ANSWERED}


def test_the_last_failure_of_a_job_spoils_too(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()
    failure = store_world.failure(job, max_attempts=1)
    failure.spoils = (key_of(job),)

    store_world.store.fail_and_retry(worker, [failure]).result()

    assert store_world.state("a") is JobState.ERROR
    assert states(store_world, job) == {"f": CallState.SPOILED}


def test_an_overdue_attempt_of_a_killed_worker_spoils_its_answer(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()
    failure = store_world.failure(job)
    failure.spoils = (key_of(job),)

    store_world.store.reap(worker, [], "killed", 3, [failure]).result()

    assert states(store_world, job) == {"f": CallState.SPOILED}


def test_a_spoiled_call_is_bought_anew_with_its_history(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job, body=b"bad")]).result()
    store_world.store.reused([key_of(job)], []).result()
    failure = store_world.failure(job)
    failure.spoils = (key_of(job),)
    store_world.store.fail_and_retry(worker, [failure]).result()
    later = store_world.take_one(worker)

    begin(store_world, intent(later))
    store_world.store.answered([answer(later, body=b"good")]).result()

    found = store_world.store.answer_of(key_of(job)).result()
    assert found is not None
    assert found.body == b"good"
    record = call(store_world, job)
    assert (record.bought, record.reused, record.used) == (2, 1, Amount(14, 140))


# Answers that are told again, or late


def test_an_answer_that_is_told_twice_is_paid_once(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    told = msgspec.structs.replace(answer(job), token=job.token)

    for _ in range(2):  # the first time nobody could tell that it was taken
        store_world.store.answered([told]).result()

    assert call(store_world, job).bought == 1
    assert balance(store_world).spent == Amount(7, 70)


def test_a_late_answer_is_paid_and_leaves_the_call_to_the_later_lease(
    store_world: StoreWorld,
) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))
    _, later = again(store_world, job)
    begin(store_world, intent(later))

    store_world.store.answered(
        [msgspec.structs.replace(answer(job, body=b"late"), token=job.token)]
    ).result()
    assert states(store_world, job) == {"f": CallState.OPEN}
    assert balance(store_world).reserved == Amount(10, 100)

    store_world.store.answered(
        [msgspec.structs.replace(answer(job, body=b"new"), token=later.token)]
    ).result()
    found = store_world.store.answer_of(key_of(job)).result()
    assert found is not None
    assert found.body == b"new"
    assert call(store_world, job).bought == 2
    assert balance(store_world).spent == Amount(14, 140)


def test_an_answer_without_a_body_is_paid_and_bought_again(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))

    store_world.store.answered([msgspec.structs.replace(answer(job), body=None)]).result()

    assert states(store_world, job) == {"f": CallState.SPOILED}
    assert balance(store_world).spent == Amount(7, 70)
    assert balance(store_world).reserved == Amount()


# Calls of a job that does not end


def test_a_job_that_is_armed_again_forgets_what_it_bought(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    store_world.store.answered([answer(job)]).result()
    other = store_world.clock.now_micros + 5_000_000
    end = JobEnd(job, JobState.DONE, 1, 2, effects=(Rearm(other), ForgetCalls()))

    assert store_world.store.ack(worker, [end]).result() == [Verdict.ACCEPTED]

    assert store_world.store.calls(job.id).result() == []
    assert balance(store_world).reserved == Amount()
    assert store_world.store.check().result() == []


def test_a_stale_end_forgets_nothing(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.release(worker, [JobRef(job.id, job.token)]).result()
    end = JobEnd(job, JobState.DONE, 1, 2, effects=(Rearm(job.due_at + 9), ForgetCalls()))

    assert store_world.store.ack(worker, [end]).result() == [Verdict.STALE]

    assert states(store_world, job) == {"f": CallState.OPEN}

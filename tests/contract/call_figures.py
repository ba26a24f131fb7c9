# SPDX-License-Identifier: Apache-2.0
"""What is told of paid calls in sums, and when are they forgotten?"""

from __future__ import annotations

import msgspec

from penstock.model.job import JobId, JobState
from penstock.model.journal import CallFigures, CallRef, CallState
from penstock.model.spending import Account, Amount, Period
from penstock.model.views import FIRST_END
from penstock.stores.protocol import CALLS_DROPPED, CALLS_SLICE
from tests.contract.call_words import (
    RUN,
    STALE,
    WRITTEN,
    again,
    answer,
    balance,
    begin,
    call,
    calls,
    hold,
    intend,
    intent,
    key_of,
    leased,
    prune,
    states,
)
from tests.contract.world import StoreWorld

# Figures


def test_the_figures_of_a_job_and_of_all_are_sums(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    one, other = store_world.lease(worker).jobs
    begin(store_world, intent(one), intent(one, "g"), intent(other))
    store_world.store.answered([answer(one), answer(other, micros=1, tokens=30)]).result()
    store_world.store.reused([key_of(other), key_of(other)], []).result()

    figures = store_world.store.call_figures
    assert figures(one.id).result() == CallFigures(bought=1, spent=Amount(7, 70))
    assert figures(other.id).result() == CallFigures(bought=1, reused=2, spent=Amount(1, 30))
    assert figures(None).result() == CallFigures(bought=2, reused=2, spent=Amount(8, 100))


def test_the_newest_calls_name_their_jobs_and_whether_they_are_in_hand(
    store_world: StoreWorld,
) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    one, other = store_world.lease(worker).jobs
    begin(store_world, intent(one), intent(one, "g"))
    begin(store_world, intent(other))
    store_world.store.answered([answer(one)]).result()

    found = store_world.store.newest_calls(3).result()

    said = [(call.job, call.record.key.fingerprint, call.is_in_hand) for call in found]
    assert said[0] == (other.key, "f", True)
    assert sorted(said[1:]) == [(one.key, "f", False), (one.key, "g", True)]
    assert [call.record for call in found if call.job == one.key][::-1] == calls(store_world, one)
    assert store_world.store.newest_calls(1).result() == found[:1]


def test_a_newest_call_that_nobody_has_in_hand_any_more_says_so(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job))

    again(store_world, job)

    (found,) = store_world.store.newest_calls(10).result()
    assert (found.job, found.is_in_hand, found.record.state) == (job.key, False, CallState.OPEN)


def test_a_call_is_in_doubt_when_the_lease_that_began_it_is_over(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    figures = store_world.store.call_figures
    assert (figures(job.id).result().in_doubt, figures(None).result().in_doubt) == (0, 0)

    worker, later = again(store_world, job)

    assert (figures(job.id).result().in_doubt, figures(None).result().in_doubt) == (2, 2)
    begin(store_world, intent(later))  # which may have been billed before
    hold(store_world, later, "g")
    assert (figures(job.id).result().in_doubt, figures(None).result().in_doubt) == (2, 2)
    assert figures(job.id).result().doubt == figures(None).result().doubt == Amount(20, 200)
    store_world.ack(worker, later)
    assert (figures(job.id).result().in_doubt, figures(None).result().in_doubt) == (3, 3)
    store_world.store.answered([answer(job), answer(job, "g")]).result()
    assert (figures(job.id).result().in_doubt, figures(None).result().in_doubt) == (1, 1)


def test_a_job_that_waits_again_has_its_open_calls_in_doubt(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))

    store_world.give_back(worker, [job])

    assert store_world.store.call_figures(job.id).result().in_doubt == 1
    assert store_world.store.call_figures(None).result().in_doubt == 1


def test_a_call_in_doubt_that_is_sent_again_is_counted_once(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    _, later = again(store_world, job)
    resent = intent(later, run_id="run-2", resent=1)

    begin(store_world, resent)
    begin(store_world, resent)  # the store was away when it was told first
    store_world.store.answered([answer(later)]).result()

    figures = store_world.store.call_figures
    assert figures(job.id).result() == CallFigures(
        1, in_doubt=2, spent=Amount(7, 70), resent=1, doubt=Amount(20, 200)
    )
    assert figures(None).result() == figures(job.id).result()
    assert {one.key.fingerprint: one.resent for one in calls(store_world, job)} == {"f": 1, "g": 0}
    of_run = Account("all", Period.RUN, "run-2")
    assert (balance(store_world).resent, balance(store_world, of_run).resent) == (0, 1)


def test_a_call_that_is_sent_again_twice_counts_where_it_was_sent(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job, resent=2))
    begin(store_world, intent(job, run_id="run-2", resent=3))
    begin(store_world, intent(job, run_id="run-2"))  # it was closed in between

    assert call(store_world, job).resent == 3
    of_run = Account("all", Period.RUN, "run-2")
    assert (balance(store_world).resent, balance(store_world, of_run).resent) == (2, 1)


def test_answers_that_do_not_tell_what_they_cost_are_counted(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"), intent(job, "h"))

    store_world.store.answered(
        [answer(job, is_estimated=True), answer(job, "g"), answer(job, "h", is_estimated=True)]
    ).result()

    found = store_world.store.call_figures(None).result()
    assert found == CallFigures(3, spent=Amount(21, 210), estimated=2)
    assert store_world.store.call_figures(job.id).result() == found
    assert balance(store_world).estimated == 2
    assert [one.estimated for one in calls(store_world, job)] == [1, 0, 1]


# Forgetting


def test_calls_go_with_the_purge_of_their_job(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    one, other = store_world.lease(worker).jobs
    begin(store_world, intent(one, resent=1), intent(one, "open"), intent(other))
    store_world.store.answered([answer(one, is_estimated=True), answer(other)]).result()
    store_world.ack(worker, one)
    store_world.clock.advance(1)

    assert store_world.purge(store_world.clock.now_micros) == 1

    assert calls(store_world, one) == []
    assert store_world.store.answer_of(key_of(one)).result() is None
    assert states(store_world, other) == {"f": CallState.ANSWERED}
    assert store_world.store.call_figures(None).result() == CallFigures(1, spent=Amount(7, 70))
    assert balance(store_world).reserved == Amount()
    assert balance(store_world).in_doubt == Amount(10, 100)  # it may be billed all the same
    assert balance(store_world).spent == Amount(14, 140)  # what was spent is spent


def test_a_job_with_very_many_calls_is_purged_slice_by_slice(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    many = CALLS_DROPPED + 10
    for begun in range(0, many, 1_000):
        some = range(begun, min(begun + 1_000, many))
        begin(store_world, *(intent(job, "f", ordinal=n, micros=1, tokens=1) for n in some))
    store_world.ack(worker, job)
    store_world.clock.advance(1)

    assert store_world.purge(store_world.clock.now_micros) == 1

    assert calls(store_world, job) == []
    assert balance(store_world).reserved == Amount()


def test_pruning_forgets_the_calls_of_jobs_that_ended_long_ago(store_world: StoreWorld) -> None:
    store_world.add("old", "young", "open")
    worker = store_world.new_worker()
    jobs = {job.key: job for job in store_world.lease(worker).jobs}
    begin(store_world, *(intent(job, name) for job in jobs.values() for name in "fg"))
    store_world.store.answered([answer(job) for job in jobs.values()]).result()
    store_world.ack(worker, jobs["old"])
    store_world.clock.advance(10)
    before = store_world.clock.now_micros
    store_world.ack(worker, jobs["young"])

    assert prune(store_world, before) == 2

    assert [len(calls(store_world, jobs[key])) for key in ("old", "young", "open")] == [0, 2, 2]
    assert store_world.view("old").state is JobState.DONE
    assert store_world.store.call_figures(None).result() == CallFigures(
        bought=2, in_doubt=1, spent=Amount(14, 140), doubt=Amount(10, 100)
    )
    assert balance(store_world).reserved == Amount(10, 100)  # of the one that runs
    assert balance(store_world).in_doubt == Amount(20, 200)
    assert prune(store_world, before) == 0


def test_pruning_walks_in_slices_and_says_where_the_next_starts(store_world: StoreWorld) -> None:
    keys = [f"j{n:04}" for n in range(CALLS_SLICE + 20)]
    store_world.add(*keys)
    worker = store_world.new_worker()
    jobs = list(store_world.take_all(worker, 1_000).values())
    begin(store_world, *(intent(job, micros=1, tokens=1) for job in jobs))
    store_world.store.ack(worker, [store_world.end(job) for job in jobs[:-1]]).result()
    store_world.clock.advance(1)
    now = store_world.clock.now_micros

    first, mark = store_world.store.prune_calls(now, JobId(0)).result()
    second, end = store_world.store.prune_calls(now, mark).result()
    third, last = store_world.store.prune_calls(now, end).result()

    assert (first.count, first.more) == (CALLS_SLICE, True)
    assert (second.count, second.more) == (19, True)
    assert (third.count, third.more, last) == (0, False, end)
    assert mark < end
    assert states(store_world, jobs[-1]) == {"f": CallState.OPEN}


def test_calls_survive_a_restore_and_are_in_doubt(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    begin(store_world, intent(job), intent(job, "g"))
    store_world.store.answered([answer(job)]).result()

    store_world.store.void_leases(1_000).result()

    assert states(store_world, job) == {"f": CallState.ANSWERED, "g": CallState.OPEN}
    assert store_world.store.call_figures(None).result().in_doubt == 1
    worker = store_world.new_worker()
    later = store_world.take_one(worker)
    assert intend(store_world, intent(later, "g"), intent(job, "g")) == [WRITTEN, STALE]


def test_calls_are_nothing_to_lease(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()

    batch = store_world.lease(worker)

    assert (batch.jobs, batch.more) == ([], False)


def test_names_of_calls_may_hold_anything(store_world: StoreWorld) -> None:
    _, job = leased(store_world)
    odd = "ä \"quoted\" 'x' %s ?1 $1 \\ {a,b} null"
    wanted = msgspec.structs.replace(
        intent(job, odd), run_id=odd, task=odd, provider=odd, model=odd
    )

    begin(store_world, wanted)
    store_world.store.answered([answer(job, odd)]).result()
    later = msgspec.structs.replace(wanted, key=key_of(job, "NULL"))
    begin(store_world, later)
    store_world.store.closed([CallRef(later.key, job.token)]).result()

    found = calls(store_world, job)
    assert [one.key.fingerprint for one in found] == [odd, "NULL"]
    assert {(one.provider, one.model) for one in found} == {(odd, odd)}
    assert odd != RUN
    assert {one.account.span for one in store_world.store.balances([odd]).result()} == {odd}


def test_purge_starts_where_it_was_told_with_calls_or_without(store_world: StoreWorld) -> None:
    worker, job = leased(store_world)
    begin(store_world, intent(job))
    store_world.ack(worker, job)

    progress, mark = store_world.store.purge(0, FIRST_END).result()

    assert (progress.count, progress.more, mark) == (0, False, FIRST_END)
    assert len(calls(store_world, job)) == 1

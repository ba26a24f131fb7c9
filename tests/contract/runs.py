# SPDX-License-Identifier: Apache-2.0
"""What is kept of runs?"""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.model.job import WorkerId
from penstock.model.run import RUN_BYTES_MAX, RunPart
from penstock.model.spending import Account, Amount, Period
from penstock.stores.protocol import DAYS_KEPT, RUNS_KEPT
from tests.contract.call_words import (
    all_accounts,
    answer,
    balance,
    begin,
    intent,
    prune,
    today,
)
from tests.contract.world import StoreWorld

DAY_SECONDS = 86_400.0


def save(store_world: StoreWorld, run_id: str, worker: str = "w", document: str = "{}") -> RunPart:
    part = RunPart(run_id, WorkerId(worker), store_world.clock.now_micros, document)
    store_world.store.save_run(part).result()
    return part


def test_there_is_no_run_before_the_first(store_world: StoreWorld) -> None:
    assert store_world.store.runs(10).result() == []
    assert store_world.store.run_parts(None).result() == []
    assert store_world.store.run_parts("nobody").result() == []


def test_every_worker_has_its_part_of_a_run(store_world: StoreWorld) -> None:
    other = save(store_world, "r", "w2", '{"ö": "\\"☃\\""}')
    one = save(store_world, "r", "w1")
    save(store_world, "other")

    assert store_world.store.run_parts("r").result() == [one, other]


def test_the_last_word_of_a_worker_counts(store_world: StoreWorld) -> None:
    save(store_world, "r", "w1", "old")
    other = save(store_world, "r", "w2", "other")
    store_world.clock.advance(10)

    new = save(store_world, "r", "w1", "new")

    assert store_world.store.run_parts("r").result() == [new, other]


def test_the_run_that_has_begun_last_comes_first(store_world: StoreWorld) -> None:
    for run_id in ("c", "a", "b", "a", "c"):
        save(store_world, run_id)

    assert store_world.store.runs(10).result() == ["b", "a", "c"]
    assert store_world.store.runs(2).result() == ["b", "a"]
    assert [part.run_id for part in store_world.store.run_parts(None).result()] == ["b"]


def test_old_runs_are_forgotten_with_what_they_spent(store_world: StoreWorld) -> None:
    store_world.add("a")
    job = store_world.take_one(store_world.new_worker())
    begin(store_world, intent(job, "a", run_id="old"), intent(job, "b", run_id="doubt"))
    store_world.store.answered([answer(job, "a")]).result()
    for run_id in ("old", "doubt", "young"):
        save(store_world, run_id)
    for number in range(RUNS_KEPT - 1):
        save(store_world, f"r{number}")

    found = store_world.store.runs(RUNS_KEPT + 10).result()

    assert (len(found), found[-1]) == (RUNS_KEPT, "young")
    assert store_world.store.run_parts("old").result() == []
    assert store_world.store.balances(["old"]).result() == []
    doubt = balance(store_world, Account("all", Period.RUN, "doubt"))
    assert doubt.reserved == Amount(10, 100)  # its call is still open
    day = balance(store_world, Account("all", Period.DAY, today(store_world)))
    assert day.spent == Amount(7, 70)


def test_a_run_that_goes_on_keeps_what_it_spent(store_world: StoreWorld) -> None:
    worker = store_world.new_worker(run_id="long")
    store_world.add("a")
    job = store_world.take_one(worker)
    begin(store_world, intent(job, "a", run_id="long"))
    store_world.store.answered([answer(job, "a")]).result()
    part = save(store_world, "long")
    for number in range(RUNS_KEPT + 1):
        save(store_world, f"r{number}")

    assert store_world.store.run_parts("long").result() == [part]
    assert balance(store_world, Account("all", Period.RUN, "long")).spent == Amount(7, 70)

    store_world.store.retire(worker).result()
    save(store_world, "last")

    assert store_world.store.run_parts("long").result() == []
    assert store_world.store.balances(["long"]).result() == []
    assert len(store_world.store.runs(RUNS_KEPT + 10).result()) == RUNS_KEPT


def test_a_document_that_is_too_large_is_refused(store_world: StoreWorld) -> None:
    save(store_world, "r", document="x" * RUN_BYTES_MAX)

    with pytest.raises(UsageError, match=f"more than the {RUN_BYTES_MAX:,} that are kept"):
        save(store_world, "r", document="x" * (RUN_BYTES_MAX - 1) + "\u00e9")

    (part,) = store_world.store.run_parts("r").result()
    assert part.document == "x" * RUN_BYTES_MAX


def test_what_was_spent_on_days_long_ago_is_forgotten(store_world: StoreWorld) -> None:
    store_world.add("a")
    job = store_world.take_one(store_world.new_worker())
    begin(store_world, intent(job, "old", run_id="1"), intent(job, "open", task="slow"))
    store_world.store.answered([answer(job, "old")]).result()
    long_ago = today(store_world)
    store_world.clock.advance(DAY_SECONDS)
    begin(store_world, intent(job, "new"))
    store_world.store.answered([answer(job, "new")]).result()
    later = today(store_world)
    store_world.clock.advance(DAYS_KEPT * DAY_SECONDS)

    prune(store_world, 0)

    kept = store_world.store.balances([long_ago, later]).result()
    assert {(one.account.span, one.account.scope) for one in kept} == {
        *((later, one.scope) for one in all_accounts(store_world)),
        *((long_ago, scope) for scope in ("all", "provider:openai", "model:openai/gpt-5")),
        (long_ago, "task:slow"),  # a call of that day is still open
    }
    assert len(store_world.store.balances(["1"]).result()) == 4  # runs are kept by their number

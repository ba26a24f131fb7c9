# SPDX-License-Identifier: Apache-2.0
"""Does the snapshot of a run say which limit binds, and what jobs wait for?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.job import WorkerId
from penstock.model.spending import Budget, BudgetRefusal, Period
from penstock.model.worker import ProviderUse, UnresponsiveWorker, WorkerStatus
from penstock.observe.live import (
    REASONS_MAX,
    Reason,
    RunSnapshot,
    Work,
    provider_lines,
    run_snapshot,
    stall_reason,
)
from penstock.observe.providers import Binding
from tests.live_sample import (
    BALANCES,
    CROSSREF,
    NOW,
    RUN,
    SECOND,
    STATUS,
    blocked,
    outlook,
    sample_snapshot,
    stats,
    worker,
)


def use(**said: Any) -> ProviderUse:
    known = {"provider": "ai", "model": "m", "limit": 8, "limit_max": 64}
    return ProviderUse(**{**known, **said})


def snapshot(*uses: ProviderUse, queued: int = 1, **status: Any) -> RunSnapshot:
    said = WorkerStatus(captured_at=NOW, providers=uses, **status)
    return run_snapshot(stats(queued=queued), outlook(), [worker(said)], (), RUN, NOW)


@pytest.mark.parametrize(
    ("said", "binding"),
    [
        ({"in_flight": 3}, Binding.NOTHING),
        ({"in_flight": 8}, Binding.ADAPTIVE),
        ({"in_flight": 9}, Binding.ADAPTIVE),  # the limit has just fallen
        ({"in_flight": 64, "limit": 64}, Binding.MAX_PARALLEL),
        ({"in_flight": 3, "waiting": 2}, Binding.ADAPTIVE),
        ({"in_flight": 3, "waiting": 2, "rate": 4.0, "mode": "requests"}, Binding.RATE),
        ({"in_flight": 3, "requests_last_minute": 58, "rpm": 60.0}, Binding.RPM),
        ({"in_flight": 3, "requests_last_minute": 50, "rpm": 60.0}, Binding.NOTHING),
        ({"in_flight": 3, "tokens_last_minute": 999, "tpm": 1000.0}, Binding.TPM),
        ({"in_flight": 8, "blocked_until_at": NOW + 5 * SECOND}, Binding.COOLDOWN),
        ({"in_flight": 8, "blocked_until_at": NOW - 5 * SECOND}, Binding.ADAPTIVE),
        ({"blocked_until_at": NOW + 5 * SECOND, "failed_in_row": 2}, Binding.DOWN),
        ({"failed_in_row": 2}, Binding.NOTHING),
    ],
)
def test_which_limit_binds(said: dict[str, Any], binding: Binding) -> None:
    found = provider_lines(
        [worker(WorkerStatus(captured_at=NOW, providers=(use(**said),)))], (), NOW
    )

    assert found[0].binding is binding


def test_a_provider_is_named_with_its_models_if_it_has_several_and_spends_by_model() -> None:
    two = WorkerStatus(
        captured_at=NOW,
        providers=(use(provider="openai", model="gpt-5"), use(provider="openai", model="n"), use()),
    )

    lines = provider_lines([worker(two)], BALANCES, NOW)

    assert [(line.name, line.spent_micros) for line in lines] == [
        ("ai", None),
        ("openai/gpt-5", 1_234_000),
        ("openai/n", None),
    ]


def test_jobs_that_a_worker_has_leased_and_not_started_are_queued_for_people() -> None:
    work = sample_snapshot().work

    assert (work.ready, work.leased, work.queued, work.running) == (41_203, 226, 41_429, 61)


def test_workers_of_other_runs_are_counted_and_not_shown() -> None:
    other = msgspec.structs.replace(worker(pid=9), run_id="run-2")
    dead = msgspec.structs.replace(worker(pid=8), alive=False)

    found = run_snapshot(stats(), outlook(), [worker(), other, dead], (), RUN, NOW)

    assert found.workers.pids == (4121,)
    assert (found.workers.used, found.workers.slots, found.workers.others) == (61, 96, 1)
    assert found.providers[0].live.in_flight == 14
    assert found.money is None


def test_the_same_reason_of_two_workers_is_one() -> None:
    found = run_snapshot(stats(queued=1), outlook(), [worker(pid=1), worker(pid=2)], (), RUN, NOW)

    assert found.reasons[0] == Reason("async slots", 320)
    assert found.reasons.count(Reason("keyed limit host:example.org of 2 is full")) == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"in_flight": 8}, "ai is at its adaptive limit of 8"),
        ({"in_flight": 64, "limit": 64}, "ai is at its max_parallel of 64"),
        ({"blocked_until_at": NOW + 12 * SECOND}, "ai cools down for 12 s"),
        (
            {"blocked_until_at": NOW + 12 * SECOND, "failed_in_row": 7},
            "ai is down (7 failures in a row), probed in 12 s",
        ),
        ({"requests_last_minute": 60, "rpm": 60.0}, "ai has used its 60 requests a minute"),
        ({"tokens_last_minute": 9_000, "tpm": 9_000.0}, "ai has used its 9,000 tokens a minute"),
        (
            {"waiting": 2, "rate": 2.5, "mode": "requests"},
            "ai seems to allow 2.5 requests a second",
        ),
    ],
)
def test_tasks_that_wait_for_a_provider_say_for_what_of_it(
    said: dict[str, Any], words: str
) -> None:
    line = blocked("policy", "ai", 5, "gate")

    assert snapshot(use(**said), blocked=(line,)).reasons == (Reason(words, 5),)


def test_tasks_that_are_not_leased_because_of_their_provider_are_counted() -> None:
    cools = use(blocked_until_at=NOW + 3 * SECOND)

    found = snapshot(cools, queued=100, held_back={"fetch": "ai/m"})

    assert found.reasons == (Reason("ai/m cools down for 3 s", 100),)


def test_a_provider_that_nothing_is_known_of_is_still_named() -> None:
    found = snapshot(blocked=(blocked("policy", "ai", 5, "gate"),))

    assert found.reasons == (Reason("ai takes no more requests now", 5),)


def test_reasons_are_bounded() -> None:
    many = tuple(blocked("no_capacity", f"r{number}", number) for number in range(1, 60))

    found = snapshot(blocked=many, full_limits={f"k{number}": 1 for number in range(60)})

    assert len(found.reasons) == REASONS_MAX
    assert found.reasons[0] == Reason("r59 slots", 59)


def test_a_limit_of_nought_is_told_as_such() -> None:
    assert snapshot(full_limits={"host:x": 0}).reasons == (Reason("keyed limit host:x is 0"),)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (snapshot(use(blocked_until_at=NOW + 9 * SECOND)), "ai cools down for 9 s"),
        (
            snapshot(
                use(blocked_until_at=NOW + 9 * SECOND, waiting=50),
                use(model="n", failed_in_row=4, blocked_until_at=NOW + 5 * SECOND),
            ),
            "ai/n is down (4 failures in a row), probed in 5 s",
        ),
        (
            snapshot(blocked=STATUS.blocked[:2]),
            "160 jobs waiting: async slots and 44 jobs waiting: fair share of async slots",
        ),
        (RunSnapshot(work=Work(running=1)), "1 job running, and none has ended lately"),
        (RunSnapshot(work=Work(ready=1)), "no worker has taken a job yet"),
    ],
)
def test_why_nothing_ends(found: RunSnapshot, words: str) -> None:
    assert stall_reason(found) == words


def test_a_paused_queue_is_the_first_reason() -> None:
    paused = msgspec.structs.replace(stats(queued=50, waiting=3), paused=True)
    held = WorkerStatus(captured_at=NOW, providers=(CROSSREF,), held_back={"fetch": "crossref"})

    found = run_snapshot(paused, outlook(), [worker(held)], (), RUN, NOW)

    assert found.reasons == (Reason("the queue is paused", 50), Reason("other jobs", 3))
    assert found.work.paused


@pytest.mark.parametrize(
    ("price_is_missing", "words"),
    [
        (False, "[budget.provider.ai.run], which is used up"),
        (True, "the price of ai/m, for [budget.provider.ai.run]"),
    ],
)
def test_a_task_without_money_says_which_budget_it_waits_for(
    price_is_missing: bool, words: str
) -> None:
    budget = Budget("provider:ai", Period.RUN, micros=5_000_000)
    refusal = BudgetRefusal(budget, "ai/m", price_is_missing=price_is_missing)

    found = snapshot(use(), use(model="n"), queued=100, over_budget={"fetch": refusal})

    assert found.reasons == (Reason(words, 100),)
    assert [line.binding for line in found.providers] == [Binding.BUDGET, Binding.NOTHING]


def test_jobs_of_a_worker_that_no_longer_answers_do_not_run() -> None:
    dead = UnresponsiveWorker(WorkerId("w-9"), "run-0", "here", 9, 17.2, is_gone=True, jobs=3)
    views = [worker(WorkerStatus(captured_at=NOW, running=2)), worker(pid=9)]

    found = run_snapshot(stats(in_progress=5), outlook(), views, (), RUN, NOW, [dead])

    assert (found.work.running, found.work.lost, found.workers.others) == (2, 3, 0)
    assert found.workers.pids == (4121,)
    assert found.reasons == (Reason("worker pid 9 no longer answers, its lease ends in 17 s", 3),)
    assert stall_reason(found).startswith("3 jobs waiting: worker pid 9 no longer answers")


def test_a_job_that_must_run_alone_is_not_queued_as_well() -> None:
    two = msgspec.structs.replace(stats(queued=7), suspects=2)

    work = run_snapshot(two, outlook(), [worker(None)], (), RUN, NOW).work

    assert (work.queued, work.suspects) == (5, 2)


def test_a_job_waits_for_one_thing_only() -> None:
    said = WorkerStatus(captured_at=NOW, providers=(use(in_flight=8),), held_back={"fetch": "ai/m"})
    known = msgspec.structs.replace(stats(queued=21), delayed=3, suspects=2)

    found = run_snapshot(known, outlook(), [worker(said)], (), RUN, NOW)

    assert found.reasons == (
        Reason("ai/m is at its adaptive limit of 8", 16),
        Reason("in quarantine after a crash", 2),
        Reason("their due time, the next in 9 s", 3),
    )


def test_a_time_that_has_come_is_not_told_as_one_to_come() -> None:
    known = msgspec.structs.replace(stats(queued=7), delayed=3, next_due_at=NOW - SECOND)

    assert Reason("their due time", 3) in run_snapshot(known, outlook(), (), (), RUN, NOW).reasons

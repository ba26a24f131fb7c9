# SPDX-License-Identifier: Apache-2.0
"""Is a job that waits for a budget told so, with its numbers and what would help?"""

from __future__ import annotations

import msgspec

from penstock.model.job import JobState
from penstock.model.spending import (
    Account,
    Amount,
    Balance,
    Budget,
    BudgetRefusal,
    BudgetStop,
    Period,
    format_usd,
)
from penstock.model.worker import LeasePhase, WorkerStatus, read_status
from penstock.observe.spending import budget_uses, spending_of
from penstock.observe.why.facts import Gate
from penstock.observe.why.job import explain
from tests.unit.observe.why.test_job import NOW, V, W, answer, facts, job, seconds, worker

DAY = "2027-01-15"
RUN_BUDGET = Budget("all", Period.RUN, micros=2_000_000)
DAY_BUDGET = Budget("task:fetch", Period.DAY, tokens=500)
REFUSAL = BudgetRefusal(RUN_BUDGET, "ai/gpt-5", Amount(30_000, 90), Amount(10_000, 0))
BALANCES = [
    Balance(Account("all", Period.RUN, "r"), Amount(1_990_000, 70), Amount(), 5, 2),
    Balance(Account("task:fetch", Period.DAY, DAY), Amount(7, 450), Amount(0, 20)),
    Balance(Account("model:ai/gpt/5", Period.DAY, DAY), Amount(1, 2), Amount(3, 4), 5, 6),
]
USES = tuple(budget_uses([RUN_BUDGET, DAY_BUDGET], BALANCES, ["r"], DAY))


def held(refusal: BudgetRefusal = REFUSAL) -> WorkerStatus:
    return WorkerStatus(captured_at=0, over_budget={"fetch": refusal})


def test_a_task_that_is_held_back_by_a_budget_names_it_with_numbers() -> None:
    found = explain(facts(job(), workers=(worker(status=held()),), budgets=USES))

    assert found.gate is Gate.BUDGET
    assert found.sentence == (
        "The task 'fetch' of 'k' is held back in run 'r' by a budget: a call of ai/gpt-5 may "
        "need $0.03. [budget.run] has $0.01 of $2.00 left ($1.99 spent)."
    )
    assert found.unblocks == (
        "budget.run.usd = 2 in penstock.toml is raised and a new run starts; a new run "
        "counts from zero"
    )
    assert found.command == "penstock queue run"
    assert found.worker == W


def test_a_missing_price_is_told_with_its_place() -> None:
    refusal = msgspec.structs.replace(REFUSAL, price_is_missing=True)

    found = explain(facts(job(), workers=(worker(status=held(refusal)),), budgets=USES))

    assert found.gate is Gate.BUDGET
    assert "ai/gpt-5 has no price" in found.sentence
    assert '[providers.ai.models."gpt-5"]' in (found.unblocks or "")


def test_another_worker_that_takes_the_task_is_what_it_waits_for() -> None:
    workers = (worker(status=held()), worker(V, status=WorkerStatus(captured_at=0)))

    assert explain(facts(job(), workers=workers, budgets=USES)).gate is Gate.TURN


def stopped(refusal: BudgetRefusal, span: str) -> BudgetStop:
    return BudgetStop(refusal=refusal, span=span, tasks=("fetch",), spent=Amount(1_990_000, 450))


def test_after_a_run_that_its_budget_ended_the_budget_is_the_gate() -> None:
    budget = msgspec.structs.replace(RUN_BUDGET, usd_from="PENSTOCK_BUDGET__RUN__USD")
    refusal = msgspec.structs.replace(REFUSAL, budget=budget)

    found = explain(facts(job(), workers=(), stops=(stopped(refusal, "r"),)))

    assert found.gate is Gate.BUDGET
    assert found.sentence == (
        "No live worker could take 'k': the last run ended at its budget [budget.run] of "
        "$2.00 a run ($1.99 spent, and a call of ai/gpt-5 may need $0.03)."
    )
    assert found.unblocks == (
        "a new run starts: it counts from zero, up to PENSTOCK_BUDGET__RUN__USD=2 in the "
        "environment "
        "(which goes before every file)"
    )
    assert found.command == "penstock queue run"


def test_a_budget_of_the_day_is_told_to_last_until_its_day_ends() -> None:
    refusal = BudgetRefusal(DAY_BUDGET, "ai/gpt-5", Amount(9, 90), Amount(0, 50))

    today = explain(facts(job(), workers=(), stops=(stopped(refusal, DAY),)))
    later = explain(facts(job(), workers=(), stops=(stopped(refusal, "2027-01-14"),)))

    assert today.gate is later.gate is Gate.BUDGET
    assert today.unblocks == (
        "budget.task.fetch.day.tokens = 500 in penstock.toml is raised, or the day ends (UTC), "
        "and a new run starts"
    )
    assert (later.unblocks or "").startswith("a new run starts: it is a new day")


def test_a_total_that_ended_the_last_run_is_raised_or_reset() -> None:
    budget = msgspec.structs.replace(RUN_BUDGET, period=Period.TOTAL)
    refusal = msgspec.structs.replace(REFUSAL, budget=budget)

    found = explain(facts(job(), workers=(), stops=(stopped(refusal, ""),)))

    assert found.unblocks == (
        "budget.total.usd = 2 in penstock.toml is raised, or 'penstock budget reset --yes' is run, "
        "and a new run starts"
    )


def test_a_budget_that_held_back_another_task_is_no_gate() -> None:
    stop = msgspec.structs.replace(stopped(REFUSAL, "r"), tasks=("other",))

    assert explain(facts(job(), workers=(), stops=(stop,))).gate is Gate.NO_WORKER


def test_without_a_worker_what_the_day_has_left_is_a_detail() -> None:
    found = explain(facts(job(), workers=(), budgets=USES))

    assert found.gate is Gate.NO_WORKER
    assert found.details == (
        "[budget.task.fetch.day] has 30 tokens of 500 tokens left (450 tokens spent, 20 tokens "
        "reserved).",
    )


def test_a_body_that_waits_for_money_of_others_says_so() -> None:
    standing = answer(
        LeasePhase.RUNNING, since_at=NOW, permit_since_at=NOW - seconds(3), money_of="budget.day"
    )
    subject = job(state=JobState.IN_PROGRESS, worker=W)

    found = explain(facts(subject, answers=(standing,)))

    assert "for money of [budget.day] that calls in flight have reserved." in found.sentence
    assert found.unblocks == "one of those ends, and its attempt ends"


def test_a_status_with_a_refusal_survives_its_document() -> None:
    status = read_status(held().encoded())

    assert status is not None
    assert status.over_budget == {"fetch": REFUSAL}


def test_spending_is_told_by_model_with_exact_money() -> None:
    (row,) = spending_of(BALANCES)

    assert (row.provider, row.model, row.usd, row.reserved_usd) == (
        "ai",
        "gpt/5",
        "0.000001",
        "0.000003",
    )
    assert (row.bought, row.reused, row.period, row.span) == (5, 6, "day", DAY)
    assert [format_usd(one) for one in (0, -1_500_000, 10**12)] == ["0", "-1.5", "1000000"]

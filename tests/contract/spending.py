# SPDX-License-Identifier: Apache-2.0
"""What is reserved, spent and allowed?"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.model.job import JobId, LeasedJob
from penstock.model.journal import IntentVerdict
from penstock.model.spending import TOTAL_SPAN, Account, Amount, Budget, Period
from tests.contract.call_words import (
    MODEL,
    PROVIDER,
    RUN,
    TASK,
    WHOLE_RUN,
    WRITTEN,
    all_accounts,
    answer,
    balance,
    begin,
    call,
    calls,
    close,
    hold,
    intend,
    intent,
    key_of,
    today,
)
from tests.contract.world import StoreWorld

DAY_SECONDS = 86_400.0
TOTAL = Account("all", Period.TOTAL, TOTAL_SPAN)


def a_job(store_world: StoreWorld) -> LeasedJob:
    store_world.add("a")
    return store_world.take_one(store_world.new_worker())


def refused(budget: Budget, micros: int = 0, tokens: int = 0) -> IntentVerdict:
    return IntentVerdict(written=False, over=budget, left=Amount(micros, tokens))


# Accounts


def test_nothing_was_spent_by_a_run_that_nobody_knows(store_world: StoreWorld) -> None:
    assert store_world.store.balances(["nobody"]).result() == []
    assert store_world.store.balances([]).result() == []


def test_a_call_counts_in_four_scopes_of_its_run_and_of_its_day(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job))

    found = store_world.store.balances([RUN, today(store_world), RUN]).result()

    assert [one.account for one in found] == sorted(
        Account(scope, period, span)
        for scope in ("all", f"model:{PROVIDER}/{MODEL}", f"provider:{PROVIDER}", f"task:{TASK}")
        for period, span in ((Period.RUN, RUN), (Period.DAY, today(store_world)))
    )
    assert isinstance(found[0].account, Account)
    assert found[0].account.period is Period.DAY
    assert {(one.spent, one.reserved, one.bought) for one in found} == {
        (Amount(), Amount(10, 100), 0)
    }
    assert len(store_world.store.balances([RUN]).result()) == 4


def test_an_answer_settles_the_reserve_in_every_account(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job))

    store_world.store.answered([answer(job)]).result()

    for account in all_accounts(store_world):
        found = balance(store_world, account)
        assert (found.spent, found.reserved) == (Amount(7, 70), Amount())
        assert (found.bought, found.reused) == (1, 0)


def test_reuse_is_counted_in_the_accounts_that_are_named(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()
    accounts = all_accounts(store_world, "run-2")

    store_world.store.reused([key_of(job)] * 2, [*accounts, *accounts]).result()

    for account in accounts:
        found = balance(store_world, account)
        assert found.reused == 2
        was_bought_in = account.span != "run-2"
        assert found.spent == (Amount(7, 70) if was_bought_in else Amount())


def test_models_tasks_and_providers_are_counted_apart(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    begin(
        store_world,
        intent(job, "a"),
        intent(job, "b", model="small", micros=1, tokens=10),
        intent(job, "c", provider="azure", task="other", micros=2, tokens=20),
    )

    kept = {
        one.account.scope: one.reserved.micros for one in store_world.store.balances([RUN]).result()
    }

    assert kept == {
        "all": 13,
        "provider:openai": 11,
        "provider:azure": 2,
        "model:openai/gpt-5": 10,
        "model:openai/small": 1,
        "model:azure/gpt-5": 2,
        "task:work": 11,
        "task:other": 2,
    }


def test_an_answer_settles_where_its_call_had_reserved_also_after_midnight(
    store_world: StoreWorld,
) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job))
    yesterday = today(store_world)
    store_world.clock.advance(DAY_SECONDS)

    store_world.store.answered([answer(job)]).result()

    assert today(store_world) != yesterday
    found = balance(store_world, Account("all", Period.DAY, yesterday))
    assert (found.spent, found.reserved) == (Amount(7, 70), Amount())
    assert store_world.store.balances([today(store_world)]).result() == []


def test_a_call_begun_again_in_another_run_moves_its_reserve(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job))
    store_world.store.answered([answer(job)]).result()
    begin(store_world, intent(job))
    store_world.expire()
    later = store_world.take_one(store_world.new_worker())

    begin(store_world, intent(later, run_id="run-2", micros=4, tokens=40))

    before = balance(store_world)
    assert (before.spent, before.reserved, before.bought) == (Amount(7, 70), Amount(), 1)
    after = balance(store_world, Account("all", Period.RUN, "run-2"))
    assert (after.spent, after.reserved) == (Amount(), Amount(4, 40))


def test_free_calls_are_counted_as_well(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job, micros=0, tokens=0))

    store_world.store.answered([answer(job, micros=0, tokens=0)]).result()

    assert balance(store_world).bought == 1


def test_sums_are_exact_far_beyond_a_float(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    large = 2**53 + 1
    begin(store_world, intent(job, micros=large, tokens=large), intent(job, "g", micros=1))

    assert balance(store_world).reserved == Amount(large + 1, large + 100)
    assert call(store_world, job).reserved == Amount(large, large)


# Budgets


def test_a_budget_allows_up_to_its_amount_and_not_one_more(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=20)

    verdicts = intend(
        store_world,
        intent(job, "a"),
        intent(job, "b", micros=11),
        intent(job, "c"),
        intent(job, "d", micros=1),
        intent(job, "free", micros=0),
        budgets=[budget],
    )

    assert verdicts == [WRITTEN, refused(budget, 10), WRITTEN, refused(budget, 0), WRITTEN]
    assert {one.key.fingerprint for one in calls(store_world, job)} == {"a", "c", "free"}
    assert balance(store_world).reserved == Amount(20, 300)


def test_tokens_are_a_budget_too(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, tokens=150)
    begin(store_world, intent(job))

    verdicts = intend(store_world, intent(job, "g"), intent(job, "h", tokens=50), budgets=[budget])

    assert verdicts == [refused(budget, tokens=50), WRITTEN]


def test_either_of_money_and_tokens_is_enough_to_exceed_a_budget(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=15, tokens=150)
    begin(store_world, intent(job))

    assert intend(
        store_world,
        intent(job, "g", micros=6, tokens=1),
        intent(job, "h", micros=1, tokens=51),
        intent(job, "i", micros=5, tokens=50),
        budgets=[budget],
    ) == [refused(budget, 5, 50), refused(budget, 5, 50), WRITTEN]


def test_what_is_spent_and_what_is_reserved_both_use_a_budget(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=20)
    begin(store_world, intent(job), intent(job, "g"))
    assert intend(store_world, intent(job, "h", micros=4), budgets=[budget]) == [refused(budget)]

    store_world.store.answered([answer(job)]).result()  # 7 of 10

    assert intend(store_world, intent(job, "h", micros=4), budgets=[budget]) == [refused(budget, 3)]
    assert intend(store_world, intent(job, "h", micros=3), budgets=[budget]) == [WRITTEN]


def test_a_reply_may_cost_more_than_was_reserved_and_then_nothing_is_left(
    store_world: StoreWorld,
) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=20)
    assert intend(store_world, intent(job), budgets=[budget]) == [WRITTEN]
    store_world.store.answered([answer(job, micros=25)]).result()

    assert intend(store_world, intent(job, "g", micros=0), budgets=[budget]) == [
        refused(budget, -5)
    ]


def test_a_closed_call_leaves_its_share_to_others(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=10)
    begin(store_world, intent(job))
    assert intend(store_world, intent(job, "g"), budgets=[budget]) == [refused(budget)]

    close(store_world, job)

    assert intend(store_world, intent(job, "g"), budgets=[budget]) == [WRITTEN]


def test_a_call_in_doubt_keeps_its_share(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=10)
    begin(store_world, intent(job))
    store_world.expire()
    later = store_world.take_one(store_world.new_worker())
    hold(store_world, later)

    assert intend(store_world, intent(later, "g"), budgets=[budget]) == [refused(budget)]


def test_a_send_in_doubt_keeps_its_share_when_the_call_is_sent_again(
    store_world: StoreWorld,
) -> None:
    """Whoever was billed for the first one is billed for the second as well."""
    job = a_job(store_world)
    budget = Budget("all", Period.DAY, micros=25)
    assert intend(store_world, intent(job), budgets=[budget]) == [WRITTEN]
    assert intend(store_world, intent(job, resent=1), budgets=[budget]) == [WRITTEN]
    store_world.expire()
    later = store_world.take_one(store_world.new_worker())

    again = intent(later, run_id="run-2", resent=2)
    assert intend(store_world, again, budgets=[budget]) == [refused(budget, 5)]
    cheaper = intent(later, micros=5, run_id="run-2", resent=2)
    assert intend(store_world, cheaper, budgets=[budget]) == [WRITTEN]
    store_world.store.answered([answer(later, micros=4)]).result()

    found = call(store_world, job)
    assert (found.doubts, found.doubt) == (2, Amount(20, 200))
    day = balance(store_world, Account("all", Period.DAY, today(store_world)))
    assert (day.spent.micros, day.reserved, day.in_doubt) == (4, Amount(), Amount(20, 200))
    assert balance(store_world).in_doubt == Amount(20, 200)  # where they were sent
    assert balance(store_world, Account("all", Period.RUN, "run-2")).in_doubt == Amount()
    assert intend(store_world, intent(later, "g", micros=2), budgets=[budget]) == [
        refused(budget, 1)
    ]


def test_a_total_counts_over_runs_and_days(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.TOTAL, micros=20)
    assert intend(store_world, intent(job), budgets=[budget]) == [WRITTEN]
    store_world.store.answered([answer(job)]).result()  # 7 of 10
    store_world.clock.advance(2 * DAY_SECONDS)

    later = intent(job, "g", micros=14, run_id="run-2")
    assert intend(store_world, later, budgets=[budget]) == [refused(budget, 13)]
    assert intend(store_world, intent(job, "g", run_id="run-2"), budgets=[budget]) == [WRITTEN]

    found = balance(store_world, TOTAL)
    assert (found.spent, found.reserved) == (Amount(7, 70), Amount(10, 100))


def test_apps_do_not_spend_each_others_budgets(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    for period in Period:
        budget = Budget("all", period, micros=10)
        mine = replace(intent(job, f"f-{period}"), app=f"mine-{period}")
        assert intend(store_world, mine, budgets=[budget]) == [WRITTEN]
        again = replace(mine, key=key_of(job, f"g-{period}"))
        assert intend(store_world, again, budgets=[budget]) == [refused(budget)]
        theirs = replace(again, app=f"theirs-{period}")
        assert intend(store_world, theirs, budgets=[budget]) == [WRITTEN]
    assert store_world.store.check().result() == []


def test_a_reset_forgives_what_was_spent_and_is_in_doubt_and_nothing_in_flight(
    store_world: StoreWorld,
) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job), intent(job, "g"), intent(job, "h"))
    begin(store_world, replace(intent(job, "other"), app="other"))
    store_world.store.answered([answer(job)]).result()
    store_world.expire()
    later = store_world.take_one(store_world.new_worker())
    begin(store_world, intent(later, "g", resent=1))  # h is in doubt, and so is the first g
    before = balance(store_world, TOTAL)
    assert (before.spent.micros, before.reserved.micros, before.in_doubt.micros) == (7, 10, 20)
    of_run = balance(store_world)

    found = store_world.store.reset_totals("", "all").result()

    assert found == [before]
    after = balance(store_world, TOTAL)
    assert (after.spent, after.reserved, after.in_doubt) == (Amount(), Amount(10, 100), Amount())
    assert balance(store_world) == of_run
    assert balance(store_world, TOTAL._replace(scope=f"task:{TASK}")).spent.micros == 7
    assert balance(store_world, TOTAL._replace(app="other")).in_doubt.micros == 10
    begin(store_world, intent(later, "h", resent=1))
    store_world.store.answered([answer(later, "g"), answer(later, "h")]).result()
    assert balance(store_world, TOTAL).spent == Amount(14, 140)
    assert store_world.store.call_figures(job.id).result().in_doubt == 3
    assert len(store_world.store.reset_totals("", None).result()) == 4
    assert store_world.store.check().result() == []


def test_a_call_that_is_begun_again_is_not_in_its_own_way(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budgets = [Budget("all", Period.RUN, micros=10), Budget("all", Period.DAY, micros=10)]
    assert intend(store_world, intent(job), budgets=budgets) == [WRITTEN]

    assert intend(store_world, intent(job), budgets=budgets) == [WRITTEN]

    assert intend(store_world, intent(job, micros=11), budgets=budgets) == [refused(budgets[0], 10)]
    assert call(store_world, job).reserved == Amount(10, 100)  # nothing of that was written


def test_a_call_of_an_earlier_run_is_not_in_the_way_of_the_budget_of_a_later_one(
    store_world: StoreWorld,
) -> None:
    job = a_job(store_world)
    begin(store_world, intent(job, "a"), intent(job, "b"))
    run, day = Budget("all", Period.RUN, micros=10), Budget("all", Period.DAY, micros=15)

    assert intend(store_world, intent(job, "a", run_id="run-2"), budgets=[run]) == [WRITTEN]
    assert intend(store_world, intent(job, "b", run_id="run-2"), budgets=[run]) == [refused(run)]
    assert intend(store_world, intent(job, "b", run_id="run-2"), budgets=[day]) == [refused(day, 5)]


def test_a_budget_counts_only_what_is_its_own(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budgets = [
        Budget("provider:azure", Period.RUN, micros=0),
        Budget("model:openai/small", Period.RUN, micros=0),
        Budget("task:other", Period.DAY, micros=0),
        Budget("table:sales", Period.RUN, micros=0),
    ]

    verdicts = intend(
        store_world,
        intent(job, "a"),
        intent(job, "b", provider="azure"),
        intent(job, "c", model="small"),
        intent(job, "d", task="other"),
        budgets=budgets,
    )

    assert verdicts == [WRITTEN, *(refused(budget) for budget in budgets[:3])]


def test_the_first_budget_that_is_exceeded_is_named(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budgets = [
        Budget("all", Period.DAY, micros=100),
        Budget(f"task:{TASK}", Period.RUN, micros=5),
        Budget("all", Period.RUN, micros=5),
    ]

    assert intend(store_world, intent(job), budgets=budgets) == [refused(budgets[1], 5)]


def test_a_day_budget_opens_again_at_midnight_of_utc(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.DAY, micros=10)
    assert intend(store_world, intent(job), budgets=[budget]) == [WRITTEN]
    assert intend(store_world, intent(job, "g"), budgets=[budget]) == [refused(budget)]

    store_world.clock.advance(DAY_SECONDS)

    assert intend(store_world, intent(job, "g"), budgets=[budget]) == [WRITTEN]


def test_another_run_has_its_own_budget(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=10)
    assert intend(
        store_world,
        intent(job, "a"),
        intent(job, "b"),
        intent(job, "c", run_id="run-2"),
        budgets=[budget],
    ) == [WRITTEN, refused(budget), WRITTEN]


def test_a_raised_budget_counts_at_once(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    small, larger = (Budget("all", Period.RUN, micros=n) for n in (5, 10))
    assert intend(store_world, intent(job), budgets=[small]) == [refused(small, 5)]

    assert intend(store_world, intent(job), budgets=[larger]) == [WRITTEN]


def test_calls_of_one_moment_use_one_budget(store_world: StoreWorld) -> None:
    job = a_job(store_world)
    budget = Budget("all", Period.RUN, micros=35)

    replies = [store_world.store.intend([intent(job, f"f{n}")], [budget]) for n in range(10)]
    verdicts = [verdict for reply in replies for verdict in reply.result()]

    assert sum(verdict.written for verdict in verdicts) == 3
    assert balance(store_world, WHOLE_RUN).reserved.micros == 30


def test_what_an_app_has_spent_and_reserved_follows_its_new_name(store_world: StoreWorld) -> None:
    store_world.store.sign_on("a", None, JobId(0)).result()
    job = a_job(store_world)
    begin(store_world, replace(intent(job), app="a"), replace(intent(job, "g"), app="a"))
    store_world.store.answered([answer(job)]).result()
    before = balance(store_world, TOTAL._replace(app="a"))
    assert (before.spent.micros, before.reserved.micros) == (7, 10)
    store_world.expire()
    store_world.store.look_as(None).result()

    store_world.store.rename_app("a", "z", JobId(0)).result()

    after = balance(store_world, TOTAL._replace(app="z"))
    assert (after.spent, after.in_doubt) == (before.spent, before.reserved)  # nobody holds it now
    assert all(one.account.app != "a" for one in store_world.store.balances(["total"]).result())
    assert store_world.store.check().result() == []

# SPDX-License-Identifier: Apache-2.0
"""Does the sentence about a used-up budget name what was used up, and nothing else?"""

from __future__ import annotations

import pytest

from penstock.model.spending import Amount, Budget, BudgetRefusal, BudgetStop, Period

BOTH = Budget("all", Period.RUN, 10_000, 500, "PENSTOCK_BUDGET__RUN__USD", "penstock.toml")


def stop(left: Amount, budget: Budget = BOTH) -> BudgetStop:
    refusal = BudgetRefusal(budget, "ai/gpt-5", Amount(1_033, 90), left)
    return BudgetStop(
        refusal=refusal,
        span="r",
        tasks=("ask",),
        spent=Amount(9_812, 450),
        reserved=Amount(0, 30),
        in_doubt=Amount(0, 10),
    )


def test_only_the_dollars_are_named_if_there_are_tokens() -> None:
    assert stop(left=Amount(188, 90)).sentence == (
        "The budget [budget.run] of $0.01 a run is used up ($0.009812 spent, and a call of "
        "ai/gpt-5 may need $0.001033): raise PENSTOCK_BUDGET__RUN__USD=0.01 in the "
        "environment (which goes "
        "before every file), then run the same command again; a new run counts from zero."
    )


def test_only_the_tokens_are_named_if_there_are_dollars() -> None:
    assert stop(left=Amount(1_033, 10)).sentence == (
        "The budget [budget.run] of 500 tokens a run is used up (450 tokens spent, 30 tokens "
        "reserved, 10 tokens in doubt, and a call of ai/gpt-5 may need 90 tokens): raise "
        "budget.run.tokens = 500 in penstock.toml, then run the same command again; a new run "
        "counts from zero."
    )


def test_both_are_named_if_both_are_used_up() -> None:
    sentence = stop(left=Amount(1_000, 10)).sentence

    assert "of $0.01 and 500 tokens a run" in sentence
    assert (
        "in the environment (which goes before every file) and budget.run.tokens = 500" in sentence
    )


@pytest.mark.parametrize("left", [Amount(0, 0), Amount(0, 90), Amount(0, 100)])
def test_what_a_budget_does_not_count_is_never_short(left: Amount) -> None:
    budget = Budget("all", Period.DAY, micros=10_000)

    assert stop(left, budget).refusal.short == budget


def test_numbers_that_nobody_could_tell_are_not_made_up() -> None:
    refusal = stop(left=Amount()).refusal

    found = BudgetStop(refusal=refusal, span="r", tasks=("ask",))

    assert found.numbers == "a call of ai/gpt-5 may need $0.001033 and 90 tokens"

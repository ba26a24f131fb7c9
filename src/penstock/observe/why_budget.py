# SPDX-License-Identifier: Apache-2.0
"""Does a job wait for a budget, how much is left of it, and what would let it go on?"""

from __future__ import annotations

import msgspec

from penstock.model.spending import ALL, BudgetRefusal, Period
from penstock.observe.phrases import at, command, span
from penstock.observe.why_facts import Facts, Gate, Why


def held_by_budget(facts: Facts, found: Why, refusal: BudgetRefusal, run_id: str) -> Why:
    """The answer for a job whose task a worker does not take any more in its run."""
    job, budget = facts.this.job, refusal.budget
    held = f"The task {job.task!r} of {job.key!r} is held back in the run {run_id!r}"
    if refusal.price_is_missing:
        provider, _, model = refusal.where.partition("/")
        return msgspec.structs.replace(
            found,
            gate=Gate.BUDGET,
            sentence=(
                f"{held}: [{budget.name}] counts dollars, and the price of {refusal.where} is not "
                "known."
            ),
            unblocks=(
                "usd_per_million_tokens is said in "
                f'[providers.{provider}.models."{model}"] of penstock.toml, and a new run starts'
            ),
            command=command("queue", "run"),
        )
    a_day = budget.period is Period.DAY
    uses = [one for one in facts.budgets if one.budget == budget and (a_day or one.span == run_id)]
    numbers = uses[0].sentence if uses else f"Little is left of [{budget.name}]."
    anew = "" if a_day else "; a new run counts from zero"
    return msgspec.structs.replace(
        found,
        gate=Gate.BUDGET,
        sentence=(
            f"{held} by a budget: a call of {refusal.where} may need "
            f"{budget.shown(refusal.asked)}. {numbers}"
        ),
        unblocks=f"{budget.settings} is raised in penstock.toml and a new run starts{anew}",
        command=command("queue", "run"),
    )


def with_day_budgets(facts: Facts, found: Why | None) -> Why | None:
    """Nobody is there to run it; whoever comes will have what the day has left."""
    if found is None:
        return None
    scopes = (ALL, f"task:{facts.this.job.task}")
    details = tuple(
        one.sentence
        for one in facts.budgets
        if one.budget.period is Period.DAY and one.budget.scope in scopes
    )
    return msgspec.structs.replace(found, details=(*found.details, *details))


def waits_for_money(found: Why, since: int, budget: str, now: int) -> Why:
    """The answer for a body that waits for what other calls have reserved; it runs already."""
    return msgspec.structs.replace(
        found,
        sentence=(
            f"{found.sentence} It has waited since {at(since)} ({span(now - since)}) for money of "
            f"[{budget}] that calls on their way have reserved."
        ),
        unblocks="one of those ends, and its attempt ends",
        when=None,
    )

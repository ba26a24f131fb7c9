# SPDX-License-Identifier: Apache-2.0
"""Does a job wait for a budget, how much is left of it, and what would let it go on?"""

from __future__ import annotations

import msgspec

from penstock.model.dataset import task_name
from penstock.model.spending import ALL, BudgetRefusal, BudgetStop, Period, day_of
from penstock.observe.phrases import at, run_command, span
from penstock.observe.why.facts import Explanation, Gate, JobFacts


def held_by_budget(
    facts: JobFacts, found: Explanation, refusal: BudgetRefusal, run_id: str
) -> Explanation:
    """The answer for a job whose task a worker does not take any more in its run."""
    job, budget = facts.this.job, refusal.budget
    held = f"The task {task_name(job.task)!r} of {job.key!r} is held back in the run {run_id!r}"
    if refusal.price_is_missing:
        return msgspec.structs.replace(
            found,
            gate=Gate.BUDGET,
            sentence=(
                f"{held}: [{budget.name}] counts dollars, and the price of {refusal.where} is not "
                "known."
            ),
            unblocks=f"{refusal.price_setting} of penstock.toml is said, and a new run starts",
            command=run_command(job.task),
        )
    a_day = budget.period is Period.DAY
    uses = [one for one in facts.budgets if one.budget == budget and (a_day or one.span == run_id)]
    short = refusal.short
    numbers = f"Little is left of [{budget.name}]."
    if uses:
        numbers = msgspec.structs.replace(uses[0], budget=short).sentence
    anew = "" if a_day else "; a new run counts from zero"
    return msgspec.structs.replace(
        found,
        gate=Gate.BUDGET,
        sentence=(
            f"{held} by a budget: a call of {refusal.where} may need "
            f"{short.shown(refusal.asked)}. {numbers}"
        ),
        unblocks=f"{short.settings} is raised and a new run starts{anew}",
        command=run_command(job.task),
    )


def without_worker(facts: JobFacts, found: Explanation | None) -> Explanation | None:
    """Nobody is there to run it: perhaps a budget has ended the last run."""
    if found is None:
        return None
    task = facts.this.job.task
    for stop in facts.stops:
        if task in stop.tasks:
            return _stopped(facts, found, stop)
    return _with_day_budgets(facts, found)


def _stopped(facts: JobFacts, found: Explanation, stop: BudgetStop) -> Explanation:
    """The answer for a job that the last run has left, since a budget had nothing for it."""
    refusal, begun = stop.refusal, found.sentence.rstrip(".")
    if refusal.price_is_missing:
        sentence = (
            f"{begun}: the last run ended since [{stop.budget}] counts dollars, and the price of "
            f"{refusal.where} is not known."
        )
        unblocks = f"{refusal.price_setting} of penstock.toml is said, and a new run starts"
        return msgspec.structs.replace(
            found, gate=Gate.BUDGET, sentence=sentence, unblocks=unblocks
        )
    settings = refusal.short.settings
    if refusal.budget.period is Period.RUN:
        unblocks = f"a new run starts: it counts from zero, up to {settings}"
    elif stop.span == day_of(facts.now):
        unblocks = f"{settings} is raised, or the day of UTC ends, and a new run starts"
    else:
        unblocks = f"a new run starts: another day has begun, and it counts up to {settings}"
    return msgspec.structs.replace(
        found,
        gate=Gate.BUDGET,
        sentence=f"{begun}: the last run ended at its budget {stop.title} ({stop.numbers}).",
        unblocks=unblocks,
    )


def _with_day_budgets(facts: JobFacts, found: Explanation) -> Explanation:
    """Whoever comes will have what the day has left."""
    scopes = (ALL, f"task:{task_name(facts.this.job.task)}")
    details = tuple(
        one.sentence
        for one in facts.budgets
        if one.budget.period is Period.DAY and one.budget.scope in scopes
    )
    return msgspec.structs.replace(found, details=(*found.details, *details))


def waits_for_money(found: Explanation, since: int, budget: str, now: int) -> Explanation:
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

# SPDX-License-Identifier: Apache-2.0
"""Explains a job that waits for a budget of money or tokens: how much is left, and what helps."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.model.dataset import task_name
from penstock.model.spending import ALL, BudgetRefusal, BudgetStop, Period, utc_day
from penstock.observe.phrases import at, run_command, span
from penstock.observe.why.facts import Explanation, Gate, JobFacts
from penstock.observe.why.provider import left_by_account
from penstock.sentences import command


def held_by_budget(
    facts: JobFacts, found: Explanation, refusal: BudgetRefusal, run_id: str
) -> Explanation:
    """Explain a job whose task a worker has stopped taking, since a budget refused a call."""
    job, budget = facts.this.job, refusal.budget
    held = f"The task {task_name(job.task)!r} of {job.key!r} is held back in run {run_id!r}"
    if refusal.price_is_missing:
        return replace(
            found,
            gate=Gate.BUDGET,
            sentence=(f"{held}: [{budget.name}] counts dollars, and {refusal.where} has no price."),
            unblocks=f"{refusal.price_setting} is set in penstock.toml, and a new run starts",
            command=run_command(job.task),
        )
    a_run = budget.period is Period.RUN
    uses = [
        one for one in facts.budgets if one.budget == budget and (not a_run or one.span == run_id)
    ]
    short = refusal.short
    numbers = f"Little is left of [{budget.name}]."
    if uses:
        numbers = replace(uses[0], budget=short).sentence
    anew = "; a new run counts from zero" if a_run else ""
    return replace(
        found,
        gate=Gate.BUDGET,
        sentence=(
            f"{held} by a budget: a call of {refusal.where} may need "
            f"{short.format_amount(refusal.asked)}. {numbers}"
        ),
        unblocks=f"{short.settings} is raised and a new run starts{anew}",
        command=run_command(job.task),
    )


def without_worker(facts: JobFacts, found: Explanation | None) -> Explanation | None:
    """Complete the explanation of a job without a worker: a budget may have ended the last run."""
    if found is None:
        return None
    task = facts.this.job.task
    for stop in facts.stops:
        if task in stop.tasks:
            return _stopped(facts, found, stop)
    for account in facts.closed_accounts:
        if task in account.tasks:
            return left_by_account(found, account)
    return _with_lasting_budgets(facts, found)


def _stopped(facts: JobFacts, found: Explanation, stop: BudgetStop) -> Explanation:
    """Explain a job that the last run left over when a budget ended it."""
    refusal, begun = stop.refusal, found.sentence.rstrip(".")
    if refusal.price_is_missing:
        sentence = (
            f"{begun}: the last run ended, since [{stop.budget}] counts dollars, and "
            f"{refusal.where} has no price."
        )
        unblocks = f"{refusal.price_setting} is set in penstock.toml, and a new run starts"
        return replace(found, gate=Gate.BUDGET, sentence=sentence, unblocks=unblocks)
    settings = refusal.short.settings
    if refusal.budget.period is Period.RUN:
        unblocks = f"a new run starts: it counts from zero, up to {settings}"
    elif refusal.budget.period is Period.TOTAL:
        reset = command("budget", "reset", "--yes")
        unblocks = f"{settings} is raised, or '{reset}' is run, and a new run starts"
    elif stop.span == utc_day(facts.now):
        unblocks = f"{settings} is raised, or the day ends (UTC), and a new run starts"
    else:
        unblocks = f"a new run starts: it is a new day, and it counts from zero, up to {settings}"
    return replace(
        found,
        gate=Gate.BUDGET,
        sentence=f"{begun}: the last run ended at its budget {stop.title} ({stop.numbers}).",
        unblocks=unblocks,
    )


def _with_lasting_budgets(facts: JobFacts, found: Explanation) -> Explanation:
    """Add what is left of the budgets that the next run begins with."""
    scopes = (ALL, f"task:{task_name(facts.this.job.task)}")
    details = tuple(
        one.sentence
        for one in facts.budgets
        if one.budget.period is not Period.RUN and one.budget.scope in scopes
    )
    return replace(found, details=(*found.details, *details))


def waits_for_money(found: Explanation, since: int, budget: str, now: int) -> Explanation:
    """Explain a running body that waits for money which other calls have reserved."""
    return replace(
        found,
        sentence=(
            f"{found.sentence} It has waited since {at(since)} ({span(now - since)}) for money of "
            f"[{budget}] that calls in flight have reserved."
        ),
        unblocks="one of those ends, and its attempt ends",
        when=None,
    )

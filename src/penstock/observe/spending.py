# SPDX-License-Identifier: Apache-2.0
"""Spending by model, and how much of each budget is used and left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.model.spending import Account, Amount, Balance, Budget, Period, format_usd

_MODEL = "model:"


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one model cost, in one run or on one day."""

    provider: str
    model: str
    period: str
    span: str  # a run, or a day
    usd: str  # exact, as a decimal text
    tokens: int
    reserved_usd: str  # by calls in flight, or in doubt
    reserved_tokens: int
    bought: int
    reused: int


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """A budget, and how much of it is used."""

    budget: Budget
    span: str
    spent: Amount
    reserved: Amount

    @property
    def left(self) -> Amount:
        cap = self.budget.cap
        return Amount(
            cap.micros - self.spent.micros - self.reserved.micros,
            cap.tokens - self.spent.tokens - self.reserved.tokens,
        )

    @property
    def sentence(self) -> str:
        """`Of [budget.day], $0.50 of $20.00 is left ($19.50 spent).`"""
        budget = self.budget
        used = f"{budget.format_amount(self.spent)} spent"
        if budget.format_amount(self.reserved) != budget.format_amount(Amount()):
            used += f", {budget.format_amount(self.reserved)} reserved"
        whole = budget.format_amount(budget.cap)
        return f"[{budget.name}] has {budget.format_amount(self.left)} of {whole} left ({used})."


def spending_of(balances: Iterable[Balance]) -> list[Spending]:
    """One row for each model and span, by name."""
    return [
        Spending(
            provider=provider,
            model=model,
            period=one.account.period.value,
            span=one.account.span,
            usd=format_usd(one.spent.micros),
            tokens=one.spent.tokens,
            reserved_usd=format_usd(one.reserved.micros),
            reserved_tokens=one.reserved.tokens,
            bought=one.bought,
            reused=one.reused,
        )
        for one in sorted(balances, key=lambda one: one.account)
        if one.account.scope.startswith(_MODEL)
        for provider, _, model in [one.account.scope.removeprefix(_MODEL).partition("/")]
    ]


def budget_uses(
    budgets: Iterable[Budget], balances: Iterable[Balance], runs: Sequence[str], day: str
) -> list[BudgetUse]:
    """The use of every budget: in each of these runs, and on this day."""
    known = {one.account: one for one in balances}
    found = []
    for budget in budgets:
        for span in runs if budget.period is Period.RUN else [day]:
            one = known.get(Account(budget.scope, budget.period, span))
            spent, reserved = (Amount(), Amount()) if one is None else (one.spent, one.reserved)
            found.append(BudgetUse(budget=budget, span=span, spent=spent, reserved=reserved))
    return found

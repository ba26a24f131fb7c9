# SPDX-License-Identifier: Apache-2.0
"""Spending by model, and how much of each budget is used and left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    reserved_usd: str  # by calls in flight
    reserved_tokens: int
    in_doubt_usd: str  # of sends whose fate is unknown
    in_doubt_tokens: int
    bought: int
    reused: int


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """A budget, and how much of it is used."""

    budget: Budget
    span: str
    app: str = ""  # whose calls it counts
    spent: Amount
    reserved: Amount  # by calls in flight
    in_doubt: Amount = Amount()  # of sends whose fate is unknown

    @property
    def left(self) -> Amount:
        claimed = (self.spent, self.reserved, self.in_doubt)
        return Amount(
            self.budget.cap.micros - sum(one.micros for one in claimed),
            self.budget.cap.tokens - sum(one.tokens for one in claimed),
        )

    @property
    def sentence(self) -> str:
        """`Of [budget.day], $0.50 of $20.00 is left ($19.50 spent).`"""
        budget = self.budget
        used = f"{budget.format_amount(self.spent)} spent"
        for amount, name in ((self.reserved, "reserved"), (self.in_doubt, "in doubt")):
            if budget.format_amount(amount) != budget.format_amount(Amount()):
                used += f", {budget.format_amount(amount)} {name}"
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
            in_doubt_usd=format_usd(one.in_doubt.micros),
            in_doubt_tokens=one.in_doubt.tokens,
            bought=one.bought,
            reused=one.reused,
        )
        for one in sorted(balances, key=lambda one: one.account)
        if one.account.scope.startswith(_MODEL)
        for provider, _, model in [one.account.scope.removeprefix(_MODEL).partition("/")]
    ]


def budget_uses(
    budgets: Iterable[Budget],
    balances: Iterable[Balance],
    runs: Sequence[str],
    day: str,
    app: str | None = None,
) -> list[BudgetUse]:
    """The use of every budget: in all, in each of these runs, and on this day.

    Of one app, or of each that has spent anything from it.
    """
    known = {one.account: one for one in balances}
    return [
        _use(budget, known, span, one)
        for budget in budgets
        for span in (runs if budget.period is Period.RUN else [budget.span("", day)])
        for one in ([app] if app is not None else _spenders(budget, known, span))
    ]


def _spenders(budget: Budget, known: Iterable[Account], span: str) -> list[str]:
    about = (budget.scope, budget.period, span)
    return sorted({one.app for one in known if one[:3] == about}) or [""]


def _use(budget: Budget, known: Mapping[Account, Balance], span: str, app: str) -> BudgetUse:
    account = Account(budget.scope, budget.period, span, app)
    one = known.get(account) or Balance(account, Amount(), Amount())
    return BudgetUse(
        budget=budget,
        span=span,
        app=app,
        spent=one.spent,
        reserved=one.reserved,
        in_doubt=one.in_doubt,
    )

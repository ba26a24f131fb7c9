# SPDX-License-Identifier: Apache-2.0
"""Cost accounting: money and tokens, prices, budgets and the accounts that calls count in.

Money is counted in whole micro-dollars: sums are exact on every store.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from penstock.sentences import command

MICROS = 1_000_000  # of a dollar
DAY_MICROS = 86_400 * 1_000_000  # of time
ALL = "all"  # the scope of everything


class Amount(NamedTuple):
    """Money and tokens."""

    micros: int = 0
    tokens: int = 0


def format_exact_dollars(micros: int) -> str:
    """Money for people, exactly: `$20.00`, `$0.000125`."""
    sign, rest = "-" if micros < 0 else "", abs(micros)
    cents = f"{rest % MICROS:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}${rest // MICROS:,}.{cents}"


def format_usd(micros: int) -> str:
    """Dollars as an exact decimal text, for documents and files: `20`, `0.000125`."""
    text = f"{abs(micros) // MICROS}.{abs(micros) % MICROS:06d}".rstrip("0").rstrip(".")
    return f"-{text}" if micros < 0 else text


class Period(StrEnum):
    """The span of time over which a sum is counted."""

    TOTAL = "total"  # over restarts, until it is reset
    RUN = "run"  # from one start to its end
    DAY = "day"  # of UTC


TOTAL_SPAN = "total"  # the span of sums that begin at no start and on no day


class Account(NamedTuple):
    """One sum: whose, of which run or day, and of which app."""

    scope: str  # `all`, `provider:NAME`, `model:PROVIDER/MODEL`, `task:NAME`
    period: Period
    span: str  # a run id, a day as 2026-11-16, or `total`
    app: str = ""  # empty: of calls before apps were told apart


def utc_day(micros: int) -> str:
    """The day of UTC in which a time lies."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).date().isoformat()


def scopes_of(task: str, provider: str, model: str) -> tuple[str, ...]:
    """Everything that a call counts in."""
    return (ALL, f"provider:{provider}", f"model:{provider}/{model}", f"task:{task}")


@lru_cache(maxsize=1_024)
def accounts_of(
    run_id: str, day: str, task: str, provider: str, model: str, app: str = ""
) -> tuple[Account, ...]:
    """The sums that a call is part of."""
    return tuple(
        Account(scope, period, span_of(period, run_id, day), app)
        for scope in scopes_of(task, provider, model)
        for period in Period
    )


def span_of(period: Period, run_id: str, day: str) -> str:
    """Which run or day a period is about, if any."""
    return {Period.TOTAL: TOTAL_SPAN, Period.RUN: run_id, Period.DAY: day}[period]


class Balance(msgspec.Struct, frozen=True, gc=False):
    """What one account holds."""

    account: Account
    spent: Amount  # settled by what replies said
    reserved: Amount  # estimates of calls in flight
    bought: int = 0  # answers that were paid for
    reused: int = 0  # answers that came from the journal
    resent: int = 0  # calls in doubt that were sent again
    estimated: int = 0  # of those bought, how many did not tell all that they cost
    in_doubt: Amount = Amount()  # estimates of sends whose fate is unknown: they may be billed


class Budget(msgspec.Struct, frozen=True, gc=False):
    """What an account may come to: money, tokens, or both."""

    scope: str
    period: Period
    micros: int | None = None
    tokens: int | None = None
    usd_from: str = ""  # who has said so: a file, a variable, the code; empty: nobody has told
    tokens_from: str = ""

    @property
    def name(self) -> str:
        """What people call it: `budget.total`, `budget.day`, `budget.model."ai/gpt-5".run`."""
        kind, _, rest = self.scope.partition(":")
        words = ["budget", *([kind, _key(rest)] if rest else [])]
        return ".".join([*words, self.period.value])

    def span(self, run_id: str, day: str) -> str:
        """Which run or day it is about, if any."""
        return span_of(self.period, run_id, day)

    def format_amount(self, amount: Amount) -> str:
        """Of an amount what this budget counts: `$1.50 and 20,000 tokens`."""
        words = []
        if self.micros is not None:
            words.append(format_exact_dollars(amount.micros))
        if self.tokens is not None:
            words.append(f"{amount.tokens:,} tokens")
        return " and ".join(words)

    @property
    def cap(self) -> Amount:
        """What it allows; 0 where it says nothing."""
        return Amount(self.micros or 0, self.tokens or 0)

    @property
    def settings(self) -> str:
        """The settings that say it, as they stand where they were said.

        `budget.day.usd = 50 in penstock.toml`, `PENSTOCK_BUDGET__RUN__USD=2 in the environment`.
        """
        said = []
        if self.micros is not None:
            said.append(_setting(f"{self.name}.usd", format_usd(self.micros), self.usd_from))
        if self.tokens is not None:
            said.append(_setting(f"{self.name}.tokens", str(self.tokens), self.tokens_from))
        return " and ".join(said)


def _setting(name: str, value: str, source: str) -> str:
    if source.startswith("PENSTOCK_"):
        return f"{source}={value} in the environment (which goes before every file)"
    if source == "pyproject.toml":
        return f"tool.penstock.{name} = {value} in {source}"
    return f"{name} = {value} in {source or 'penstock.toml'}"


def _key(name: str) -> str:
    """A key of TOML; quoted unless it may stand bare."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else f'"{name}"'


def price_setting(provider: str, model: str) -> str:
    """The setting of the price of a model."""
    said = "usd_per_million_tokens = { input = …, output = … }"
    return f'{said} in [providers.{provider}.models."{model}"]'


class BudgetRefusal(msgspec.Struct, frozen=True, gc=False):
    """Why a call was not sent."""

    budget: Budget
    where: str  # PROVIDER/MODEL
    asked: Amount = Amount()  # the most that it was expected to cost
    left: Amount = Amount()  # of the budget
    price_is_missing: bool = False  # dollars cannot be counted, however much is left

    @property
    def short(self) -> Budget:
        """Of the budget only what there is not enough of: dollars, tokens, or both."""
        has_money = self.asked.micros <= self.left.micros
        has_tokens = self.asked.tokens <= self.left.tokens
        if has_money == has_tokens:
            return self.budget
        part = {"micros": None} if has_money else {"tokens": None}
        short = msgspec.structs.replace(self.budget, **part)
        return self.budget if short.micros is None and short.tokens is None else short

    @property
    def price_setting(self) -> str:
        """The setting of the price that is missing."""
        return price_setting(*self.where.split("/", 1))


class Price(msgspec.Struct, frozen=True, gc=False):
    """What a model costs, in micro-dollars per million tokens."""

    input_micros: int
    output_micros: int

    def of(self, input_tokens: int, output_tokens: int) -> int:
        """The price of a call in micro-dollars, rounded up: a budget is never undercounted."""
        return -(-(input_tokens * self.input_micros + output_tokens * self.output_micros) // MICROS)


class BudgetStop(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that tasks wait for, with the numbers of the end."""

    refusal: BudgetRefusal
    span: str  # the run or the day that it was about
    tasks: tuple[str, ...]  # that wait for it
    spent: Amount | None = None  # None: the store could not tell
    reserved: Amount = Amount()  # by calls in flight, of other runs
    in_doubt: Amount = Amount()  # of sends whose fate is unknown

    @property
    def budget(self) -> str:
        """Its name."""
        return self.refusal.budget.name

    @property
    def title(self) -> str:
        """`[budget.day] of $50.00 a day`; of what was enough nothing is said."""
        short = self.refusal.short
        per = {Period.TOTAL: "in all", Period.RUN: "a run", Period.DAY: "a day"}[short.period]
        return f"[{self.budget}] of {short.format_amount(short.cap)} {per}"

    @property
    def numbers(self) -> str:
        """What was spent and is reserved, and what a call would need."""
        short, words = self.refusal.short, []
        if self.spent is not None:
            words.append(f"{short.format_amount(self.spent)} spent")
            for amount, name in ((self.reserved, "reserved"), (self.in_doubt, "in doubt")):
                if short.format_amount(amount) != short.format_amount(Amount()):
                    words.append(f"{short.format_amount(amount)} {name}")
        needs = f"a call of {self.refusal.where} may need {short.format_amount(self.refusal.asked)}"
        return ", ".join([*words, f"and {needs}"] if words else [needs])

    @property
    def sentence(self) -> str:
        """Which budget, what it allows, what was spent, and what is to be done."""
        refusal = self.refusal
        if refusal.price_is_missing:
            return (
                f"The price of {refusal.where} is not known, and [{self.budget}] counts dollars: "
                f"set {refusal.price_setting} of penstock.toml, then run the same command again."
            )
        anew = {
            Period.TOTAL: f"what was spent stays counted until '{command('budget', 'reset')}'",
            Period.RUN: "a new run counts from zero",
            Period.DAY: "it opens again at midnight UTC",
        }[refusal.budget.period]
        return (
            f"The budget {self.title} is used up ({self.numbers}): raise {refusal.short.settings}, "
            f"then run the same command again; {anew}."
        )

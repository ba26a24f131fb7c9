# SPDX-License-Identifier: Apache-2.0
"""Renders paid calls, spending and budgets as text and as JSON documents."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.journal import CallFigures
from penstock.model.spending import format_usd
from penstock.observe.spending import BudgetUse, Spending
from penstock.terminal_text import format_table

_NOTHING = CallFigures()


def calls_document(figures: CallFigures) -> dict[str, object] | None:
    """Totals of paid calls, money as decimal text; None: there are none."""
    if figures == _NOTHING:
        return None
    return {
        "bought": figures.bought,
        "reused": figures.reused,
        "in_doubt": figures.in_doubt,
        "in_doubt_usd": format_usd(figures.doubt.micros),
        "in_doubt_tokens": figures.doubt.tokens,
        "resent": figures.resent,
        "estimated": figures.estimated,
        "spent_usd": format_usd(figures.spent.micros),
        "spent_tokens": figures.spent.tokens,
    }


def calls_line(calls: Mapping[str, object]) -> str:
    """Totals of paid calls as a line of text."""
    money = "" if calls["spent_usd"] == "0" else f"${calls['spent_usd']}, "
    doubted = "" if calls["in_doubt_usd"] == "0" else f"${calls['in_doubt_usd']}, "
    doubt = f" (at most {doubted}{calls['in_doubt_tokens']:,} tokens)" if calls["in_doubt"] else ""
    again = f", {calls['resent']:,} sent again" if calls["resent"] else ""
    guessed = f" ({calls['estimated']:,} answers at an estimate)" if calls["estimated"] else ""
    return (
        f"{calls['bought']:,} bought, {calls['reused']:,} reused, {calls['in_doubt']:,} in doubt"
        f"{doubt}{again}; spent {money}{calls['spent_tokens']:,} tokens{guessed}"
    )


def budget_document(use: BudgetUse) -> dict[str, object]:
    """A budget and its use; money as decimal text."""
    budget, cap = use.budget, use.budget.cap
    return {
        "name": budget.name,
        "app": use.app,
        "period": budget.period.value,
        "span": use.span,
        "usd": None if budget.micros is None else format_usd(cap.micros),
        "tokens": budget.tokens,
        "spent_usd": format_usd(use.spent.micros),
        "spent_tokens": use.spent.tokens,
        "reserved_usd": format_usd(use.reserved.micros),
        "reserved_tokens": use.reserved.tokens,
        "in_doubt_usd": format_usd(use.in_doubt.micros),
        "in_doubt_tokens": use.in_doubt.tokens,
        "left_usd": None if budget.micros is None else format_usd(use.left.micros),
        "left_tokens": None if budget.tokens is None else use.left.tokens,
    }


def money_lines(spent: list[Spending], uses: list[BudgetUse]) -> list[str]:
    """Tables of spending and of budgets; empty if nothing was bought."""
    lines = []
    if spent:
        head = [
            "spent by",
            "model",
            "in",
            "usd",
            "tokens",
            "reserved",
            "in doubt",
            "bought",
            "reused",
        ]
        lines += ["", *format_table(head, map(_spent, spent), left=3)]
    if uses:
        lines += ["", *budget_table(uses)]
    return lines


def budget_table(uses: list[BudgetUse]) -> list[str]:
    """One row for each budget and what it is about."""
    head = ["budget", "in", "allows", "spent", "reserved", "in doubt", "left"]
    return format_table(head, map(_used, uses), left=2)


def _spent(one: Spending) -> list[str | int]:
    return [
        one.provider,
        one.model,
        one.span,
        _money(one.usd),
        one.tokens,
        _money(one.reserved_usd),
        _money(one.in_doubt_usd),
        one.bought,
        one.reused,
    ]


def _money(usd: str) -> str:
    """Dollars; without prices none are counted."""
    return "-" if usd == "0" else f"${usd}"


def _used(use: BudgetUse) -> list[str | int]:
    budget = use.budget
    amounts = (budget.cap, use.spent, use.reserved, use.in_doubt, use.left)
    return [budget.name, use.span, *map(budget.format_amount, amounts)]

# SPDX-License-Identifier: Apache-2.0
"""`penstock budget show` and `reset`: what may be spent, was spent, is reserved and in doubt."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.app_command import AppCommand
from penstock.cli.commands.providers import live_runs
from penstock.cli.render.money import budget_document, budget_table
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import MICROSECONDS, SystemClock
from penstock.config.budgets import budgets_of
from penstock.model.spending import (
    ALL,
    TOTAL_SPAN,
    Balance,
    format_exact_dollars,
    format_usd,
    utc_day,
)
from penstock.model.worker import responsive_workers
from penstock.observe.spending import budget_uses
from penstock.operate import budgets as operate
from penstock.process_identity import is_gone
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped, print_document, say, warn

NO_BUDGET = "No budget is set: [budget.total] usd = 20 in penstock.toml would be one."

commands = typer.Typer(
    help="Look at budgets, and let totals begin anew.", no_args_is_help=True, rich_markup_mode=None
)


@commands.callback()
def _group() -> None:
    """Look at budgets, and let totals begin anew."""


@commands.command("show", cls=AppCommand)
def show(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show every budget: what it allows, what was spent, is reserved, is in doubt, and is left.

    Of the runs that are alive (or the last one), of today by UTC, and in all since the last reset.
    """
    target = Target.named(app=app, store=store)
    configured = target.configured()
    budgets = budgets_of(configured.settings, configured.sources)
    with target.app_for_reading() as opened:
        now = round(SystemClock().now() * MICROSECONDS)
        workers = responsive_workers(opened.store.workers().result(), is_gone)
        runs = live_runs(workers) or opened.store.runs(1).result()
        spans = [*runs, utc_day(now), TOTAL_SPAN]
        balances = opened.store.balances(spans).result()
        uses = budget_uses(budgets, balances, runs, utc_day(now), opened.name)
        spent = _total(balances, opened.name)
    if as_json:
        print_document({"budgets": [budget_document(use) for use in uses], "total": _sums(spent)})
        return
    for line in [*(budget_table(uses) if uses else [NO_BUDGET]), "", _in_all(spent)]:
        say(line)


@commands.command("reset", cls=AppCommand)
def reset(
    scope: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCOPE]",
            help="all, provider:NAME, model:PROVIDER/MODEL or task:NAME; every one otherwise.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let what budgets have counted in all begin at zero: what was spent, and what is in doubt.

    Budgets of a run and of a day go on; what calls in flight have reserved stays.
    """
    if scope is not None:
        operate.check_scope(scope)
    with Target.named(app=app, store=store).opened_app() as opened:
        if yes:
            found = operate.reset_totals(opened.store, opened.name, scope)
        else:
            found = _totals(opened.store, opened.name, scope)
        name = opened.name
    if as_json:
        rows = [{"scope": one.account.scope, **_sums(one)} for one in found]
        print_document({"app": name, "reset": rows if yes else [], "would_reset": rows})
    told = f"{counted(len(found), 'total')} of app {escaped(name)!r}"
    if not yes:
        warn(f"{told} would begin at zero ({_held(found)}); add --yes to do it.")
        return 2
    if not as_json:
        say(f"{told} begin at zero; they held: {_held(found)}.")
    return 0


def _totals(store: Store, app: str, scope: str | None) -> list[Balance]:
    found = store.balances([TOTAL_SPAN]).result()
    return [one for one in found if one.account.app == app and scope in (None, one.account.scope)]


def _total(balances: list[Balance], app: str) -> Balance | None:
    """What an app has spent in all."""
    for one in balances:
        if one.account[1:] == (TOTAL_SPAN, TOTAL_SPAN, app) and one.account.scope == ALL:
            return one
    return None


def _sums(one: Balance | None) -> dict[str, object]:
    if one is None:
        return {}
    return {
        "spent_usd": format_usd(one.spent.micros),
        "spent_tokens": one.spent.tokens,
        "reserved_usd": format_usd(one.reserved.micros),
        "reserved_tokens": one.reserved.tokens,
        "in_doubt_usd": format_usd(one.in_doubt.micros),
        "in_doubt_tokens": one.in_doubt.tokens,
    }


def _in_all(one: Balance | None) -> str:
    if one is None:
        return "Nothing was spent since totals are counted."
    return f"In all since the last reset: {_amounts(one)}."


def _held(found: list[Balance]) -> str:
    if not found:
        return "nothing"
    return "; ".join(f"{escaped(one.account.scope)} {_amounts(one)}" for one in found)


def _amounts(one: Balance) -> str:
    return (
        f"{format_exact_dollars(one.spent.micros)} and {one.spent.tokens:,} tokens spent, "
        f"{format_exact_dollars(one.in_doubt.micros)} and {one.in_doubt.tokens:,} tokens in doubt"
    )

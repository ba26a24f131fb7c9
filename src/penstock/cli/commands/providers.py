# SPDX-License-Identifier: Apache-2.0
"""`penstock providers`: live and learned limits of providers, spending and budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer

from penstock.cli.render.money import budget_document, money_lines
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.clock import MICROSECONDS, SystemClock
from penstock.config.budgets import budgets_of
from penstock.model.spending import TOTAL_SPAN, utc_day
from penstock.model.views import WorkerView
from penstock.model.worker import responsive_workers
from penstock.observe.providers import (
    KeptAccount,
    KeptCooldown,
    LearnedBefore,
    LiveLimit,
    ProviderRow,
    kept_accounts,
    provider_rows,
)
from penstock.observe.spending import budget_uses, spending_of
from penstock.operate.limits import end_cooldowns
from penstock.process_identity import is_gone
from penstock.redaction.secrets import redacted
from penstock.sentences import command, counted
from penstock.terminal_text import escaped, format_duration, format_table, print_document, say

EndCooldownOption = Annotated[
    str | None,
    typer.Option(
        "--end-cooldown",
        metavar="PROVIDER",
        help="Forget that a provider asked for a long pause: runs that start from now on send.",
        callback=only_utf8,
    ),
]
LIVE = (
    "in flight",
    "limit",
    "rate",
    "waiting",
    "429s",
    "failed",
    "cool-down",
    "rpm",
    "tpm",
    "mode",
    "as of",
)


def providers(
    end_cooldown: EndCooldownOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the limits of providers, as running workers see them and as learned, and what was spent.

    Spent in the runs that are alive (or the last one that is known) and today, by UTC.
    """
    target = Target.named(app=app, store=store)
    if end_cooldown is not None:
        _end_cooldowns(target, end_cooldown, as_json)
        return
    configured = target.configured()
    budgets = budgets_of(configured.settings, configured.sources)
    with target.opened_store() as opened:
        now = round(SystemClock().now() * MICROSECONDS)
        workers = responsive_workers(opened.workers().result(), is_gone)
        cooldowns = opened.cooldowns().result()
        rows = provider_rows(workers, opened.learned().result(), now, cooldowns)
        accounts = kept_accounts(cooldowns)
        runs = live_runs(workers) or opened.runs(1).result()
        balances = opened.balances([*runs, utc_day(now), TOTAL_SPAN]).result()
        url = opened.url
    spent = spending_of(balances)
    uses = budget_uses(budgets, balances, runs, utc_day(now))
    if as_json:
        print_document(
            {
                "providers": [msgspec.to_builtins(row) for row in rows],
                "accounts": [msgspec.to_builtins(one) for one in accounts],
                "spending": [msgspec.to_builtins(row) for row in spent],
                "budgets": [budget_document(use) for use in uses],
            }
        )
        return
    for line in [*lines_of(rows, url, accounts), *money_lines(spent, uses)]:
        say(line)


def _end_cooldowns(target: Target, provider: str, as_json: bool) -> None:
    """Forget the long cool-downs of a provider."""
    with target.opened_store() as opened:
        ended = end_cooldowns(opened, provider)
    if as_json:
        print_document({"ended": ended})
        return
    what = counted(ended, "cool-down") if ended else "No cool-down"
    say(
        f"{what} of {escaped(provider)} ended early. Runs that start from now on send at once; "
        "those that are running wait to the end of theirs."
    )


def live_runs(workers: Iterable[WorkerView]) -> list[str]:
    """The runs that have a live worker."""
    return list(dict.fromkeys(worker.run_id for worker in workers if worker.alive))


def lines_of(rows: list[ProviderRow], url: str, accounts: Iterable[KeptAccount] = ()) -> list[str]:
    """The limits as text: live ones first."""
    lines = [f"Store {escaped(redacted(url))}"]
    live = [(row, row.live) for row in rows if row.live is not None]
    learned = [(row, row.learned) for row in rows if row.learned is not None]
    if live:
        head = ["provider", "model", *LIVE]
        cells = [[row.provider, row.model, *_live(use)] for row, use in live]
        lines += ["", *format_table(head, cells, left=2)]
    else:
        lines += ["", "No running worker has sent a request to a provider."]
    closed = {row.provider: use.account for row, use in live if use.account is not None}
    closed |= {one.provider: one.reason for one in accounts}
    lines += [
        f"The account of {escaped(name)} is closed: {escaped(said)}; replace its key or fill it"
        for name, said in closed.items()
    ]
    lines += [_cooling(row, row.cooldown) for row in rows if row.cooldown is not None]
    if learned:
        head = ["learned of", "model", "ceiling", "confidence", "mode", "rate", "latency", "age"]
        cells = [[row.provider, row.model, *_learned(known)] for row, known in learned]
        lines += ["", *format_table(head, cells, left=2)]
    return lines


def _cooling(row: ProviderRow, cooldown: KeptCooldown) -> str:
    return (
        f"{escaped(row.provider)}/{escaped(row.model)} cools down for another "
        f"{format_duration(cooldown.seconds)}, as it asked for; nothing is sent to it before. If "
        f"you know better: {command('providers', '--end-cooldown', row.provider)}"
    )


def _live(use: LiveLimit) -> list[str]:
    beyond = f" of {use.limit_max:,}" if use.limit < use.limit_max else ""
    return [
        f"{use.in_flight:,}",
        f"{use.limit:,}{beyond}",
        _a_second(use.rate),
        f"{use.waiting:,}",
        f"{use.refused:,}",
        f"{use.failed:,}",
        format_duration(use.cooldown_seconds) if use.cooldown_seconds > 0 else "-",
        _rate(use.requests_last_minute, use.rpm),
        _rate(use.tokens_last_minute, use.tpm),
        use.mode or use.algorithm,
        f"{format_duration(use.as_of_seconds)} ago",
    ]


def _rate(used: int, cap: float | None) -> str:
    return f"{used:,}" if cap is None else f"{used:,} of {cap:,.0f}"


def _a_second(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.4g}/s"


def _learned(known: LearnedBefore) -> list[str]:
    return [
        "-" if known.ceiling is None else f"{known.ceiling:.4g}",
        f"{known.confidence}",
        known.mode,
        _a_second(known.rate),
        "-" if known.latency_seconds is None else format_duration(known.latency_seconds),
        f"{format_duration(known.seconds_ago)} ago",
    ]

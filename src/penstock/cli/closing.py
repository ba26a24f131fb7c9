# SPDX-License-Identifier: Apache-2.0
"""What is said of a run when it is over?

One line always; more where there is more to say: providers, money, what limited it, failures,
and the command to try next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.cli.live.look import RunLook
from penstock.cli.live.tally import ProviderTotal
from penstock.cli.pace import PaceView
from penstock.cli.text import dollars, escaped, say
from penstock.errors import StoreError
from penstock.model.job import JobState, WorkerId
from penstock.observe.live import Money, money_of
from penstock.observe.phrases import command, counted
from penstock.runtime.asking import within
from penstock.stores.store import Store

SUMMARY_SECONDS = 5.0  # for each number that is asked for
PROVIDERS_NAMED = 4

log = logging.getLogger("penstock.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """All that is known of a run at its end."""

    pace: PaceView
    ended: Mapping[JobState, int]  # by this run
    paused: bool = False
    providers: Sequence[ProviderTotal] = ()
    money: Money | None = None
    in_doubt: int = 0
    limited_by: str | None = None  # the sentence of `explain` about the whole run


def closing_lines(closing: Closing) -> Iterator[str]:
    """The report: plain text, a dozen lines at most."""
    yield closing.pace.summary(closing.ended)
    for total in closing.providers[:PROVIDERS_NAMED]:
        yield _provider(total)
    more = len(closing.providers) - PROVIDERS_NAMED
    if more > 0:
        yield f"{counted(more, 'more provider')}: {command('providers')}"
    if closing.money is not None:
        yield _paid(closing.money, closing.in_doubt)
    if closing.limited_by is not None:
        yield f"Limited by: {closing.limited_by}"
    failed = closing.ended.get(JobState.ERROR, 0)
    if failed:
        listed = command("queue", "list", "--state", JobState.ERROR.value)
        yield f"{counted(failed, 'job')} failed: {listed}"
    following = _next(closing, failed)
    if following is not None:
        yield f"Next: {following}"


def _provider(total: ProviderTotal) -> str:
    parts = [counted(total.sent, "request"), f"{total.refused:,} refused with 429"]
    if total.failed:
        parts.append(f"{total.failed:,} failed")
    return (
        f"{escaped(total.name)}: {', '.join(parts)}; "
        f"limit {total.limit:,} of {total.limit_max:,} at the end"
    )


def _paid(money: Money, in_doubt: int) -> str:
    doubt = f", {in_doubt:,} in doubt" if in_doubt else ""
    return (
        f"Paid calls: {money.bought:,} bought, {money.reused:,} reused{doubt}; "
        f"{dollars(money.spent_micros)} spent"
    )


def _next(closing: Closing, failed: int) -> str | None:
    """The one command that is of most use now; None if there is nothing to do."""
    if closing.paused and closing.pace.left:
        return f"{command('queue', 'resume')}, since the queue is paused"
    if failed:
        return f"{command('queue', 'retry-failed')}, once the reason is mended"
    if closing.pace.left:
        return f"{command('queue', 'run', '--drain')} goes on with what is left"
    return None


def say_closing(look: RunLook | None, store: Store | None, run_id: str | None) -> None:
    """Say it, if there was a run at all; others may have worked on the store as well."""
    if look is None or store is None or run_id is None:
        return
    try:
        stats = within(store.stats(), SUMMARY_SECONDS)
        own = within(store.outlook(WorkerId(""), run_id), SUMMARY_SECONDS).ended_in_run
        balances = within(store.balances([run_id]), SUMMARY_SECONDS)
        money = money_of(balances)
        figures = within(store.call_figures(None), SUMMARY_SECONDS) if money else None
    except (StoreError, TimeoutError) as error:
        log.warning("The store cannot be read for the closing line: %s", error)
        return
    closing = Closing(
        pace=look.paced(stats),
        ended=own,
        paused=stats.paused,
        providers=look.tally.totals(),
        money=money,
        in_doubt=0 if figures is None else figures.in_doubt,
    )
    for line in closing_lines(closing):
        if not say(line):
            return

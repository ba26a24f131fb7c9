# SPDX-License-Identifier: Apache-2.0
"""Which tasks wait for a budget in this worker, and what is said when nothing else is left?

A call that a budget refuses ends its attempt uncharged. Its task is not leased again in this run:
the next call would be refused as well. Other tasks go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.clock import MICROSECONDS, Clock
from penstock.errors import StoreError
from penstock.model.spending import (
    Amount,
    Balance,
    Budget,
    BudgetRefusal,
    Period,
    day_of,
)
from penstock.stores.reply import Reply

FILE = "penstock.toml"

log = logging.getLogger("penstock.budget")


class BudgetStop(msgspec.Struct, frozen=True):
    """Why a run has ended before its work was done."""

    budget: str  # its name
    sentence: str
    tasks: tuple[str, ...]  # that wait for it


class Balances(Protocol):
    """Whoever keeps the accounts."""

    def balances(self, spans: list[str]) -> Reply[list[Balance]]: ...


class BudgetHold:
    """Owns the tasks that are held back, until the end of its worker. Belongs to one loop."""

    def __init__(
        self, run_id: str, store: Balances, clock: Clock, held_back: Callable[[str], None]
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._clock = clock
        self._held_back = held_back  # is told of each task, once
        self.refusals: dict[str, BudgetRefusal] = {}
        self._elsewhere: dict[str, BudgetStop] = {}  # those that can be leased here still are

    def __repr__(self) -> str:
        return f"<BudgetHold of {', '.join(sorted(self.tasks)) or 'nothing'}>"

    @property
    def tasks(self) -> frozenset[str]:
        return frozenset((*self.refusals, *self._elsewhere))

    def refused(self, task: str, refusal: BudgetRefusal) -> None:
        """A job of a task was given back, since a budget has nothing left for its call."""
        if task in self.refusals:
            return
        self.refusals[task] = refusal
        log.warning("Task %r is held back: %s Other tasks go on.", task, _why(refusal))
        self._held_back(task)

    def held_elsewhere(self, stops: Sequence[BudgetStop]) -> None:
        """Another worker of the run has ended so; what only it could serve is not waited for."""
        self._elsewhere.update({task: stop for stop in stops for task in stop.tasks})

    async def stops(self) -> tuple[BudgetStop, ...]:
        """What ends the run, one for each budget, with the numbers of now."""
        spent = await self._spent()
        tasks: dict[Budget, list[str]] = {}
        for task, refusal in sorted(self.refusals.items()):
            tasks.setdefault(refusal.budget, []).append(task)
        own = [
            BudgetStop(
                budget.name,
                _sentence(self.refusals[names[0]], spent.get((budget.scope, budget.period))),
                tuple(names),
            )
            for budget, names in tasks.items()
        ]
        known = {stop.budget for stop in own}
        return (
            *own,
            *(s for s in dict.fromkeys(self._elsewhere.values()) if s.budget not in known),
        )

    async def _spent(self) -> Mapping[tuple[str, Period], Balance]:
        """What the budgets have come to; nothing if the store cannot tell now."""
        day = day_of(round(self._clock.now() * MICROSECONDS))
        try:
            found = await self._store.balances([self._run_id, day])
        except StoreError:
            return {}
        return {(one.account.scope, one.account.period): one for one in found}


def _why(refusal: BudgetRefusal) -> str:
    budget, where = refusal.budget, refusal.where
    if refusal.price_is_missing:
        return f"[{budget.name}] counts dollars, and the price of {where} is not known."
    return (
        f"of [{budget.name}], {budget.shown(refusal.left)} of {budget.shown(budget.cap)} is left, "
        f"and a call of {where} may need {budget.shown(refusal.asked)}."
    )


def _sentence(refusal: BudgetRefusal, balance: Balance | None) -> str:
    """Which budget, what it allows, what was spent, and what is to be done."""
    budget, where = refusal.budget, refusal.where
    if refusal.price_is_missing:
        provider, _, model = where.partition("/")
        return (
            f"The price of {where} is not known, and [{budget.name}] counts dollars: say "
            "usd_per_million_tokens = { input = …, output = … } in "
            f'[providers.{provider}.models."{model}"] of {FILE}, then run the same command again.'
        )
    spent = reserved = Amount()
    if balance is not None:
        spent, reserved = balance.spent, balance.reserved
    used = f"{budget.shown(spent)} spent"
    if any(reserved):
        used += f", {budget.shown(reserved)} reserved by calls in doubt"
    a_day = budget.period is Period.DAY
    anew = "it opens again at midnight UTC" if a_day else "a new run counts from zero"
    return (
        f"The budget [{budget.name}] of {budget.shown(budget.cap)} a {budget.period.value} is used "
        f"up ({used}, and a call of {where} may need {budget.shown(refusal.asked)}): raise "
        f"{budget.settings} in {FILE}, then run the same command again; {anew}."
    )

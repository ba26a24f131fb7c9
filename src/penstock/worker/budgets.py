# SPDX-License-Identifier: Apache-2.0
"""The tasks that a budget holds back in this worker, and the stops that end its run.

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
from penstock.model.lease import JobRef
from penstock.model.spending import (
    Account,
    Amount,
    Balance,
    Budget,
    BudgetRefusal,
    BudgetStop,
    utc_day,
)
from penstock.stores.store_future import Reply
from penstock.worker.attempt import Attempt, AttemptEnd

log = logging.getLogger("penstock.budget")


class Balances(Protocol):
    """Whoever keeps the accounts."""

    def balances(self, spans: list[str]) -> Reply[list[Balance]]: ...


class BudgetHold:
    """Owns the tasks that are held back, until the end of its worker. Belongs to one loop."""

    def __init__(
        self,
        run_id: str,
        store: Balances,
        clock: Clock,
        held_back: Callable[[str], None],
        app: str = "",
    ) -> None:
        self._run_id = run_id
        self._app = app
        self._store = store
        self._clock = clock
        self._held_back = held_back  # called with each task, once
        self.refusals: dict[str, BudgetRefusal] = {}
        self.tasks: frozenset[str] = frozenset()  # those that are held back, here or elsewhere
        self._spans: dict[Budget, str] = {}  # the run or day in which each was used up
        self._elsewhere: dict[str, BudgetStop] = {}  # those that can be leased here still are

    def __repr__(self) -> str:
        return f"<BudgetHold of {', '.join(sorted(self.tasks)) or 'nothing'}>"

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        calls = attempt.calls
        if isinstance(end, JobRef) and calls is not None and calls.refusal is not None:
            self.refused(attempt.job.task, calls.refusal)

    def refused(self, task: str, refusal: BudgetRefusal) -> None:
        """A job of a task was given back, since a budget has nothing left for its call."""
        if task in self.refusals:
            return
        self.refusals[task] = refusal
        self.tasks |= {task}
        self._spans.setdefault(refusal.budget, refusal.budget.span(self._run_id, self._today()))
        log.warning("%s Task %r is held back; other tasks go on.", _cause(refusal), task)
        self._held_back(task)

    def held_elsewhere(self, stops: Sequence[BudgetStop]) -> None:
        """Another worker of the run has ended so; what only it could serve is not waited for."""
        self._elsewhere.update({task: stop for stop in stops for task in stop.tasks})
        self.tasks |= self._elsewhere.keys()

    async def stops(self) -> tuple[BudgetStop, ...]:
        """What ends the run, one for each budget, with the numbers of now."""
        spent = await self._spent()
        tasks: dict[Budget, list[str]] = {}
        for task, refusal in sorted(self.refusals.items()):
            tasks.setdefault(refusal.budget, []).append(task)
        own = []
        for budget, names in tasks.items():
            stop = BudgetStop(
                refusal=self.refusals[names[0]],
                span=self._spans[budget],
                tasks=tuple(names),
            )
            if spent is not None:
                account = Account(budget.scope, budget.period, self._spans[budget], self._app)
                balance = spent.get(account)
                if balance is None:
                    balance = Balance(account, Amount(), Amount())
                stop = msgspec.structs.replace(
                    stop,
                    spent=balance.spent,
                    reserved=balance.reserved,
                    in_doubt=balance.in_doubt,
                )
            own.append(stop)
        known = {stop.budget for stop in own}
        return (
            *own,
            *(s for s in dict.fromkeys(self._elsewhere.values()) if s.budget not in known),
        )

    def _today(self) -> str:
        return utc_day(round(self._clock.now() * MICROSECONDS))

    async def _spent(self) -> Mapping[Account, Balance] | None:
        """What the budgets have come to; None if the store cannot answer now."""
        try:
            found = await self._store.balances(sorted(set(self._spans.values())))
        except StoreError:
            return None
        return {one.account: one for one in found}


def _cause(refusal: BudgetRefusal) -> str:
    budget, where = refusal.budget, refusal.where
    if refusal.price_is_missing:
        return f"[{budget.name}] counts dollars, and the price of {where} is not known."
    short = refusal.short
    return (
        f"[{budget.name}] has {short.format_amount(refusal.left)} of "
        f"{short.format_amount(short.cap)} left, and a call of {where} may need "
        f"{short.format_amount(refusal.asked)}."
    )

# SPDX-License-Identifier: Apache-2.0
"""Does a worker tell the numbers of the run or day in which a budget was used up?"""

from __future__ import annotations

import asyncio

from penstock.clock import MICROSECONDS
from penstock.model.spending import Account, Amount, Balance, Budget, BudgetRefusal, Period, utc_day
from penstock.stores.store_future import Reply
from penstock.testing.clocks import ManualClock
from penstock.worker.budgets import BudgetHold

DAY = Budget("all", Period.DAY, micros=1_000)
DAY_SECONDS = 86_400.0


class Accounts:
    """Holds what each day has spent."""

    def __init__(self, spent: dict[str, int]) -> None:
        self._spent = spent

    def balances(self, spans: list[str]) -> Reply[list[Balance]]:
        return Reply.of(
            [
                Balance(Account("all", Period.DAY, span), Amount(self._spent[span]), Amount())
                for span in spans
                if span in self._spent
            ]
        )


def test_a_day_that_is_over_is_told_with_its_own_numbers() -> None:
    clock = ManualClock()
    day = utc_day(round(clock.now() * MICROSECONDS))
    hold = BudgetHold("run-1", Accounts({day: 990}), clock, lambda task: None)
    hold.refused("ask", BudgetRefusal(DAY, "ai/m", Amount(20), Amount(10)))

    clock.advance(DAY_SECONDS)
    (stop,) = asyncio.run(hold.stops())

    assert (stop.span, stop.spent) == (day, Amount(990))
    assert "($0.00099 spent, and a call of ai/m may need $0.00002)" in stop.sentence

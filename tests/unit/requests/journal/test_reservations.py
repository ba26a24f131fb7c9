# SPDX-License-Identifier: Apache-2.0
"""Does a call wait only for money that may come back here, and is the next one told?"""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.spending import Amount, Budget, Period
from penstock.requests.journal.writer import Reservations
from penstock.testing.virtual_loop import VirtualLoop

BUDGET = Budget("all", Period.RUN, micros=100)
SCOPES = ("all", "task:t")


@pytest.mark.parametrize(
    ("budget", "asked", "expected"),
    [
        (BUDGET, Amount(30, 999), True),  # 10 left, 20 reserved
        (BUDGET, Amount(31, 0), False),
        (Budget("task:u", Period.RUN, micros=100), Amount(1, 0), False),
        (Budget("task:t", Period.RUN, tokens=9), Amount(999, 10), True),
        (Budget("task:t", Period.RUN, tokens=9), Amount(0, 11), False),
        (Budget("all", Period.RUN, 100, 9), Amount(30, 11), False),
    ],
)
def test_it_is_worth_waiting_if_all_that_is_reserved_would_do(
    budget: Budget, asked: Amount, expected: bool
) -> None:
    reservations = Reservations()
    reservations.hold("a", SCOPES, Amount(15, 3))
    reservations.hold("b", SCOPES, Amount(5, 2))

    assert reservations.may_suffice(budget, Amount(10, 5), asked) is expected


def test_what_was_given_back_is_worth_nothing_more() -> None:
    reservations = Reservations()
    reservations.hold("a", SCOPES, Amount(15, 3))
    for _ in range(2):
        reservations.release("a")

    assert not reservations.may_suffice(BUDGET, Amount(10, 0), Amount(11, 0))
    assert repr(reservations) == "<Reservations of 0 calls, 0 wait>"


def test_one_that_waits_is_woken_by_each_change_and_all_of_them_by_time() -> None:
    loop = VirtualLoop(seed=1)
    reservations = Reservations()
    woken: list[tuple[str, float]] = []

    async def wait(name: str) -> None:
        await reservations.wait_for_change(BUDGET)
        woken.append((name, loop.time() - began))

    async def main() -> None:
        waiting = [loop.create_task(wait(name)) for name in "abc"]
        await asyncio.sleep(0.25)
        reservations.hold("call", SCOPES, Amount(1, 1))
        await asyncio.sleep(0.25)
        reservations.release("call")
        await asyncio.gather(*waiting)

    began = loop.time()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()

    names, times = zip(*woken, strict=True)
    assert sorted(names) == ["a", "b", "c"]
    assert times == pytest.approx((0.25, 0.5, 1.0))
    assert repr(reservations) == "<Reservations of 0 calls, 0 wait>"

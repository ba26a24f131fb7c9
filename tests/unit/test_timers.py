# SPDX-License-Identifier: Apache-2.0
"""One timer rings for the earliest of many moments, and no oftener than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.testing.virtual_loop import VirtualLoop, run_virtual
from penstock.timers import Deadlines, Timer

SECONDS = 10.0


class World:
    """Notes when a timer rings, and what is overdue."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.timer = Timer(lambda: self.rang.append(self.loop.time()), self.loop.time)
        self.rang: list[float] = []
        self.deadlines: Deadlines[str, int] = Deadlines(SECONDS, self._overdue, self.loop.time)
        self.overdue: list[tuple[str, int, float]] = []
        self.instead: Callable[[], None] = lambda: None

    def _overdue(self, key: str, value: int) -> None:
        self.overdue.append((key, value, self.loop.time()))
        self.instead()


def simulated(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await main(World())

    run_virtual(run())


def test_a_timer_rings_once_at_the_earliest_of_its_moments() -> None:
    async def main(world: World) -> None:
        world.timer.set(5.0)
        world.timer.set(3.0)
        world.timer.set(4.0)
        await asyncio.sleep(20.0)

        assert world.rang == [3.0]

    simulated(main)


def test_a_timer_whose_moment_has_passed_rings_at_once_and_can_be_set_again() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(2.0)
        world.timer.set(1.0)
        await asyncio.sleep(1.0)
        world.timer.set(7.0)
        await asyncio.sleep(10.0)

        assert world.rang == [2.0, 7.0]

    simulated(main)


@pytest.mark.parametrize("how", [Timer.cancel, lambda timer: timer.set(None)])
def test_a_timer_that_is_called_off_does_not_ring(how: Callable[[Timer], None]) -> None:
    async def main(world: World) -> None:
        how(world.timer)
        world.timer.set(5.0)
        how(world.timer)
        await asyncio.sleep(20.0)
        assert not world.rang

        world.timer.set(30.0)
        await asyncio.sleep(20.0)
        assert world.rang == [30.0]

    simulated(main)


def test_a_timer_of_a_closed_loop_is_not_set() -> None:
    loop = VirtualLoop()
    timer = Timer(lambda: None, loop.time, loop)
    timer.set(1.0)
    loop.close()

    timer.set(0.5)
    timer.set(None)


def test_what_is_open_for_too_long_is_overdue_with_what_was_kept_of_it() -> None:
    async def main(world: World) -> None:
        for number, key in enumerate("abc"):
            world.deadlines.add(key, number)
            await asyncio.sleep(1.0)
        assert world.deadlines.drop("b") == 1
        assert world.deadlines.drop("b") is None
        assert len(world.deadlines) == 2
        await asyncio.sleep(50.0)

        assert world.overdue == [("a", 0, 10.0), ("c", 2, 12.0)]
        assert len(world.deadlines) == 0

    simulated(main)


def test_what_begins_again_is_due_later_and_holds_up_no_other() -> None:
    async def main(world: World) -> None:
        world.deadlines.add("a", 1)
        world.deadlines.add("b", 2)
        await asyncio.sleep(5.0)
        world.deadlines.add("a", 3)
        await asyncio.sleep(50.0)

        assert world.overdue == [("b", 2, 10.0), ("a", 3, 15.0)]

    simulated(main)


def test_deadlines_may_change_while_they_are_told() -> None:
    async def main(world: World) -> None:
        world.deadlines.add("a", 1)
        world.deadlines.add("b", 2)

        def change() -> None:
            world.deadlines.drop("b")
            world.deadlines.add("c", 3)

        world.instead = change
        await asyncio.sleep(15.0)
        assert world.overdue == [("a", 1, 10.0)]

        world.instead = world.deadlines.clear
        await asyncio.sleep(50.0)
        assert world.overdue[1:] == [("c", 3, 20.0)]

    simulated(main)


def test_nothing_is_overdue_after_the_end() -> None:
    async def main(world: World) -> None:
        world.deadlines.add("a", 1)
        world.deadlines.clear()
        await asyncio.sleep(50.0)

        assert not world.overdue

    simulated(main)

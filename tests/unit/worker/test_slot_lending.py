# SPDX-License-Identifier: Apache-2.0
"""Does a body that waits for its provider lend its slot, and take it back once?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.model.task import SUBMISSION
from penstock.testing.virtual_loop import VirtualLoop
from penstock.worker.slot_lending import LEND_SECONDS, SlotLending


class World:
    """Two slots on the loop, one in a thread."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.limits = {SUBMISSION: 3, "async": 2, "thread": 1}
        self.lending = loop.run_until_complete(self._make())

    async def _make(self) -> SlotLending:
        return SlotLending({"async": 2, "thread": 1}, 3, self.loop.time, self.limits.__setitem__)

    def pass_(self, seconds: float) -> None:
        async def sleep() -> None:
            done = self.loop.create_future()
            self.loop.call_later(seconds, done.set_result, None)
            await done

        self.loop.run_until_complete(sleep())


@pytest.fixture
def world() -> Iterator[World]:
    loop = VirtualLoop(seed=0)
    yield World(loop)
    loop.close()


def test_a_long_wait_lends_the_slot_until_it_ends(world: World) -> None:
    world.lending.wait_begins("a", "async")
    world.pass_(LEND_SECONDS)

    assert world.limits == {SUBMISSION: 4, "async": 3, "thread": 1}
    assert world.lending.lent("async") == 1

    world.lending.wait_ends("a")
    assert world.limits == {SUBMISSION: 3, "async": 2, "thread": 1}


def test_a_short_wait_lends_nothing(world: World) -> None:
    world.lending.wait_begins("a", "async")
    world.pass_(LEND_SECONDS / 2)
    world.lending.wait_begins("b", "thread")
    world.lending.wait_ends("a")
    world.pass_(LEND_SECONDS)

    assert world.limits == {SUBMISSION: 4, "async": 2, "thread": 2}


def test_an_end_that_is_told_twice_counts_once(world: World) -> None:
    for name in ("a", "b"):
        world.lending.wait_begins(name, "async")
    world.pass_(LEND_SECONDS)
    assert world.limits["async"] == 4

    world.lending.wait_ends("a")
    world.lending.wait_ends("a")
    world.lending.wait_ends("who never waited")

    assert world.limits["async"] == 3


def test_no_more_is_lent_than_there_is(world: World) -> None:
    for name in ("a", "b", "c"):
        world.lending.wait_begins(name, "async")
    world.pass_(LEND_SECONDS)
    assert world.limits["async"] == 4  # 2 of 2

    world.lending.wait_ends("c")  # it never lent
    assert world.limits["async"] == 4


def test_nothing_is_lent_after_the_end(world: World) -> None:
    world.lending.wait_begins("a", "async")
    world.lending.close()
    world.pass_(LEND_SECONDS * 2)

    assert world.limits["async"] == 2

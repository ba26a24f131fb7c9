# SPDX-License-Identifier: Apache-2.0
"""Is a provider without room seen before its requests are, and is it told when there is room?"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import pytest

from penstock.admission.tasks.policies import is_pressed
from penstock.model.provider import ANY, RequestResourceKey, SeveralResources
from penstock.model.request import PressureSnapshot
from penstock.testing.virtual_loop import VirtualLoop
from penstock.worker.provider_pressure import FIRST_LIMIT, FRESH_SECONDS, ProviderPressure

AI = RequestResourceKey("ai", ANY, ANY)
MODEL = RequestResourceKey("ai", "m", ANY)
MAPS = RequestResourceKey("maps", ANY, ANY)
BOTH = SeveralResources((AI, MAPS))


class Requests:
    """What request admission would say."""

    def __init__(self) -> None:
        self.said: dict[Hashable, PressureSnapshot] = {}

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        return self.said.get(key)


class World:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.requests = Requests()
        self.changed: list[Hashable] = []
        self.pressure = loop.run_until_complete(self._make())
        self.pressure.connect(self.changed.append)

    async def _make(self) -> ProviderPressure:
        names = {"alias": "ai"}
        return ProviderPressure(
            self.requests, lambda name: names.get(name, name), lambda *_: 100, self.loop.time
        )

    def pressed(self, key: Hashable = AI) -> bool:
        found = self.pressure.snapshot(key)
        return found is not None and is_pressed(found)

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


def test_nothing_is_known_of_a_provider_that_nobody_asked(world: World) -> None:
    assert world.pressure.snapshot(AI) is None


def test_jobs_that_have_just_begun_count_as_waiters(world: World) -> None:
    world.requests.said[AI] = PressureSnapshot(4, in_flight=1)
    for n in range(6):
        assert not world.pressed()
        world.pressure.began(n, AI)
    assert not world.pressed()  # three have room, three would wait
    world.pressure.began(7, AI)
    assert world.pressed()

    world.pressure.asked(0)
    world.pressure.asked(0)

    assert world.changed == [AI]
    assert not world.pressed()


def test_of_a_provider_that_nobody_asked_some_jobs_begin(world: World) -> None:
    begun = 0
    while not world.pressed():
        world.pressure.began(begun, AI)
        begun += 1

    assert begun == 2 * FIRST_LIMIT


def test_a_job_that_has_something_else_to_do_first_counts_for_a_moment(world: World) -> None:
    world.requests.said[AI] = PressureSnapshot(1)
    for n in range(2):
        world.pressure.began(n, AI)
    assert world.pressed()

    world.pass_(FRESH_SECONDS + 0.01)

    assert not world.pressed()
    assert world.changed == [AI]


def test_relief_of_any_model_opens_the_gates_that_were_closed(world: World) -> None:
    other = RequestResourceKey("ai", "n", ANY)
    alias = RequestResourceKey("alias", ANY, ANY)
    full = PressureSnapshot(1, 1, 1)
    world.requests.said = {AI: full, MODEL: full, other: full}
    assert [world.pressed(key) for key in (AI, MODEL, other, alias)] == [True] * 4

    world.pressure.relieved(RequestResourceKey("ai", "m", "chat"))
    world.pressure.relieved(RequestResourceKey("ai", "m", "chat"))

    assert world.changed == [AI, MODEL, alias]


def test_the_end_of_a_cool_down_opens_the_gate(world: World) -> None:
    world.requests.said[AI] = PressureSnapshot(1, cooldown_seconds=5.0)
    assert world.pressed()

    world.pass_(4.9)
    assert world.changed == []
    world.pass_(0.2)
    assert world.changed == [AI]


def test_after_the_end_nobody_is_told(world: World) -> None:
    world.requests.said[AI] = PressureSnapshot(1, cooldown_seconds=5.0)
    assert world.pressed()
    world.pressure.began("j", AI)

    world.pressure.close()
    world.pass_(10.0)

    assert world.changed == []


@pytest.mark.parametrize("full", [AI, MAPS])
def test_any_of_several_providers_holds_a_task_back(world: World, full: RequestResourceKey) -> None:
    world.requests.said = {AI: PressureSnapshot(4), MAPS: PressureSnapshot(4)}
    assert not world.pressed(BOTH)

    world.requests.said[full] = PressureSnapshot(1, 1, 1, resource=full)
    assert world.pressed(BOTH)

    found = world.pressure.snapshot(BOTH)
    assert found is not None
    assert found.resource == full
    world.pressure.relieved(RequestResourceKey(full.provider, "m", "chat"))
    assert world.changed == [BOTH]


def test_the_longest_cool_down_of_several_providers_counts(world: World) -> None:
    world.requests.said = {
        AI: PressureSnapshot(1, cooldown_seconds=2.0),
        MAPS: PressureSnapshot(1, cooldown_seconds=9.0),
    }

    found = world.pressure.snapshot(BOTH)

    assert found is not None
    assert found.cooldown_seconds == 9.0


def test_a_fresh_job_of_several_providers_counts_at_each(world: World) -> None:
    world.requests.said = {AI: PressureSnapshot(1), MAPS: PressureSnapshot(1)}
    for n in range(2):
        world.pressure.began(n, BOTH)
    assert [world.pressed(key) for key in (AI, MAPS, BOTH)] == [True] * 3

    world.pressure.asked(0)

    assert sorted(map(str, world.changed)) == sorted(map(str, [AI, MAPS, BOTH]))
    assert [world.pressed(key) for key in (AI, MAPS, BOTH)] == [False] * 3

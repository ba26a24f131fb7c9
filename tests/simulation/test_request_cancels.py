# SPDX-License-Identifier: Apache-2.0
"""Are permits held exactly by the requests in flight, wherever somebody is cancelled?

After every pass of the loop all tasks are looked at: a permit belongs to one that has it, or to one
that has been given it and has not run since. `REQUEST_CANCELS=100000` cancels that often at random.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.policy import ProviderPolicy
from penstock.errors import RequestAdmissionError
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestOutcome, RequestReleaseOutcome
from penstock.requests.admission import RequestAdmissionController
from penstock.testing import VirtualClock
from penstock.testing.virtual_loop import VirtualLoop
from tests.requests import CHAT, EMBEDDING, SUCCESS, Core, aimd, item, policy, refused

CANCELS = int(os.environ.get("REQUEST_CANCELS", "3000"))
CAP = 2


class WatchedLoop(VirtualLoop):
    """A virtual loop that calls somebody after each of its passes."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.passes = 0
        self.watch: Callable[[int], None] = lambda number: None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # private in typeshed
        self.passes += 1
        self.watch(self.passes)


class World:
    """Requests that are admitted, sent and ended, each a task."""

    def __init__(self, core: Core, loop: VirtualLoop) -> None:
        self.admission = RequestAdmissionController(core, VirtualClock(loop))
        self.holders: set[asyncio.Task[Any]] = set()
        self.tasks: list[asyncio.Task[str]] = []

    def start(
        self, seconds: float, ending: RequestReleaseOutcome = SUCCESS, **said: Any
    ) -> asyncio.Task[str]:
        task = asyncio.get_running_loop().create_task(self._request(seconds, ending, said))
        self.tasks.append(task)
        return task

    async def _request(
        self, seconds: float, ending: RequestReleaseOutcome, said: dict[str, Any]
    ) -> str:
        task = asyncio.current_task()
        assert task is not None
        try:
            lease = await self.admission.acquire_async(item(**said))
        except RequestAdmissionError as error:
            return error.reason
        self.holders.add(task)
        outcome = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED)
        try:
            await asyncio.sleep(seconds)  # it is sent, and its reply is read
            outcome = ending
        finally:
            assert self.admission.release(lease, outcome).released
            self.holders.remove(task)
        return "done"

    def check(self) -> None:
        core = self.admission.core
        granted = sum(_is_granted(task) for task in self.tasks if not task.done())
        assert core.in_flight == len(self.holders) + granted
        for level in core.tree.models.values():
            assert level.provider.gate.in_flight == core.in_flight
        assert core.in_flight <= CAP

    def check_empty(self) -> None:
        core = self.admission.core
        assert (core.in_flight, core.waiting, len(self.admission._futures)) == (0, 0, 0)
        for level in core.tree.resources.values():
            assert level.gate.in_flight == level.model.gate.in_flight == level.active_leases == 0


def _is_granted(task: asyncio.Task[str]) -> bool:
    """Has a task that stands in its wait been given a lease?"""
    awaited: Any = task.get_coro()
    while awaited is not None and getattr(awaited, "cr_frame", None) is not None:
        if awaited.cr_code.co_name == "wait":
            waiter = awaited.cr_frame.f_locals.get("waiter")
            return waiter is not None and waiter.lease is not None
        awaited = awaited.cr_await
    return False


def run(loop: WatchedLoop, main: Callable[[], Any]) -> None:
    try:
        loop.run_until_complete(main())
        loop.end_leftovers()
    finally:
        loop.close()


def play(victim: int | None, at_pass: int, seed: int | None, core: Core) -> int:
    """Six requests for two places, one of them cancelled after a pass; how many passes it took."""
    loop = WatchedLoop(seed)
    worlds: list[World] = []

    async def main() -> None:
        world = World(core, loop)
        worlds.append(world)
        endings = [SUCCESS, refused(0.5), SUCCESS, SUCCESS, refused(0.0), SUCCESS]
        for number, ending in enumerate(endings):
            resource = CHAT if number % 2 else EMBEDDING
            world.start(1.0 + number / 4, ending, resource=resource)

        def watch(number: int) -> None:
            if victim is not None and number == at_pass:
                world.tasks[victim].cancel()
            world.check()

        loop.watch = watch
        ends = await asyncio.gather(*world.tasks, return_exceptions=True)
        for number, end in enumerate(ends):
            assert end == "done" or (
                number == victim and isinstance(end, asyncio.CancelledError)
            ), f"request {number} ended with {end!r}"
        world.check_empty()

    run(loop, main)
    return loop.passes


def scripted() -> Core:
    return Core(policy(CAP), pace=0.125)


def plain() -> Core:
    return Core(policy(CAP, algorithm="aimd"), make=aimd)


def adaptive() -> Core:
    def make(
        declared: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
    ) -> Adaptive:
        return Adaptive(effective_max, now, random.Random(1).random)

    return Core(policy(CAP), make=make)


CORES = [scripted, plain, adaptive]


@pytest.mark.parametrize("make", CORES)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_f48_a_cancellation_at_every_await_leaves_no_permit_behind(
    make: Callable[[], Core], seed: int | None
) -> None:
    passes = play(None, 0, seed, make())
    for victim in range(6):
        for at_pass in range(1, passes + 1):
            play(victim, at_pass, seed, make())


@pytest.mark.parametrize("make", CORES)
def test_f48_many_random_cancellations_leave_no_permit_behind(make: Callable[[], Core]) -> None:
    loop = WatchedLoop(seed=48)
    chance = random.Random(48)
    cancels = 0

    async def main() -> None:
        nonlocal cancels
        world = World(make(), loop)
        granted = 0

        def watch(number: int) -> None:
            nonlocal cancels, granted
            world.check()
            alive = [task for task in world.tasks if not task.done()]
            for task in alive:
                if chance.random() < 0.08:
                    granted += _is_granted(task)
                    cancels += task.cancel()

        loop.watch = watch
        while cancels < CANCELS / len(CORES):
            world.tasks = [task for task in world.tasks if not task.done()]
            ending = chance.choice([SUCCESS, SUCCESS, refused(0.25), refused(0.0)])
            resource = RequestResourceKey("p", chance.choice("mn"), chance.choice(["chat", "http"]))
            world.start(
                chance.choice([0.0, 0.5, 1.0]),
                ending,
                resource=resource,
                timeout=chance.choice([None, None, 0.5]),
                refusals=chance.choice([0, 0, 1]),
            )
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.25]))
        loop.watch = lambda number: world.check()
        ends = await asyncio.gather(*world.tasks, return_exceptions=True)
        assert all(isinstance(end, str | asyncio.CancelledError) for end in ends), ends
        world.check_empty()
        assert granted > 0, "nobody was cancelled between its grant and its next step"

    run(loop, main)

# SPDX-License-Identifier: Apache-2.0
"""Commands of the supervisor, before there is a worker and afterwards."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.processes.worker import CommandRelay
from penstock.supervisor import protocol
from penstock.worker.parts import Stopping
from penstock.worker.worker import Worker


class Heard:
    """A worker, and what was said to it."""

    def __init__(self) -> None:
        self.words: list[object] = []

    def drain(self) -> None:
        self.words.append("drain")

    def stop(self, how: Stopping) -> None:
        self.words.append(how)


class Checks:
    """What comes before the work: until it is told to stop, or has passed."""

    plan_id: str | None = None

    def __init__(self, *, passes: bool = True) -> None:
        self._end = asyncio.Event()
        self._passes = passes
        self.begun = False

    def stop(self) -> None:
        self._passes = False
        self._end.set()

    def passed(self) -> None:
        self._end.set()

    async def run(self) -> bool:
        self.begun = True
        await self._end.wait()
        return self._passes


def test_a_worker_obeys_and_hears_what_was_said_before() -> None:
    relay, heard = CommandRelay(), Heard()
    for word in (protocol.Go(), protocol.Drain()):
        relay.obey(word)
    relay.take(cast(Worker, heard))
    assert heard.words == ["drain"]
    relay.obey(protocol.Stop())
    relay.obey(protocol.Abort())
    assert heard.words == ["drain", Stopping.GRACEFUL, Stopping.NOW]


@pytest.mark.parametrize("word", [protocol.Stop(), protocol.Abort()])
def test_a_stop_ends_what_comes_before_the_work(word: protocol.ToWorker) -> None:
    async def main() -> tuple[bool, bool]:
        relay, checks = CommandRelay(), Checks()
        led = asyncio.ensure_future(relay.run_lead(checks))
        await asyncio.sleep(0)
        relay.obey(word)
        return await led, checks.begun

    assert asyncio.run(main()) == (False, True)


def test_a_stop_before_the_checks_lets_none_begin() -> None:
    async def main() -> tuple[bool, bool]:
        relay, checks = CommandRelay(), Checks()
        relay.obey(protocol.Stop())
        return await relay.run_lead(checks), checks.begun

    assert asyncio.run(main()) == (False, False)


def test_a_stop_between_checks_and_work_reaches_the_worker() -> None:
    async def main() -> list[object]:
        relay, checks, heard = CommandRelay(), Checks(), Heard()
        led = asyncio.ensure_future(relay.run_lead(checks))
        await asyncio.sleep(0)
        checks.passed()
        assert await led
        relay.obey(protocol.Stop())
        relay.take(cast(Worker, heard))
        return heard.words

    assert asyncio.run(main()) == [Stopping.GRACEFUL]

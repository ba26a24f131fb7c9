# SPDX-License-Identifier: Apache-2.0
"""Is a blocked loop noticed, and its culprit named?"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from penstock.testing import ManualClock
from penstock.worker.loop_watchdog import BLOCKED_SECONDS, LoopWatchdog
from penstock.worker.slot_table import SlotTable


@pytest.fixture
def table() -> Iterator[SlotTable]:
    table = SlotTable.create(1)
    yield table
    table.close()


def name_of(task: asyncio.Task[object] | None) -> str:
    return "nobody" if task is None else f"job {task.get_name()!r}"


def test_a_blocked_loop_is_told_once_with_the_name_of_its_task(
    table: SlotTable, caplog: pytest.LogCaptureFixture
) -> None:
    """The watch looks from another thread while a task's body keeps the loop."""
    clock = ManualClock()
    seen: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watch = LoopWatchdog(loop, table, clock, name_of)

        async def blocks() -> None:
            clock.advance(BLOCKED_SECONDS + 0.5)
            for _ in range(3):
                looking = threading.Thread(target=lambda: seen.append(watch.run_once()))
                looking.start()
                looking.join()

        table.turn(clock.monotonic())
        await loop.create_task(blocks(), name="culprit")

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        asyncio.run(main())

    assert seen == [True, True, True]
    assert caplog.text.count("blocked for 1.5 s by job 'culprit'") == 1


def test_every_stall_is_told_anew(table: SlotTable, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    loop = asyncio.new_event_loop()
    watch = LoopWatchdog(loop, table, clock, name_of)

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        for _ in range(2):
            table.turn(clock.monotonic())
            assert not watch.run_once()
            clock.advance(BLOCKED_SECONDS)
            assert watch.run_once()
    loop.close()

    assert caplog.text.count("blocked for 1.0 s by nobody") == 2


def test_a_second_culprit_of_one_stall_is_told_once_it_has_blocked_for_as_long(
    table: SlotTable, caplog: pytest.LogCaptureFixture
) -> None:
    """Bodies that block one after the other leave the loop no turn between them."""
    clock = ManualClock()
    loop = asyncio.new_event_loop()
    culprits = iter(["one", "quick", "two", "two", "two", "two"])
    watch = LoopWatchdog(loop, table, clock, lambda _: next(culprits))
    table.turn(clock.monotonic())
    clock.advance(BLOCKED_SECONDS)

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        for _ in range(6):
            assert watch.run_once()
            clock.advance(BLOCKED_SECONDS / 2)
    loop.close()

    assert len(caplog.records) == 2
    assert "1.0 s by one" in caplog.text
    assert "1.0 s by two" in caplog.text


def test_a_loop_that_has_not_begun_is_not_blocked(table: SlotTable) -> None:
    loop = asyncio.new_event_loop()
    clock = ManualClock()
    clock.advance(100)

    assert not LoopWatchdog(loop, table, clock, name_of).run_once()
    loop.close()


def test_a_watch_starts_and_stops(table: SlotTable) -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatchdog(loop, table, ManualClock(), name_of)
    watch.start()
    watch.stop()
    loop.close()

    assert not watch._thread.is_alive()

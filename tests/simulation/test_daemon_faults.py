# SPDX-License-Identifier: Apache-2.0
"""F64: a schedule that overruns, raises each time or hangs: it is late, and nobody else is."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock import Penstock, TickContext
from penstock.clock import MICROSECONDS
from penstock.testing import harness

pytestmark = pytest.mark.faults

INTERVAL_SECONDS = 10
SECONDS = 1_800.0


def test_f64_schedules_that_overrun_raise_or_hang_delay_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Half an hour in virtual time; what overruns by half an interval each time must not drift."""
    caplog.set_level(logging.CRITICAL, "penstock")
    app = Penstock("late")
    tries: dict[str, list[tuple[int, float]]] = {}  # nominal time, late by
    running: set[str] = set()

    async def body(ctx: TickContext, name: str) -> None:
        assert name not in running, f"{name} overlaps itself"
        running.add(name)
        due = round(ctx.due_at.timestamp() * MICROSECONDS)
        tries.setdefault(name, []).append((due, test.clock.now() - due / MICROSECONDS))
        try:
            match name:
                case "overruns":
                    await asyncio.sleep(1.5 * INTERVAL_SECONDS)
                case "raises":
                    raise ValueError("each time")
                case "hangs":
                    await asyncio.sleep(1e9)
                case _:
                    await asyncio.sleep(0.02)
        finally:
            running.discard(name)

    names = ["overruns", "raises", "hangs", *(f"well-{n}" for n in range(5))]
    app.every(INTERVAL_SECONDS, over=app.partitions("name", names), timeout=60)(body)
    settings = {"runtime": {"async_slots": 4, "statistics_seconds": 0}}
    with harness(app, seed=64, settings=settings) as test:
        test.advance(SECONDS)
        units = {name: test.unit(f"schedule:body:{name}") for name in names}

    step = INTERVAL_SECONDS * MICROSECONDS
    for name in names:
        dues = [due for due, _ in tries[name]]
        assert dues == sorted(dues)
        assert {(due - dues[0]) % step for due in dues} == {0}  # no drift
    for name in names[3:]:
        assert len(tries[name]) in (SECONDS // INTERVAL_SECONDS, SECONDS // INTERVAL_SECONDS + 1)
        assert max(late for _, late in tries[name]) < 0.1
        assert units[name].missed == 0
    overruns = units["overruns"]
    assert overruns.ticks == overruns.missed == len(tries["overruns"])
    for name in ("raises", "hangs"):  # degraded: 30 s → 5 min, the same occurrence, loud, alive
        assert units[name].ticks == 0
        assert len(set(tries[name])) >= 6
        assert len({due for due, _ in tries[name]}) == 1
        assert len(tries[name]) < 40
        assert units[name].retired_at is None

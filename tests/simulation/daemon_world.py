# SPDX-License-Identifier: Apache-2.0
"""A daemon in virtual time with seeded trouble, and what must hold at its end."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from penstock import Context, Penstock, TickContext
from penstock.clock import MICROSECONDS
from penstock.model.job import JobState
from penstock.model.schedule import UnitView
from penstock.testing import Harness, harness

INTERVAL_SECONDS = 10
INTERVAL = INTERVAL_SECONDS * MICROSECONDS
LIMIT_SECONDS = 5.0  # of one tick
HANGING = 0  # the partition whose host never answers
SLOTS = 16


@dataclass
class Record:
    """What one unit did, as its body saw it."""

    first: int | None = None
    running: bool = False
    tries: list[tuple[int, float, bool]] = field(default_factory=list)  # due, late by, went well
    cursors: list[int] = field(default_factory=list)  # as read


class DaemonWorld:
    """Partitions that are polled; some polls fail, one host hangs, some take their time."""

    def __init__(self, partitions: int, seed: int, *, events_every: int = 1) -> None:
        self.rand = random.Random(seed)
        self.seed = seed
        self.events_every = events_every  # hosts: those in between bring no events
        self.records: dict[int, Record] = {n: Record() for n in range(partitions)}
        self.handled: dict[str, int] = {}
        self.app = app = Penstock("world")
        self.ill: set[int] = set(self.rand.sample(range(1, partitions), partitions // 10))
        self.healed_at = float("inf")  # from then on nobody is ill
        hosts = app.partitions("host", range(partitions))

        @app.task()
        async def handle(ctx: Context, host: int, due: int) -> None:
            self.handled[ctx.job.key] = self.handled.get(ctx.job.key, 0) + 1

        @app.every(INTERVAL_SECONDS, over=hosts, timeout=LIMIT_SECONDS)
        async def poll(ctx: TickContext, host: int) -> None:
            record = self.records[host]
            assert not record.running, f"{ctx.job.key} overlaps itself, seed {seed}"
            record.running = True
            due = round(ctx.due_at.timestamp() * MICROSECONDS)
            if record.first is None:
                record.first = due
            late = self.test.clock.now() - due / MICROSECONDS
            cursor = ctx.cursor or 0
            record.cursors.append(cursor)
            went_well = False
            try:
                await self._call(host)
                ctx.cursor = cursor + 1
                if host % events_every == 0:
                    ctx.enqueue(handle.job(host, due), key=f"event {host} {due}")
                went_well = True
            finally:
                record.running = False
                record.tries.append((due, late, went_well))

    async def _call(self, host: int) -> None:
        if self.test.clock.monotonic() < self.healed_at:
            if host == HANGING:
                await asyncio.sleep(1e9)
            if host in self.ill and self.rand.random() < 0.5:
                raise self.rand.choice((ConnectionResetError("gone"), ValueError("odd reply")))
            if self.rand.random() < 0.01:
                await asyncio.sleep(self.rand.uniform(0.1, 4.5))
                raise ConnectionResetError("gone")
        await asyncio.sleep(self.rand.uniform(0.001, 0.05))

    def run(self, seconds: float, healthy_seconds: float) -> Audit:
        """Trouble for so long, and then peace."""
        settings = {"runtime": {"async_slots": SLOTS, "statistics_seconds": 0}}
        with harness(self.app, seed=self.seed, settings=settings) as test:
            self.test = test
            self.healed_at = seconds
            test.advance(seconds)
            test.advance(healthy_seconds)
            test.restart()  # what runs comes to its end
            return Audit(self, test)


class Audit:
    """What must hold, whatever happened."""

    def __init__(self, world: DaemonWorld, test: Harness) -> None:
        self.world = world
        self.units: dict[int, UnitView] = {
            host: test.unit(f"schedule:poll:{host}") for host in world.records
        }
        self.cursors: dict[int, Any] = {
            host: test.cursor(f"schedule:poll:{host}") for host in world.records
        }
        self.states = dict(test.states)
        self.broken = test.store.check().result()

    def safety(self) -> None:
        """Nominal times, counts, cursors and events are exact."""
        assert self.broken == []
        for host, record in self.world.records.items():
            unit, where = self.units[host], f"host {host}, seed {self.world.seed}"
            assert record.first is not None, where
            dues = [due for due, _, _ in record.tries]
            assert dues == sorted(dues), where
            assert all((due - record.first) % INTERVAL == 0 for due in dues), where  # no drift
            good = [due for due, _, went_well in record.tries if went_well]
            assert len(set(good)) == len(good) == unit.ticks, where
            assert unit.failed == len(record.tries) - len(good), where
            passed = (unit.due_at - record.first) // INTERVAL
            assert unit.ticks + unit.missed == passed, where
            assert record.cursors == sorted(record.cursors), where
            assert (self.cursors[host] or 0) == len(good), where

    def events(self) -> None:
        """Each occurrence that went well has brought its event, once; no other has."""
        wanted = {
            f"event {host} {due}"
            for host, record in self.world.records.items()
            for due, _, went_well in record.tries
            if went_well and host % self.world.events_every == 0
        }
        found = {key for key in self.states if key.startswith("event ")}
        assert found == wanted
        assert {self.states[key] for key in found} == {JobState.DONE}
        assert all(count == 1 for count in self.world.handled.values())

    def fairness(self) -> float:
        """Jain's index over those that were well all the time."""
        ill = {HANGING, *self.world.ill}
        ticks = [unit.ticks for host, unit in self.units.items() if host not in ill]
        return sum(ticks) ** 2 / (len(ticks) * sum(x * x for x in ticks))

    def lateness(self) -> float:
        """Of those that were well all the time and had not failed just before: the worst."""
        ill = {HANGING, *self.world.ill}
        worst = 0.0
        for host, record in self.world.records.items():
            if host in ill:
                continue
            before = -1
            for due, late, _ in record.tries:
                if due != before:  # a first try
                    worst = max(worst, late)
                before = due
        return worst

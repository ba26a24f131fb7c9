# SPDX-License-Identifier: Apache-2.0
"""Datasets kept current by a schedule: its ticks plan, and its plans end by themselves.

A tick takes the locks of its datasets and enqueues a plan, as a build does, and ends: the plan and
its locks belong to the unit of the schedule, and to no attempt. Daemons renew the locks; the end
step of the plan lets them go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.builds.build import TIDY_SLICE, Aside, Build, BuildScope
from penstock.builds.locks import LockHolder, format_holders
from penstock.builds.report import end_kept_plan
from penstock.clock import MICROSECONDS, Clock, to_micros
from penstock.definitions.context import TickContext
from penstock.definitions.schedule import Schedule
from penstock.errors import DatasetsLocked, Skip, StoreError
from penstock.ids import IdSource
from penstock.model.job import TERMINAL
from penstock.model.plan import (
    KEEPER,
    BuildRequest,
    PlanState,
    keeper_of,
)
from penstock.planning.plan_jobs import PlanKeys
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.parts import WorkerParts

LEFT_OUT_SECONDS = 300.0  # an occurrence that finds a plan running is left out, if the next is near
WAITS = "The plan of a schedule has to wait"

log = logging.getLogger("penstock.build")


def keeper_mark(app: str, unit: str) -> str:
    """By which locks of one schedule are known, whichever of its ticks has taken them."""
    return f"{app}/{unit}"


class DatasetKeeper:
    """Owns the ticks of one schedule of datasets in one run. Belongs to one loop."""

    def __init__(
        self,
        schedule: Schedule[..., Any],
        scope: BuildScope,
        request: Callable[[int], BuildRequest],
        store: Store,
        clock: Clock,
        ids: IdSource,
        ttl_seconds: float,
        aside: Aside,
    ) -> None:
        """Nothing is planned.

        Args:
            schedule: what is kept current, and when.
            scope: all datasets of the app.
            request: what is to be there at a time.
            store: where plans are kept.
            clock: the time.
            ids: names of ticks.
            ttl_seconds: how long its locks live without a heartbeat.
            aside: does what blocks.
        """
        self._schedule = schedule
        self._scope = scope
        self._request = request
        self._store = store
        self._clock = clock
        self._ids = ids
        self._ttl_seconds = ttl_seconds
        self._aside = aside
        self._retry = StoreRetry(log, clock, ids.random)

    async def tick(self, ctx: TickContext) -> None:
        """Plan to now and let the jobs run; whoever dies here is followed by the next try.

        Raises:
            DatasetsLocked: somebody else builds them, or its last plan still runs.
            UsageError: what is asked for cannot be planned.
        """
        build = self._build(to_micros(self._clock.now()))
        running = await self._running(build)
        if running is not None:
            raise self._wait(ctx, f"the plan {running} of an earlier tick still runs")
        answer = await build.try_lock()
        if not answer.taken:
            raise self._wait(ctx, format_holders(answer.held))
        try:
            await self._tidy()
            prepared = await build.prepare()
        except Exception:
            await build.release()
            raise
        if prepared is None:
            await build.release()
            if (ctx.cursor or {}).get("failed"):
                ctx.cursor = None  # it is there now
        elif prepared.plan is None:
            raise self._wait(ctx, f"the plan {prepared.plan_id} goes on, which was left")

    def _build(self, now: int) -> Build:
        unit = self._schedule.name
        holder = LockHolder(
            run_id=f"{unit}{KEEPER}{self._ids.new_id('tick')}",
            mark=keeper_mark(self._scope.app, unit),
            ttl_seconds=self._ttl_seconds,
            unit=unit,
        )
        return Build(
            self._scope,
            self._request(now),
            holder,
            self._store,
            self._clock,
            rand=self._ids.random,
            aside=self._aside,
        )

    async def _running(self, build: Build) -> str | None:
        """The plan of an earlier tick that goes on by itself; None: there is none."""
        plans = await self._retry.until_answered(WAITS, self._store.open_plans)
        locks = await self._retry.until_answered(WAITS, self._store.locks)
        holding = {lock.run_id for lock in locks if lock.alive}
        for plan in plans:
            same = plan.digest == build.digest or plan.root != self._scope.root.id
            ours = keeper_of(plan.run_id) == self._schedule.name and same
            if not ours or plan.state is not PlanState.RUNNING:
                continue
            end = partial(self._store.job, PlanKeys(plan.id).end)
            last = await self._retry.until_answered(WAITS, end)
            if last is None or last.state in TERMINAL:  # somebody has cancelled it
                ask = partial(self._retry.until_answered, WAITS)
                await end_kept_plan(self._store, ask, plan.id)
            elif plan.run_id in holding:
                return plan.id
        return None

    def _wait(self, ctx: TickContext, why: str) -> Exception:
        """How an occurrence ends that cannot plan now: left out, or tried again soon."""
        now = to_micros(self._clock.now())
        following = self._schedule.timing.after(to_micros(ctx.due_at.timestamp()), now)
        if following.at - now <= LEFT_OUT_SECONDS * MICROSECONDS:
            return Skip(why)
        return DatasetsLocked(why)

    async def _tidy(self) -> None:
        tidy = partial(self._store.tidy_manifests, TIDY_SLICE)
        while (await self._retry.until_answered(WAITS, tidy)).more:
            pass


class KeptLocks(WorkerObserver):
    """Renews the locks that schedules of a daemon have, whoever has taken them."""

    def __init__(
        self, marks: frozenset[str], parts: WorkerParts, ttl_seconds: float, beat_seconds: float
    ) -> None:
        self._marks = marks
        self._store = parts.store
        self._clock = parts.clock
        self._loop = parts.loop
        self._ttl_seconds = ttl_seconds
        self._beat_seconds = beat_seconds
        self._next_monotonic = parts.clock.monotonic()
        self._is_beating = False

    def ticked(self, tick: Tick) -> None:
        is_due = self._clock.monotonic() >= self._next_monotonic
        if is_due and tick.is_registered and not (tick.is_stopping or self._is_beating):
            self._is_beating = True
            self._loop.spawn(self._beat())

    async def _beat(self) -> None:
        """An unreachable store is asked again; nobody can take them meanwhile."""
        try:
            locks = await self._store.locks()
            for run_id in sorted({lock.run_id for lock in locks if lock.mark in self._marks}):
                await self._store.beat_locks(run_id, self._ttl_seconds)
        except StoreError as error:
            log.debug("The locks of kept datasets were not renewed: %s", error)
        finally:
            self._next_monotonic = self._clock.monotonic() + self._beat_seconds
            self._is_beating = False

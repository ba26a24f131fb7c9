# SPDX-License-Identifier: Apache-2.0
"""Runs a worker inside a user's program, without a supervisor (`app.run()`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.clock import Clock
from penstock.ids import SystemIds
from penstock.model.job import JobState, WorkerId
from penstock.model.run import RunReport
from penstock.model.views import Outlook
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.worker.heartbeat import HeartbeatThread
from penstock.worker.log_lines import StatisticsLine
from penstock.worker.loop_watchdog import LoopWatchdog
from penstock.worker.parts import LeaseKeeper, Stopping
from penstock.worker.run_progress import ProgressReporter
from penstock.worker.signals import borrowed_signals
from penstock.worker.slot_table import SlotTable
from penstock.worker.worker import Worker

NEW_OBJECTS = 20_000  # between two looks at the young ones
SWITCH_SECONDS = 0.0005  # after so long a thread that runs lets another one run
WAITS = "The report of the run has to wait"

log = logging.getLogger("penstock.worker")


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Tune garbage collection and thread switches for a worker; bolder settings stay."""
    thresholds, switches = gc.get_threshold(), sys.getswitchinterval()
    if 0 < thresholds[0] < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *thresholds[1:])
    if switches > SWITCH_SECONDS:
        sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if switches > SWITCH_SECONDS:
            sys.setswitchinterval(switches)


class LeaseTimes(Protocol):
    """How long a lease lives, and how often it is renewed."""

    @property
    def lease_ttl_seconds(self) -> float: ...

    @property
    def beat_seconds(self) -> float: ...


class RunStart(Protocol):
    """What comes before the work: preflights, and units that are armed."""

    def stop(self) -> None: ...

    async def run(self) -> object | None:
        """Run what comes before the work; None if no work is to follow."""
        ...


class EmbeddedRun:
    """Owns the heartbeat, the loop watchdog and the signals of one embedded run."""

    def __init__(self, store: Store, clock: Clock, times: LeaseTimes, *, signals: bool) -> None:
        """A run that has not begun.

        Args:
            store: of the app.
            clock: the time.
            times: of its lease.
            signals: it is stopped by signals; else they are its host's, who cancels it.
        """
        self._store = store
        self._clock = clock
        self._times = times
        self._signals = signals
        self._retry = StoreRetry(log, clock, SystemIds().random)
        self._stopped = 0

    async def run(
        self,
        build: Callable[[LeaseKeeper, SlotTable], Worker],
        slots: int,
        run_id: str,
        statistics: StatisticsLine,
        progress: ProgressReporter,
        start: RunStart | None = None,
    ) -> RunReport:
        """Start, if there is something to start, and work."""
        loop = asyncio.get_running_loop()
        if start is not None:
            with self._stopped_by(lambda: loop.call_soon_threadsafe(self._stop_start, start)):
                if await start.run() is None:
                    return RunReport(run_id, 0, 0, 0, stopped=True)
        table = SlotTable.create(slots)
        beat = HeartbeatThread(
            self._store, self._clock, self._times.lease_ttl_seconds, self._times.beat_seconds
        )
        worker = build(beat, table)
        watch = LoopWatchdog(loop, table, self._clock, worker.name_of)
        beat.start()
        watch.start()
        beside = [loop.create_task(statistics.run()), loop.create_task(progress.run())]
        try:
            with self._stopped_by(lambda: loop.call_soon_threadsafe(self._stop, worker)):
                await self._until_done(worker)
        finally:
            for task in beside:
                task.cancel()
            watch.stop()
            beat.stop()
            table.close()
        outlook = await self._outlook(run_id)
        progress.end(outlook)
        ended = outlook.ended_in_run
        return RunReport(
            run_id,
            ended.get(JobState.DONE, 0),
            ended.get(JobState.SKIPPED, 0),
            ended.get(JobState.ERROR, 0),
            self._stopped > 0,
            " ".join(stop.sentence for stop in worker.stops) or None,
            " ".join(worker.ended_schedules) or None,
            " ".join(one.sentence for one in worker.closed_accounts) or None,
        )

    def _stopped_by(self, stop: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        return borrowed_signals(stop) if self._signals else contextlib.nullcontext()

    async def _outlook(self, run_id: str) -> Outlook:
        """What came of the run; who has drained a queue waits for an unreachable store."""
        return await self._retry.until_answered(
            WAITS,
            lambda: self._store.outlook(WorkerId(""), run_id),
            wanted=lambda: not self._stopped,
        )

    async def _until_done(self, worker: Worker) -> None:
        """Run the worker; if we are cancelled, stop it gracefully first; the second time, now."""
        task = asyncio.get_running_loop().create_task(worker.run())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                worker.stop(Stopping.GRACEFUL if cancelled is None else Stopping.NOW)
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _stop_start(self, start: RunStart) -> None:
        self._stopped += 1
        start.stop()

    def _stop(self, worker: Worker) -> None:
        """First signal: graceful; second: now."""
        self._stopped += 1
        worker.stop(Stopping.GRACEFUL if self._stopped == 1 else Stopping.NOW)

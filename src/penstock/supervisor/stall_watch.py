# SPDX-License-Identifier: Apache-2.0
"""Stall watch: warns of a worker that is not responding, and continues one that was stopped.

A worker warns of a blocked loop itself, from a thread. A C call that keeps the GIL silences that
thread as well; only another process can see it then.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf

from penstock.errors import StoreError
from penstock.model.dataset import task_name
from penstock.model.job import JobId
from penstock.process_identity import is_stopped
from penstock.stores.protocol import JobFilter, JobStore
from penstock.stores.store_future import within
from penstock.worker.slot_table import SlotSnapshot

STOPPED_SECONDS = 2.0  # a worker that is stopped for so long is continued
AGAIN_SECONDS = 60.0  # and one that is stopped again so soon is to be killed
STALLED_SECONDS = 2.0  # the worker's own warning comes after one second
NAMED_MAX = 5  # jobs that are named
NAMES_SECONDS = 0.5  # for each, at most

log = logging.getLogger("penstock.supervisor")


class StoppedWorkers:
    """Continues workers that a signal has stopped which was not the supervisor's, once in a while.

    A task that stops its own worker would keep its lease, and the run, for ever. Whoever stops the
    supervisor, too, has time to do so before a worker goes on.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # by process id: seen stopped
        self._continued: dict[int, float] = {}  # when

    def look(self, pids: Iterable[int], now: float) -> list[int]:
        """Look at all workers; those that are to be killed."""
        stopped = {pid: self._since.get(pid, now) for pid in pids if is_stopped(pid)}
        self._since = stopped
        stubborn = []
        for pid, since in stopped.items():
            if now - since < STOPPED_SECONDS:
                continue
            if now - self._continued.get(pid, -inf) < AGAIN_SECONDS:
                stubborn.append(pid)
                continue
            self._continued[pid] = now
            log.warning("Worker %d was stopped by a signal and is continued.", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return stubborn

    def forget(self) -> None:
        """The supervisor stood still itself: what it saw before says nothing."""
        self._since = {}


class StallWatch:
    """Warns once per stall of each worker. Decides nothing."""

    def __init__(self) -> None:
        self._warned_for: dict[int, float] = {}  # by process id: the loop turn before the stall

    def look(
        self,
        pid: int,
        snapshot: SlotSnapshot | None,
        now: float,
        store: JobStore,
        checks: Sequence[str] = (),
    ) -> bool:
        """Look at one worker; True if its loop has not turned for too long.

        What runs has a name in the store; preflights have not, so theirs are given.
        """
        if snapshot is None or not snapshot.running or not snapshot.loop_turn_monotonic:
            return False
        turn = snapshot.loop_turn_monotonic
        if now - turn < STALLED_SECONDS:
            return False
        if self._warned_for.get(pid) != turn:
            self._warned_for[pid] = turn
            try:
                names = _checks(checks) if checks else self._names(snapshot, store)
            except (StoreError, TimeoutError) as error:
                names = f"jobs that cannot be named ({error})"
            log.warning(
                "Worker %d has not responded for %.1f s; it runs %s.", pid, now - turn, names
            )
        return True

    def forget(self, pid: int) -> None:
        """The process is gone; another one may get its number."""
        self._warned_for.pop(pid, None)

    def _names(self, snapshot: SlotSnapshot, store: JobStore) -> str:
        names = []
        for record in snapshot.running[:NAMED_MAX]:
            reply = store.jobs(JobFilter(), JobId(record.ref.id - 1), 1)
            for job in within(reply, NAMES_SECONDS):
                names.append(f"job {job.key!r} of task {task_name(job.task)!r}")
        more = len(snapshot.running) - NAMED_MAX
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _checks(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    listed = ", ".join(f"preflight {name!r}" for name in names[:NAMED_MAX])
    return listed + (f" and {more} more" if more > 0 else "")

# SPDX-License-Identifier: Apache-2.0
"""What the parts of a worker share: configuration, lease keeper, background tasks, totals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from penstock.model.job import WorkerId
from penstock.model.run import CapacityValue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told at its start."""

    run_id: str
    slots: Mapping[str, int]  # by kind: async, thread, process
    lease_ttl_seconds: float
    grace_seconds: float
    beat_seconds: float = 0.0  # between two renewals of its lease; 0: nobody knows
    place: int = 0  # which of the workers of its run it is; who replaces it has the same
    drain: bool = False
    until: str | None = None  # drains until the job of this key has ended, whatever else is left
    solo: bool = False  # runs suspects only, one at a time, and ends when there are none
    runs_suspects: bool = False  # runs suspects itself, when nothing else runs (no supervisor)
    capacity: Mapping[str, CapacityValue] = field(default_factory=dict)  # for whoever asks why
    journal_retention_seconds: float | None = None  # None: no call is kept
    unserved: frozenset[str] = frozenset()  # tasks for others: no part of their provider is ours


class LeaseKeeper(Protocol):
    """Whoever renews this worker's lease, outside of the loop."""

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        """Renew this one from now on."""
        ...

    def believed_until(self) -> float:
        """The monotonic time until which the lease is certain."""
        ...


class Background:
    """Owns the short works of one loop, so that none is lost and no failure stays unseen."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """What nobody expected ends the worker: without this part of it, it would only hang."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


class Stopping(Enum):
    """How is a worker told to stop?"""

    RECYCLE = 0  # lease nothing more, and end when what runs has ended: another one takes over
    GRACEFUL = 1
    NOW = 2


@dataclass(slots=True)
class Totals:
    """What a worker has done so far."""

    ended: int = 0  # attempts whose end is durable
    retries: int = 0  # attempts that failed, and may be tried again
    put_back: int = 0  # attempts that a provider refused; they come back uncharged
    refused: int = 0  # ends that the store did not take

    def accept(self, count: int) -> None:
        """So many more ends are durable."""
        self.ended += count

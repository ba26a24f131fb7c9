# SPDX-License-Identifier: Apache-2.0
"""The four events of a worker: turned, started, ended and ticked, and whoever observes them.

Status, accounting, the attempt log, totals, budgets and maintenance subscribe. The core of a worker
calls none of them by name, and none of them steers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.model.job import WorkerId
from penstock.worker.attempt import Attempt, AttemptEnd


@dataclass(frozen=True, slots=True)
class Tick:
    """A worker has looked at its own lease and its deadlines, as it does some times a second."""

    worker: WorkerId  # its name; empty before it has signed on for the first time
    is_registered: bool  # the store knows it by this name
    is_stopping: bool  # it was told to stop
    late_seconds: float  # by which the loop came too late


class WorkerObserver:
    """Observes a worker: subclasses override the events that they want to hear of."""

    def turned(self, goes_on: bool) -> None:
        """A turn of the loop has started what it could; `goes_on`: it was allowed to."""

    def started(self, attempt: Attempt) -> None:
        """An attempt has begun in a slot."""

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        """An attempt has ended, or was given up; its end is on its way to the store."""

    def ticked(self, tick: Tick) -> None:
        """The worker has looked at itself."""


class Observers:
    """Passes each event on, in the order of subscription, to those who have a method for it."""

    def __init__(self) -> None:
        self._turned: list[Callable[[bool], None]] = []
        self._started: list[Callable[[Attempt], None]] = []
        self._ended: list[Callable[[Attempt, AttemptEnd], None]] = []
        self._ticked: list[Callable[[Tick], None]] = []

    def subscribe(self, observers: Iterable[WorkerObserver]) -> None:
        """Let these hear of what happens from now on."""
        none = WorkerObserver
        for one in observers:
            own = type(one)
            if own.turned is not none.turned:
                self._turned.append(one.turned)
            if own.started is not none.started:
                self._started.append(one.started)
            if own.ended is not none.ended:
                self._ended.append(one.ended)
            if own.ticked is not none.ticked:
                self._ticked.append(one.ticked)

    def turned(self, goes_on: bool) -> None:
        for tell in self._turned:
            tell(goes_on)

    def started(self, attempt: Attempt) -> None:
        for tell in self._started:
            tell(attempt)

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        for tell in self._ended:
            tell(attempt, end)

    def ticked(self, tick: Tick) -> None:
        for tell in self._ticked:
            tell(tick)

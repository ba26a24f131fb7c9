# SPDX-License-Identifier: Apache-2.0
"""The four events of a worker: turned, started, ended and ticked, and whoever observes them.

Status, accounting and the attempt log subscribe; they only watch. Whatever acts on an end or a tick
(completer, budgets, prefetch window, drain, cancellations, maintenance, recycling) is called by
name in `worker.py`, and an end reaches it before those who watch.
"""

from __future__ import annotations

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
        """An attempt has ended, or its body was detached; its end is on its way to the store."""

    def ticked(self, tick: Tick) -> None:
        """The worker has looked at itself."""

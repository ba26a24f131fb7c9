# SPDX-License-Identifier: Apache-2.0
"""Who shows a run to a person, and hears what that person wishes?"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from penstock.stores.protocol import Store
from penstock.supervisor.protocol import Checking


class Wish(StrEnum):
    """What a person may ask of a run while it goes."""

    PAUSE = "pause"  # nobody gets further jobs
    RESUME = "resume"
    DRAIN = "drain"  # end when nothing is left
    STOP = "stop"  # as SIGINT does


class Course(StrEnum):
    """Where does a run go?"""

    CHECKING = "checking"  # preflights run, or schedules are armed: no work yet
    PLANNING = "planning"  # a build waits for its datasets, or is planned: no work yet
    WORKING = "working"  # until somebody stops it
    DRAINING = "draining"  # until nothing is left
    STOPPING = "stopping"


class Display(Protocol):
    """A face of the supervisor; it only looks, and passes wishes on."""

    @property
    def pipes_workers(self) -> bool:
        """Shall what workers write come through `line`?"""
        ...

    def started(self, store: Store, run_id: str, course: Course = Course.WORKING) -> None: ...

    def tick(self, store: Store, course: Course, checking: Checking | None = None) -> None:
        """Called a few times a second; `checking`: how far the preflights are, if they run."""
        ...

    def line(self, text: str) -> None:
        """A line that a worker wrote."""
        ...

    def keys(self) -> int | None:
        """The descriptor that a person types on; None: nobody can, now."""
        ...

    def typed(self) -> Sequence[Wish]:
        """What was wished for; called when there is something to read."""
        ...

    def close(self, run_id: str | None) -> None:
        """Say what the run did; nothing without a name: it failed, or its store is unreachable."""
        ...

# SPDX-License-Identifier: Apache-2.0
"""Does a worker still answer, though its lease goes on?

A worker that was killed cannot say so. If it was of this machine, its process is known to be gone;
else it shows when its lease was to be renewed, and was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.model.job import WorkerId
from penstock.model.views import WorkerView
from penstock.model.worker import read_status

OVERDUE_BEATS = 1.5  # without a renewal for so many beats nobody is there, most likely


class Silence(msgspec.Struct, frozen=True):
    """A worker that no longer answers, and holds what it held until its lease ends."""

    worker: WorkerId
    run_id: str
    host: str
    pid: int
    lease_seconds: float  # until its lease ends
    is_gone: bool  # its process certainly is; else it has only not been heard of
    jobs: int  # that it held when it last told of itself

    @property
    def name(self) -> str:
        """Who it is to people."""
        return f"{self.worker!r} (pid {self.pid} on {self.host})"


def silence_of(view: WorkerView, is_gone: Callable[[str], bool]) -> Silence | None:
    """How a worker is silent; None if it answers, or if its lease is over anyway."""
    status = read_status(view.status) if view.alive else None
    if status is None:
        return None
    gone = bool(status.process) and is_gone(status.process)
    unheard = status.lease_ttl_seconds - view.lease_seconds
    overdue = status.beat_seconds > 0 and unheard > OVERDUE_BEATS * status.beat_seconds
    if not (gone or overdue):
        return None
    return Silence(
        view.id,
        view.run_id,
        view.host,
        view.pid,
        view.lease_seconds,
        gone,
        status.running + status.waiting,
    )


def silent_workers(
    views: Iterable[WorkerView], is_gone: Callable[[str], bool]
) -> dict[WorkerId, Silence]:
    """Those that no longer answer, in their order."""
    found = (silence_of(view, is_gone) for view in views)
    return {silence.worker: silence for silence in found if silence is not None}


def answering(views: Iterable[WorkerView], is_gone: Callable[[str], bool]) -> list[WorkerView]:
    """Without those that no longer answer."""
    return [view for view in views if silence_of(view, is_gone) is None]

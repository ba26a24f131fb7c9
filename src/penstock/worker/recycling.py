# SPDX-License-Identifier: Apache-2.0
"""When is a worker process no longer fit for new work?

When bodies that were given up still run in it, or when a task has changed what all tasks share:
the working folder, the file mode mask, or who hears signals. Under a supervisor such a worker
leases nothing more, ends when what runs has ended, and another one takes its place.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping

from penstock.clock import Clock
from penstock.worker.attempt import Attempt
from penstock.worker.executor import JobExecutor
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.parts import Stopping

PATIENCE_SECONDS = 5.0  # a body that was given up may still come to its end
LOOK_SECONDS = 1.0  # between two looks at the process

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STATUS = "/proc/self/status"


class Wear:
    """Remembers how the process was, and says what has become of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look_at = clock.monotonic() + LOOK_SECONDS
        self._fresh = look()

    def reason(self, abandoned: Mapping[Attempt, float]) -> str | None:
        """Why this worker should be replaced; None: it need not."""
        now = self._clock.monotonic()
        for attempt, since in abandoned.items():
            if now >= since + PATIENCE_SECONDS:
                job = attempt.job
                return f"job {job.key!r} of task {job.task!r} was given up and still runs"
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_SECONDS
        return next(
            (
                f"a task has changed the {what} of the process"
                for what, value in look().items()
                if value != self._fresh[what]
            ),
            None,
        )


def look() -> dict[str, object]:
    """What all bodies of a process share."""
    return {
        "working folder": _folder(),
        "file mode mask": _mask(),
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
    }


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was removed


def _mask() -> str | None:
    """The umask; to ask the process itself would change it for a moment."""
    try:
        with open(_STATUS, encoding="ascii", errors="replace") as lines:
            return next((line for line in lines if line.startswith("Umask")), None)
    except OSError:
        return None


log = logging.getLogger("penstock.worker")


class WearWatch(WorkerObserver):
    """Looks now and again; stops a worker that is worn, and says why."""

    def __init__(
        self,
        wear: Wear,
        slots: JobExecutor,
        stop: Callable[[Stopping], None],
        say: Callable[[str], None],
    ) -> None:
        self._wear = wear
        self._slots = slots
        self._stop = stop
        self._say = say

    def ticked(self, tick: Tick) -> None:
        if tick.is_stopping:
            return
        reason = self._wear.reason(self._slots.abandoned)
        if reason is not None:
            log.warning("This worker is replaced: %s.", reason)
            self._stop(Stopping.WORN)
            self._say(reason)

# SPDX-License-Identifier: Apache-2.0
"""Recycling of worker processes that are no longer fit for new work.

That is when detached bodies still run in one, or when a task has changed what all tasks
share: the working folder, the file mode mask, or the signal handlers. Under a supervisor such a
worker leases nothing more, ends when what runs has ended, and another one takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.process_identity import process_state
from penstock.worker.executor import JobExecutor
from penstock.worker.observer import Tick
from penstock.worker.parts import Stopping

PATIENCE_SECONDS = 5.0  # a detached body may still come to its end
LOOK_SECONDS = 1.0  # between two looks at the process

log = logging.getLogger("penstock.worker")


class Recycling:
    """Remembers the process as it was; stops a worker that has to be recycled, and says why."""

    def __init__(
        self,
        clock: Clock,
        executor: JobExecutor,
        stop: Callable[[Stopping], None],
        recycle: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._executor = executor
        self._stop = stop
        self._recycle = recycle  # tells the supervisor the reason
        self._look_at = clock.monotonic() + LOOK_SECONDS
        self._fresh = process_state()

    def ticked(self, tick: Tick) -> None:
        reason = None if tick.is_stopping else self._reason()
        if reason is not None:
            log.warning("%s: this worker is replaced.", reason)
            self._stop(Stopping.RECYCLE)
            self._recycle(reason)

    def _reason(self) -> str | None:
        """Why this worker should be replaced; None: it need not."""
        now = self._clock.monotonic()
        for attempt, since in self._executor.detached.items():
            if now >= since + PATIENCE_SECONDS:
                job = attempt.job
                return f"Job {job.key!r} of task {job.task!r} was detached and still runs"
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_SECONDS
        return next(
            (
                f"A task has changed the {what} of the process"
                for what, value in process_state().items()
                if value != self._fresh[what]
            ),
            None,
        )

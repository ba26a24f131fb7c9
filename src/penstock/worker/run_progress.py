# SPDX-License-Identifier: Apache-2.0
"""Reports the progress of a run to the program that it runs in (`on_progress=`).

The program's function is called on the loop's thread. It must be quick; whatever it raises switches
it off, and nothing else.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Mapping

from penstock.clock import Clock
from penstock.errors import StoreError, UsageError
from penstock.model.job import JobKind, JobState, WorkerId, kind_of_name
from penstock.model.run import OnProgress, RunProgress
from penstock.model.views import Outlook
from penstock.stores.protocol import Store

PROGRESS_SECONDS = 1.0  # between two calls
RATE_SAMPLES = 11  # the rate is that of the last ten seconds

log = logging.getLogger("penstock.worker")


def check_on_progress(on_progress: OnProgress | None) -> None:
    """Raise UsageError for what can not be called, or would have to be awaited."""
    given: object = on_progress  # whatever a user without a type checker wrote
    if given is None:
        return
    if not callable(given) or inspect.iscoroutinefunction(given):
        raise UsageError(
            f"on_progress= is a plain function of one RunProgress, got {given!r:.100}; from "
            "it, an async one is started with asyncio.create_task(...)."
        )


class ProgressReporter:
    """Owns what a run has last reported. Belongs to one loop."""

    def __init__(
        self, run_id: str, store: Store, clock: Clock, on_progress: OnProgress | None
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._clock = clock
        self._on_progress = on_progress
        self._began = clock.monotonic()
        self._samples = deque([(self._began, 0)], maxlen=RATE_SAMPLES)

    async def run(self) -> None:
        """Report about once a second, until it is cancelled."""
        while self._on_progress is not None:
            await self._clock.sleep(PROGRESS_SECONDS)
            try:
                outlook = await self._store.outlook(WorkerId(""), self._run_id)
            except StoreError:
                continue  # the run tells of it; counts come when it can be read again
            self._report(outlook, is_last=False)

    def end(self, outlook: Outlook) -> None:
        """Report how it stands at the end."""
        self._report(outlook, is_last=True)

    def _report(self, outlook: Outlook, *, is_last: bool) -> None:
        on_progress = self._on_progress
        if on_progress is None:
            return
        try:
            on_progress(self._progress(outlook, is_last=is_last))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # its CancelledError is not ours
            self._on_progress = None
            log.exception("on_progress= has failed and is not called again; the run goes on.")

    def _progress(self, outlook: Outlook, *, is_last: bool) -> RunProgress:
        ended, states = outlook.ended_in_run, _open_states(outlook)
        now = self._clock.monotonic()
        self._samples.append((now, sum(ended.values())))
        (since, before), (_, count) = self._samples[0], self._samples[-1]
        return RunProgress(
            run_id=self._run_id,
            done=ended.get(JobState.DONE, 0),
            skipped=ended.get(JobState.SKIPPED, 0),
            errors=ended.get(JobState.ERROR, 0),
            cancelled=ended.get(JobState.CANCELLED, 0),
            running=states.get(JobState.IN_PROGRESS, 0),
            queued=states.get(JobState.QUEUED, 0),
            waiting=states.get(JobState.WAITING, 0),
            rate=(count - before) / (now - since) if now > since else 0.0,
            seconds=now - self._began,
            is_last=is_last,
        )


def _open_states(outlook: Outlook) -> Mapping[JobState, int]:
    """Open jobs by state; units of schedules, which never end, do not count."""
    states: dict[JobState, int] = {}
    for task, counts in outlook.open_by_task.items():
        if kind_of_name(task) is not JobKind.TICK:
            for state, count in counts.items():
                states[state] = states.get(state, 0) + count
    return states

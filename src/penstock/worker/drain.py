# SPDX-License-Identifier: Apache-2.0
"""The end of a drain: when a worker has nothing more to do, checked whenever it is idle.

A draining worker ends when no job is left: delayed ones and those that others hold are waited
for. Jobs of tasks that nobody alive knows cannot be waited for; they are named instead. Ticks never
end and do not count: when only they are left, no more of them begin, those that run come to their
end, and whatever they bring is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from math import inf

from penstock.clock import MICROSECONDS
from penstock.errors import TRANSIENT, StoreError
from penstock.model.job import (
    TERMINAL,
    ErrorCategory,
    Job,
    JobId,
    JobKind,
    JobState,
    WorkerId,
    kind_of_name,
)
from penstock.model.views import Outlook
from penstock.sentences import command, counted
from penstock.stores.protocol import JobFilter
from penstock.worker.accounts import AccountHold
from penstock.worker.attempt import Attempt
from penstock.worker.budgets import BudgetHold
from penstock.worker.completer import Completer
from penstock.worker.executor import JobExecutor
from penstock.worker.kind import ServedTask
from penstock.worker.lease_loop import SAY_AFTER_SECONDS, LeaseLoop, paused_reason
from penstock.worker.parts import WorkerConfig, WorkerParts
from penstock.worker.prefetch import PrefetchWindow

log = logging.getLogger("penstock.worker")


LOOK_SECONDS = 0.2  # between two questions whether anything is left
LOOK_SECONDS_MAX = 1.0  # the same while nobody runs anything
LOOK_AT_MAX = 1_000  # jobs whose last errors are read
LOOK_AT_SECONDS = 30.0  # between two such readings
CHECK_SECONDS = 60.0  # between two checks that indexes find what is left: each reads every job
WAITS = "Looking for what is left has to wait"

#: Units of schedules never end, and builds wait for their own jobs. By name, since the tasks may be
#: those of other workers.
_NOT_WAITED_FOR = (JobKind.TICK, JobKind.SLICE, JobKind.STEP)

_States = Mapping[str, Mapping[JobState, int]]


class Drain:
    """Decides whether a worker may end by itself. Belongs to one loop."""

    def __init__(
        self,
        config: WorkerConfig,
        parts: WorkerParts,
        tasks: Mapping[str, ServedTask],
        holds: tuple[BudgetHold, AccountHold],
        window: PrefetchWindow,
        executor: JobExecutor,
        completer: Completer,
        lease_loop: LeaseLoop,
    ) -> None:
        """Nothing is known yet.

        Args:
            config: of the worker.
            parts: of the worker.
            tasks: that the app has, also those that other workers serve.
            holds: know the tasks that a budget or a closed account holds back.
            window: where jobs wait.
            executor: where they run.
            completer: where their ends wait.
            lease_loop: asks for more.
        """
        self._config = config
        self._store = parts.store
        self._clock = parts.clock
        self._retry = parts.retry
        self._loop = parts.loop
        self._tasks = tasks
        self._budgets, self._accounts = holds
        self._window = window
        self._executor = executor
        self._completer = completer
        self._lease_loop = lease_loop
        self.ends = config.drain  # with the work; else only a budget ends it
        self._is_looking = False
        self._look_again = asyncio.Event()  # somebody has done something
        self._recurring = {
            name for name, one in tasks.items() if one.kind.recurs and name not in config.unserved
        }
        self._counts_ticks = bool(self._recurring)  # schedules run here, and may go on
        self._waiting_since: float | None = None
        self._is_checked = False  # that the store finds what is left, since something ended
        self._checked_at = -inf
        self._read_errors_at = -inf
        self.outlook: Outlook | None = None  # as it was last seen
        self.finished = False
        self.is_out_of_money = False  # all that could be done waits for a budget or an account
        self.left_behind = 0  # open jobs of tasks nobody knows, and what waits for them

    @property
    def is_reached(self) -> bool:
        """Nothing runs here and nothing is on its way, and that is all there was."""
        if len(self._window):
            return False
        if self._config.solo:
            return self._lease_loop.found_nothing
        return self.is_out_of_money or (self.ends and self.finished)

    def ended(self, attempt: Attempt) -> None:
        """Whoever waits to look again need not wait longer."""
        if attempt.job.task not in self._recurring:
            self._is_checked = False
            self._look_again.set()

    def look_if_idle(self, worker: WorkerId) -> None:
        """Ask the store what is left, if that is of interest now."""
        if (self.ends or self._budgets.tasks) and not self._is_looking and self._is_idle():
            self._is_looking = True
            self._loop.spawn(self._look(worker))

    def _is_idle(self) -> bool:
        """Nothing but ticks runs, waits or is on its way, and the store had nothing more."""
        running = self._executor.running
        if self._counts_ticks:
            return all(one.job.task in self._recurring for one in running.values())
        busy = running or self._completer.pending or len(self._window)
        return not busy and self._lease_loop.is_idle

    async def _look(self, worker: WorkerId) -> None:
        try:
            # Only a drain ends at a closed account: else it is probed until it is open.
            await self.look(
                worker, self._budgets.tasks | (self._accounts.tasks if self.ends else frozenset())
            )
            if self.finished and self._counts_ticks:
                self._close_schedules()
            if not (self.finished or self.is_out_of_money):
                self._look_again.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.pause_seconds()):
                        await self._look_again.wait()
        except StoreError as error:
            self._loop.fail(error)
        finally:
            self._is_looking = False
            self._loop.wake()

    def _close_schedules(self) -> None:
        """No job is left: no tick begins any more. Those that run may still bring some."""
        self._counts_ticks, self.finished = False, False
        for name in self._recurring:
            self._window.hold_back(name)
        self._lease_loop.look_again()

    async def look(self, worker: WorkerId, held: frozenset[str] = frozenset()) -> None:
        """Ask the store what is left; one that cannot answer now is waited for.

        Args:
            worker: who asks.
            held: tasks that a budget or a closed account holds back.
        """
        until = self._config.until
        try:
            outlook = await self._store.outlook(worker, self._config.run_id)
            last = None if until is None else await self._store.job(until)
        except TRANSIENT as error:
            self._retry.refused(WAITS, error)
            return
        self._retry.answered(WAITS)
        self.outlook = outlook
        self.is_out_of_money = bool(held) and self._is_held_back(outlook, held)
        if self.is_out_of_money or not self.ends:
            return
        self._lease_loop.next_due_at = outlook.next_due_at
        if until is not None:
            self.finished = last is None or last.state in TERMINAL
            if not self.finished:
                await self._say_reason(outlook, outlook.open_by_task)
            return
        known, unknown = self._split(outlook)
        stuck = known > 0 and self._is_stuck(outlook)
        self.finished = known == 0 or stuck
        if self.finished:
            self.left_behind = sum(unknown.values()) + (known if stuck else 0)
            self._tell_left(unknown, known if stuck else 0)
        else:
            await self._say_reason(outlook, _jobs(outlook))

    def pause_seconds(self) -> float:
        """Seconds until it is worth looking again."""
        outlook = self.outlook
        if not self.ends or outlook is None or outlook.suspects:
            return LOOK_SECONDS
        if any(states.get(JobState.IN_PROGRESS) for states in outlook.open_by_task.values()):
            return LOOK_SECONDS
        if outlook.next_due_at is None:
            return LOOK_SECONDS_MAX
        until_due = outlook.next_due_at / MICROSECONDS - self._clock.now()
        return min(max(until_due, LOOK_SECONDS), LOOK_SECONDS_MAX)

    def _split(self, outlook: Outlook) -> tuple[int, dict[str, int]]:
        known, unknown = 0, {}
        for task, states in _jobs(outlook).items():
            count = sum(states.values())
            if task in self._tasks or task in outlook.served_elsewhere:
                known += count
            elif count:
                unknown[task] = count
        return known, unknown

    def _is_held_back(self, outlook: Outlook, held: frozenset[str]) -> bool:
        """Nobody runs anything, and whatever could be taken is of tasks that are held back."""
        is_drain = self.ends and self._config.until is None  # a build ends with its own slices
        ours = {
            task: states
            for task, states in (_jobs(outlook) if is_drain else outlook.open_by_task).items()
            if task in self._tasks
            or (task in outlook.served_elsewhere and kind_of_name(task) is not JobKind.TICK)
        }
        if any(states.get(JobState.IN_PROGRESS) for states in ours.values()):
            return False
        queued = {task for task, states in ours.items() if states.get(JobState.QUEUED)}
        return bool(queued) and queued <= held

    def _is_stuck(self, outlook: Outlook) -> bool:
        """Everything we could do waits for jobs that nobody can do."""
        return not any(
            states.get(state)
            for task, states in _jobs(outlook).items()
            if task in self._tasks or task in outlook.served_elsewhere
            for state in (JobState.QUEUED, JobState.IN_PROGRESS)
        ) and any(
            states.get(JobState.QUEUED)
            for task, states in _jobs(outlook).items()
            if task not in self._tasks
        )

    def _tell_left(self, unknown: dict[str, int], stuck: int) -> None:
        for task, count in sorted(unknown.items()):
            log.warning(
                "%s of task %r %s left: this app does not define it, and no other worker does. "
                "Define it where the app is imported, or cancel what is left: %s",
                counted(count, "job"),
                task,
                "is" if count == 1 else "are",
                command("queue", "cancel", "--task", task, "--yes"),
            )
        if stuck:
            waits = "waits for those and is" if stuck == 1 else "wait for those and are"
            log.warning("%s %s left as well.", counted(stuck, "job"), waits)

    async def _say_reason(self, outlook: Outlook, jobs: _States) -> None:
        """Say once why we wait, if it takes long."""
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < SAY_AFTER_SECONDS and not outlook.paused:
            return
        if not self._is_checked and now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            with contextlib.suppress(*TRANSIENT):
                await self._store.check_ready()  # a damaged file could let it wait for ever
                self._is_checked = True
        self._lease_loop.wait_log.say(self._reason(outlook, jobs))
        if now - self._waiting_since >= LOOK_AT_SECONDS:
            await self._tell_unreachable(jobs, now)

    async def _tell_unreachable(self, jobs: _States, now: float) -> None:
        """Say so if whatever is left waits for hosts that cannot be reached, and how to end it."""
        states = [one for of in jobs.values() for one, count in of.items() if count]
        if JobState.QUEUED not in states or JobState.IN_PROGRESS in states:
            return
        if now - self._read_errors_at < LOOK_AT_SECONDS:
            return
        self._read_errors_at = now
        try:
            found = await self._store.jobs(JobFilter(state=JobState.QUEUED), JobId(0), LOOK_AT_MAX)
        except TRANSIENT:
            return  # it is said elsewhere, and asked again
        left = [job for job in found if job.kind not in _NOT_WAITED_FOR]
        if left and all(map(_is_unreachable, left)):
            self._lease_loop.wait_log.say(_format_unreachable(left, jobs))

    def _reason(self, outlook: Outlook, jobs: _States) -> str:
        if outlook.paused:
            return paused_reason()
        count = {
            state: sum(states.get(state, 0) for states in jobs.values())
            for state in (JobState.IN_PROGRESS, JobState.QUEUED)
        }
        running, queued = count[JobState.IN_PROGRESS], count[JobState.QUEUED]
        if running:
            return f"{_are(running)} held by other workers."
        if outlook.suspects:
            return f"{_are(outlook.suspects)} in quarantine after a crash."
        if outlook.next_due_at is not None:
            left = max(0.0, outlook.next_due_at / MICROSECONDS - self._clock.now())
            return f"{_are(queued)} delayed, the next for about {left:.0f} s."
        return f"{_are(queued)} queued: {self._lease_loop.full.reason()}."


def _are(count: int) -> str:
    return f"{counted(count, 'job')} {'is' if count == 1 else 'are'}"


def _jobs(outlook: Outlook) -> dict[str, dict[JobState, int]]:
    """What is open, by task; units of schedules never end, and builds wait for their own jobs."""
    return {
        task: states
        for task, states in outlook.open_by_task.items()
        if kind_of_name(task) not in _NOT_WAITED_FOR
    }


def _is_unreachable(job: Job) -> bool:
    """Its last attempt could not reach a host, or lost it."""
    error = job.last_error
    return (
        job.deferred_since is not None
        and error is not None
        and error.category is ErrorCategory.NODE
    )


def _format_unreachable(left: Sequence[Job], jobs: _States) -> str:
    """Why a drain does not end, with the last error of one job, and what ends it."""
    tasks = sorted({job.task for job in left})
    count = sum(states.get(JobState.QUEUED, 0) for states in jobs.values())
    error = left[0].last_error
    said = "" if error is None else f" ({left[0].key!r}: {error.format()})"
    whole = f"{counted(count, 'job')} {'waits' if count == 1 else 'wait'}"
    who = whole if len(left) >= count else f"the first {len(left):,} of {count:,} jobs wait"
    cancel = "; ".join(command("queue", "cancel", "--task", task, "--yes") for task in tasks[:3])
    return (
        f"hosts cannot be reached, and nothing else is left to do: {who} for them{said}. They are "
        f"tried again until tasks.give_up_after; to end sooner, stop this run, which loses "
        f"nothing, or cancel them: {cancel}"
    )

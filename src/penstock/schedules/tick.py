# SPDX-License-Identifier: Apache-2.0
"""How does a tick begin and end: with its cursor, and armed again?

A unit of a schedule is one job for ever. What its end says is judged here; the cursors of leased
ticks are read before they may start.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.definitions.context import JobInfo, TickContext
from penstock.errors import TRANSIENT, InternalError, PenstockError, Skip, UsageError
from penstock.model.job import AttemptError, ErrorCategory, JobState, LeasedJob
from penstock.model.lease import (
    Effect,
    EnqueueJobs,
    ForgetCalls,
    JobEnd,
    JobFailure,
    JobRef,
    Rearm,
    SetCursor,
)
from penstock.retry.policy import RetryPolicy, is_last
from penstock.schedules.preflight_results import CheckedValues
from penstock.schedules.recurring import Recurring
from penstock.stores.protocol import ScheduleStore
from penstock.stores.retry import StoreRetry
from penstock.worker.attempt import (
    Attempt,
    ProcessDied,
    Stop,
    TaskLimits,
    crashed,
    failed,
    kind_of_refusal,
    spoilt,
    time_limit_error,
)
from penstock.worker.attempt_log import AttemptLog

WAITS = "Reading cursors has to wait"

NOTHING: Mapping[str, str] = {}


def tick_context(
    recurring: Recurring,
    job: LeasedJob,
    info: JobInfo,
    checked: CheckedValues | None,
    started_at: int,
) -> TickContext:
    """What the body of a tick may know."""
    missed = recurring.schedule.timing.after(job.due_at, started_at).missed
    values = NOTHING if checked is None else checked.of_tick(recurring.schedule, job.payload)
    return TickContext(info, values, due_at=job.due_at, missed=missed, cursor=job.brought)


def judge_tick(
    attempt: Attempt,
    error: BaseException | None,
    now_at: int,
    policy: RetryPolicy,
    rand: Callable[[], float],
) -> JobEnd | JobFailure | JobRef | None:
    """What follows from the end of a tick; whatever it returned is not kept."""
    recurring, job = _recurring(attempt.limits), attempt.job
    if attempt.stop is Stop.LOST:
        return None
    if attempt.stop is Stop.CANCELLED:
        return JobRef(job.id, job.token)  # it was retired; its lease is let go
    if error is None:
        try:
            return _armed_again(attempt, recurring, now_at, _effects(attempt))
        except UsageError as problem:  # its cursor cannot be kept
            error = problem
    calls = attempt.calls
    if calls is not None and calls.over_budget is not None:
        return JobRef(job.id, job.token)
    if isinstance(error, Skip):
        return _armed_again(attempt, recurring, now_at, ())
    if attempt.stop is Stop.SHUTDOWN:
        return JobRef(job.id, job.token)
    if attempt.stop is Stop.TIMEOUT:
        error = time_limit_error(attempt)
    if isinstance(error, ProcessDied):
        return crashed(attempt, error, now_at, policy, rand)
    return failed(attempt, error, now_at, policy, rand)


def _armed_again(
    attempt: Attempt, recurring: Recurring, now_at: int, effects: tuple[Effect, ...]
) -> JobEnd:
    """The occurrence is over; the next is the first after now, and what passed was missed."""
    following = recurring.schedule.timing.after(attempt.job.due_at, now_at)
    effects += (Rearm(following.at, following.missed),)
    if attempt.calls is not None and attempt.calls.has_any:
        effects += (ForgetCalls(),)  # bought for this occurrence alone
    return JobEnd(attempt.job, JobState.DONE, attempt.started_at, now_at, None, None, effects)


def _effects(attempt: Attempt) -> tuple[Effect, ...]:
    """What a tick that went well leaves behind, in one transaction with its next time."""
    context = attempt.context
    if not isinstance(context, TickContext):
        raise InternalError(f"The tick {attempt.job.key!r} has the context of a job.")
    effects: list[Effect] = []
    if context._enqueued:
        effects.append(EnqueueJobs(tuple(context._enqueued)))
    cursor = context.changed_cursor()
    if cursor is not None:
        effects.append(SetCursor(attempt.job.key, cursor))
    return tuple(effects)


def spoilt_tick(
    end: JobEnd,
    error: PenstockError,
    limits: TaskLimits,
    policy: RetryPolicy,
    rand: Callable[[], float],
) -> JobFailure:
    """The effects of a tick were refused: like an error of its own."""
    job = end.job
    return JobFailure(
        ref=JobRef(job.id, job.token),
        key=job.key,
        task=job.task,
        error=AttemptError(ErrorCategory.OWN, kind_of_refusal(error), str(error)),
        started_at=end.started_at,
        ended_at=end.ended_at,
        delay_seconds=policy.degraded.delay(job.attempts, rand()),
        charge=True,
        ends=is_last(job.attempts, limits.max_attempts),
    )


def _recurring(limits: TaskLimits) -> Recurring:
    if limits.recurring is None:
        raise InternalError("A job was taken for a tick.")
    return limits.recurring


class Ticks:
    """Owns what a worker needs for schedules besides their jobs. Belongs to one loop."""

    def __init__(
        self,
        tasks: Mapping[str, tuple[Any, TaskLimits]],
        store: ScheduleStore,
        policy: RetryPolicy,
        rand: Callable[[], float],
        retry: StoreRetry,
        telling: AttemptLog,
        enter: Callable[[Sequence[LeasedJob]], None],
        stop: Callable[[str], None],
    ) -> None:
        """Nothing is known yet.

        Args:
            tasks: of the worker, jobs and schedules.
            store: where cursors are kept.
            policy: what failures cost.
            rand: numbers in [0, 1), for back-offs.
            retry: waits for the store.
            telling: hears of ends that the store refused.
            enter: takes ticks that may start.
            stop: hears why the run cannot go on.
        """
        self._limits = {name: limits for name, (_, limits) in tasks.items() if limits.recurring}
        self.names = frozenset(self._limits)  # of tasks that are schedules
        self._store = store
        self._policy = policy
        self._rand = rand
        self._retry = retry
        self._telling = telling
        self.enter = enter
        self._stop = stop
        self._waiting: dict[JobRef, LeasedJob] = {}  # their cursors are being read

    def clear(self) -> list[JobRef]:
        """Ticks that have not come as far as the window are not wanted, or not ours, any more."""
        refs = list(self._waiting)
        self._waiting.clear()
        return refs

    def take(self, jobs: Sequence[LeasedJob]) -> Coroutine[Any, Any, None] | None:
        """Jobs have come: those that are ticks enter when what is returned has been awaited."""
        names = self.names
        ticks = [job for job in jobs if job.task in names] if names else []
        self.enter([job for job in jobs if job.task not in names] if ticks else jobs)
        return self._prepare(ticks) if ticks else None

    async def _prepare(self, ticks: Sequence[LeasedJob]) -> None:
        """Read the cursors of ticks, all at once, and let those start that are still wanted."""
        self._waiting.update((JobRef(job.id, job.token), job) for job in ticks)
        cursors: Mapping[str, str] = {}
        with suppress(*TRANSIENT):  # no tick waits any more
            cursors = await self._retry.until_answered(
                WAITS,
                lambda: self._store.cursors([job.key for job in ticks]),
                wanted=lambda: bool(self._waiting),
            )
        wanted, self._waiting = list(self._waiting.values()), {}
        for job in wanted:
            job.brought = cursors.get(job.key)
        self.enter(wanted)

    def spoilt(self, end: JobEnd, error: PenstockError) -> JobEnd | JobFailure:
        """What becomes of an end whose effects the store has refused."""
        limits = self._limits.get(end.job.task)
        refused: JobEnd | JobFailure
        if limits is None:
            refused = spoilt(end, error)
        else:
            refused = spoilt_tick(end, error, limits, self._policy, self._rand)
        self._telling.spoilt(end.job, refused, limits)
        if limits is not None:
            self.ended(end.job, refused)
        return refused

    def ended(self, job: LeasedJob, verdict: JobEnd | JobFailure | JobRef | None) -> None:
        """A try has ended; if it was the last that its schedule may have, so has the run."""
        if isinstance(verdict, JobFailure) and verdict.charge and verdict.ends:
            self._stop(
                f"The schedule {job.key!r} has failed {job.attempts + 1} times in a row, which "
                f"is its max_attempts, so the run ends: {verdict.error.kind}: "
                f"{verdict.error.message}"
            )

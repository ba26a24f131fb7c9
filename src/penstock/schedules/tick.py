# SPDX-License-Identifier: Apache-2.0
"""The tick kind of job: begins with its cursor and is armed again at its end.

A unit of a schedule is one job for ever. The cursors of leased ticks are read before they may
start; preflights on duty look before a failed tick is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.definitions.context import TickContext
from penstock.definitions.preflight import Preflight
from penstock.definitions.schedule import Schedule
from penstock.errors import InternalError, PenstockError, Skip
from penstock.model.job import JobState, LeasedJob
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
from penstock.retry.policy import RetryDecision, RetryPolicy, is_last
from penstock.schedules.preflight_recheck import PreflightRecheck
from penstock.schedules.preflight_results import CheckedValues, RecheckedReader
from penstock.stores.protocol import ScheduleStore
from penstock.stores.retry import StoreRetry
from penstock.worker.attempt import UNLIMITED, Attempt, AttemptEnd, TaskLimits, kind_of
from penstock.worker.job_kind import PlainKind, job_info, refusal_error
from penstock.worker.kind import JobReader, Window
from penstock.worker.parts import WorkerParts

WAITS = "Reading cursors has to wait"

NOTHING: Mapping[str, str] = {}


class CursorReader:
    """Reads the cursors of leased ticks."""

    def __init__(self, store: ScheduleStore, retry: StoreRetry) -> None:
        self._store = store
        self._retry = retry

    async def prepare(self, jobs: Sequence[LeasedJob], wanted: Callable[[], bool]) -> None:
        cursors = await self._retry.until_answered(
            WAITS, lambda: self._store.cursors([job.key for job in jobs]), wanted=wanted
        )
        for job in jobs:
            job.brought = cursors.get(job.key)

    def enters(self, job: LeasedJob, window: Window) -> bool:
        return True


class TickKind(PlainKind):
    """Ticks of schedules: never done for good, and never held for a person."""

    recurs = True
    holds_doubts = False
    payload_is_final = False

    def __init__(
        self,
        schedules: Mapping[str, Schedule[..., Any]],
        parts: WorkerParts,
        checked: CheckedValues | None = None,
        preflights: Iterable[Preflight[..., Any]] = (),
    ) -> None:
        """Ticks of some schedules.

        Args:
            schedules: by the names of their tasks.
            parts: of the worker.
            checked: what preflights have returned.
            preflights: of the app; those with `recheck` stay on duty.
        """
        reader: JobReader = CursorReader(parts.store, parts.retry)
        if checked is not None and checked.on_duty:

            def units_of(job: LeasedJob) -> list[str]:
                return checked.rechecked_for_tick(schedules[job.task], job.payload)

            reader = RecheckedReader(checked, units_of, parts.store, parts.retry, reader)
        super().__init__(checked, reader)
        self._schedules = schedules
        self._policy = parts.policy
        self._rand = parts.ids.random
        self._checked = checked
        self._recheck = None if checked is None else PreflightRecheck(checked, parts)
        on_duty = [one for one in preflights if one.recheck or not one.required]
        self._optional = {f"preflight {one.plain_name}" for one in on_duty if not one.required}
        self._on_duty = {
            name: tuple(one for one in on_duty if {*one.over} <= {*schedule.over})
            for name, schedule in schedules.items()
        }

    def named(self, job: LeasedJob) -> str:
        return f"The schedule {job.key!r}"

    def context(self, job: LeasedJob, started_at: int) -> TickContext:
        schedule, checked = self._schedules[job.task], self._checked
        missed = schedule.timing.after(job.due_at, started_at).missed
        values = NOTHING if checked is None else checked.of_tick(schedule, job.payload)
        info = job_info(job)
        return TickContext(info, values, due_at=job.due_at, missed=missed, cursor=job.brought)

    def before(self, attempt: Attempt) -> Coroutine[Any, Any, None] | None:
        """Preflights look: those on duty after a failure, those not required until they pass."""
        job = attempt.job
        schedule, on_duty = self._schedules[job.task], self._on_duty[job.task]
        if self._recheck is None or not on_duty:
            return None
        failed = bool(job.attempts) or job.deferred_since is not None
        checks = self._recheck.due(schedule, on_duty, job.payload, has_failed=failed)
        return self._recheck.look(checks) if checks else None

    def encoded(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (whatever the body returned is not kept)
        *,
        at_once: bool,
    ) -> tuple[Effect, ...]:
        return _effects(attempt, at_once=at_once)

    def returned(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (what `encoded` has made)
        now_at: int,
    ) -> JobEnd:
        return self._armed_again(attempt, now_at, value)

    def skipped(self, attempt: Attempt, error: Skip, now_at: int) -> JobEnd:
        return self._armed_again(attempt, now_at, ())

    def _armed_again(self, attempt: Attempt, now_at: int, effects: tuple[Effect, ...]) -> JobEnd:
        """The occurrence is over; the next is the first after now, and what passed was missed."""
        job = attempt.job
        timing = self._schedules[job.task].timing
        following = timing.after(job.due_at, now_at)
        effects += (Rearm(following.at, following.missed, timing.period),)
        if attempt.calls is not None and attempt.calls.has_any:
            effects += (ForgetCalls(),)  # bought for this occurrence alone
        return JobEnd(job, JobState.DONE, attempt.started_at, now_at, None, None, effects)

    def retry_rule(self, policy: RetryPolicy, limits: TaskLimits) -> Callable[..., RetryDecision]:
        return partial(self._decide, policy)

    def _decide(
        self,
        policy: RetryPolicy,
        error: BaseException,
        **facts: Any,  # noqa: ANN401 (those of `decide_tick`)
    ) -> RetryDecision:
        """A preflight that is not required costs its unit no attempt, however often it fails."""
        return policy.decide_tick(error, charges=kind_of(error) not in self._optional, **facts)

    def refused(self, end: JobEnd, error: PenstockError) -> JobFailure:
        """Like an error of its own."""
        job, most = end.job, self._schedules[end.job.task].options.max_attempts
        return JobFailure(
            ref=JobRef(job.id, job.token),
            key=job.key,
            task=job.task,
            error=refusal_error(error),
            started_at=end.started_at,
            ended_at=end.ended_at,
            delay_seconds=self._policy.degraded.delay(job.attempts, self._rand()),
            charge=True,
            ends=is_last(job.attempts, most or UNLIMITED),
        )

    def ended(self, job: LeasedJob, end: AttemptEnd) -> str | None:
        """A try has ended; if it was the last that its schedule may have, so has the run."""
        if not isinstance(end, JobFailure) or not end.charge or not end.ends:
            return None
        return (
            f"The schedule {job.key!r} has failed {job.attempts + 1} times in a row, which is its "
            f"max_attempts, so the run ends: {end.error.kind}: {end.error.message}"
        )


def _effects(attempt: Attempt, *, at_once: bool) -> tuple[Effect, ...]:
    """What a tick that went well leaves behind, in one transaction with its next time."""
    context = attempt.context
    if not isinstance(context, TickContext):
        raise InternalError(f"The tick {attempt.job.key!r} has the context of a job.")
    effects: list[Effect] = []
    if context._enqueued:
        effects.append(EnqueueJobs(tuple(context._enqueued)))
    cursor = context.changed_cursor(at_once=at_once)
    if cursor is not None:
        effects.append(SetCursor(attempt.job.key, cursor))
    return tuple(effects)

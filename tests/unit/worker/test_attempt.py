# SPDX-License-Identifier: Apache-2.0
"""The ladder of ends is one for all kinds of jobs; a kind says only what differs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.builds.slice import SliceKind, StepKind
from penstock.definitions.context import Context
from penstock.definitions.task import Task, TaskOptions
from penstock.errors import PayloadError, Skip, UsageError
from penstock.events.kinds import Correlation
from penstock.model.job import ErrorCategory, JobId, JobState, LeasedJob
from penstock.model.lease import JobEnd, JobFailure, JobRef
from penstock.retry.policy import RetryPolicy
from penstock.schedules.tick import TickKind
from penstock.worker.attempt import Attempt, AttemptEnd, ProcessDied, Stop, TaskLimits, judge
from penstock.worker.job_kind import PlainKind, job_info
from penstock.worker.kind import JobReader, Kind
from penstock.worker.parts import WorkerParts

NO_READER = cast("JobReader", SimpleNamespace())
PARTS = cast(
    "WorkerParts",
    SimpleNamespace(
        store=None, retry=None, policy=RetryPolicy(), ids=SimpleNamespace(random=lambda: 0.0)
    ),
)
KINDS: dict[str, Kind] = {
    "plain": PlainKind(),
    "tick": TickKind({}, PARTS),
    "slice": SliceKind({}, NO_READER),
    "step": StepKind(NO_READER),
}


async def body(ctx: Context) -> None: ...


def attempt(stop: Stop | None = None) -> Attempt:
    job = LeasedJob(
        id=JobId(7), token=2, key="k", task="t", group="g", lane_id=1, payload="{}", priority=0
    )
    made = Attempt(
        job,
        Task("t", body, TaskOptions()),
        TaskLimits(3, 1.5, 2),
        0,
        cast("TaskAdmissionLease", None),
        1_000,
        Correlation("run"),
        Context(job_info(job), {}),
    )
    made.stop = stop
    return made


def end_of(
    kind: Kind,
    error: BaseException | None,
    stop: Stop | None = None,
    value: object = None,
) -> AttemptEnd:
    return judge(attempt(stop), kind, value, error, 2_000, RetryPolicy(), lambda: 0.5)


every_kind: Callable[[Any], Any] = pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])


@every_kind
def test_what_lost_its_lease_is_not_told_and_what_was_cancelled_is_let_go(kind: Kind) -> None:
    for error in (None, ValueError("x"), Skip("y")):
        assert end_of(kind, error, Stop.LOST) is None
        assert end_of(kind, error, Stop.CANCELLED) == JobRef(JobId(7), 2)


@every_kind
def test_what_a_worker_stopped_itself_is_released_whatever_it_raised(kind: Kind) -> None:
    assert end_of(kind, ValueError("x"), Stop.SHUTDOWN) == JobRef(JobId(7), 2)


@every_kind
def test_what_ran_past_its_limit_fails_by_that_whatever_it_raised(kind: Kind) -> None:
    failure = end_of(kind, ValueError("x"), Stop.TIMEOUT)

    assert isinstance(failure, JobFailure)
    assert failure.error.category is ErrorCategory.TIMEOUT
    assert "1.5 s" in failure.error.message


@every_kind
def test_a_death_of_its_own_process_is_a_crash_and_costs_no_attempt(kind: Kind) -> None:
    failure = end_of(kind, ProcessDied("signal 11"))

    assert isinstance(failure, JobFailure)
    assert (failure.crashed, failure.charge, failure.ends) == (True, False, False)


def test_a_payload_that_does_not_fit_ends_a_plain_job_and_no_other() -> None:
    ends = {name: end_of(kind, PayloadError("no such argument")) for name, kind in KINDS.items()}

    plain = ends.pop("plain")
    assert isinstance(plain, JobEnd)
    assert plain.state is JobState.ERROR
    assert all(isinstance(end, JobFailure) and not end.ends for end in ends.values())


class Doubled(PlainKind):
    """A kind that nobody has heard of: what differs is all that it says."""

    def returned(self, attempt: Attempt, value: Any, now_at: int) -> JobEnd:
        if value is None:
            raise UsageError("nothing to double")
        return super().returned(attempt, 2 * value, now_at)


def test_another_kind_is_one_class_that_overrides_what_differs() -> None:
    done, failed = end_of(Doubled(), None, value=21), end_of(Doubled(), None)
    skipped = end_of(Doubled(), Skip("not today"))

    assert isinstance(done, JobEnd)
    assert (done.state, done.result) == (JobState.DONE, "42")
    assert isinstance(failed, JobFailure)
    assert failed.error.message == "nothing to double"
    assert isinstance(skipped, JobEnd)
    assert skipped.state is JobState.SKIPPED

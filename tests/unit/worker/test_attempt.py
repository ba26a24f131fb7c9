# SPDX-License-Identifier: Apache-2.0
"""The ladder of ends is one for all kinds of jobs; a kind says only what differs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
from penstock.model.strict_json import NotPlain
from penstock.retry.classify import RemoteError
from penstock.retry.policy import RetryPolicy
from penstock.schedules.tick import TickKind
from penstock.worker.attempt import (
    Attempt,
    AttemptEnd,
    Encoded,
    ProcessDied,
    Stop,
    TaskLimits,
    judge,
    tell,
)
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
    "step": StepKind(NO_READER, PARTS),
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
    made, policy = attempt(stop), RetryPolicy()
    if stop is None:
        value, error = tell(made, kind, value, error, 0.002, policy)
    return judge(made, kind, value, error, 2_000, policy, lambda: 0.5)


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


def test_a_payload_that_does_not_fit_ends_all_but_ticks() -> None:
    ends = {name: end_of(kind, PayloadError("no such argument")) for name, kind in KINDS.items()}

    plain = ends.pop("plain")
    assert isinstance(plain, JobEnd)
    assert plain.state is JobState.ERROR
    assert {name: end.ends for name, end in ends.items() if isinstance(end, JobFailure)} == {
        "tick": False,
        "slice": True,
        "step": True,
    }


class Doubled(PlainKind):
    """A kind that nobody has heard of: what differs is all that it says."""

    def encoded(self, attempt: Attempt, value: Any, *, at_once: bool) -> Any:
        if value is None:
            raise UsageError("nothing to double")
        return super().encoded(attempt, 2 * value, at_once=at_once)


def test_another_kind_is_one_class_that_overrides_what_differs() -> None:
    done, failed = end_of(Doubled(), None, value=21), end_of(Doubled(), None)
    skipped = end_of(Doubled(), Skip("not today"))

    assert isinstance(done, JobEnd)
    assert (done.state, done.result) == (JobState.DONE, "42")
    assert isinstance(failed, JobFailure)
    assert failed.error.message == "nothing to double"
    assert isinstance(skipped, JobEnd)
    assert skipped.state is JobState.SKIPPED


class Own(Exception):
    """An error with code of its own."""

    def __str__(self) -> str:
        raise AssertionError("it was looked at")


@dataclass
class Model:
    """A value with code of its own, as far as anybody knows."""

    n: int = 1


def caused_by(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def noted(error: Exception) -> Exception:
    error.response = Model()  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("value", [None, 1, "x", {"a": [1.5, True, (None,)]}])
def test_plain_values_are_told_at_once(value: object) -> None:
    told, error = tell(attempt(), PlainKind(), value, None, 0.0, RetryPolicy(), at_once=True)

    assert error is None
    assert isinstance(told, Encoded)


@pytest.mark.parametrize("value", [Model(), {"a": [Model()]}, OrderedDict()])
def test_values_with_classes_of_their_own_are_not_told_at_once(value: object) -> None:
    with pytest.raises(NotPlain):
        tell(attempt(), PlainKind(), value, None, 0.0, RetryPolicy(), at_once=True)

    told, _ = tell(attempt(), PlainKind(), value, None, 0.0, RetryPolicy())
    assert told.problem is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 1),
        KeyError("x"),
        OSError(2, "no such file", "f"),
        asyncio.CancelledError(),
        caused_by(ValueError("x"), KeyError("y")),
        UsageError("x"),
    ],
)
def test_plain_errors_are_told_at_once(error: BaseException) -> None:
    _, told = tell(attempt(), PlainKind(), None, error, 0.0, RetryPolicy(), at_once=True)

    assert isinstance(told, RemoteError)
    assert (told.kind, str(told)) == (type(error).__qualname__, str(error))


@pytest.mark.parametrize(
    "error",
    [
        Own(),
        ValueError(Model()),
        KeyError(Own()),
        OSError(2, "no such file", Path("f")),
        caused_by(ValueError("x"), Own()),
        noted(ValueError("x")),
        ExceptionGroup("x", [ValueError("y")]),
    ],
)
def test_errors_with_code_of_their_own_are_not_told_at_once(error: BaseException) -> None:
    with pytest.raises(NotPlain):
        tell(attempt(), PlainKind(), None, error, 0.0, RetryPolicy(), at_once=True)


def test_no_error_is_told_at_once_where_classifiers_of_users_are_asked() -> None:
    policy = RetryPolicy(classifiers=(lambda error: None,))

    with pytest.raises(NotPlain):
        tell(attempt(), PlainKind(), None, ValueError("x"), 0.0, policy, at_once=True)

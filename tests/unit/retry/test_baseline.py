# SPDX-License-Identifier: Apache-2.0
"""Does what an app says of failures hold in its runs?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from penstock import Context, Penstock, Retry
from penstock.errors import UsageError
from penstock.model.job import ErrorCategory, JobState
from penstock.processes.task import _raised
from penstock.retry.classify import Classified, FailureClass, classify
from penstock.retry.policy import DEGRADED, NODE, SERVICE, Backoff, RetryPolicy
from penstock.testing import harness
from penstock.worker.attempt import plain_error
from penstock.worker.task_protocol import Raised


class Odd(Exception):
    """Of a library that nobody knows."""


class Patience(Exception):
    def __init__(self, retry_after: object) -> None:
        super().__init__("later")
        self.retry_after = retry_after


class Refused(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


def test_parts_are_replaced_one_by_one() -> None:
    app = Penstock("a")
    assert (app.registry.retry_policy.node, app.registry.retry_policy.classifiers) == (NODE, ())

    app.baseline(node=(1, timedelta(seconds=30)))
    app.baseline(degraded=(timedelta(minutes=1), 600))

    policy = app.registry.retry_policy
    assert policy.node == Backoff(1.0, 30.0)
    assert policy.degraded == Backoff(60.0, 600.0) != DEGRADED
    assert policy.service == SERVICE


@pytest.mark.parametrize(
    "said",
    [
        {"node": 5},
        {"node": (5,)},
        {"service": (5, 1)},
        {"service": (0, 10)},
        {"degraded": ("soon", "later")},
        {"degraded": (1, float("inf"))},
        {"node": (1, 2, 3)},
        {"classify": "node"},
    ],
)
def test_what_is_no_baseline_is_refused(said: dict[str, Any]) -> None:
    app = Penstock("a")

    with pytest.raises(UsageError, match=f"app.baseline: {next(iter(said))}="):
        app.baseline(**said)
    assert app.registry.retry_policy.node == NODE


def test_a_coroutine_cannot_classify() -> None:
    async def classify(error: BaseException) -> None: ...

    with pytest.raises(UsageError, match="a plain function of an error"):
        Penstock("a").baseline(classify=classify)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        ("node", Classified(FailureClass.NODE)),
        (FailureClass.SERVICE, Classified(FailureClass.SERVICE)),
        (("service", 7), Classified(FailureClass.SERVICE, 7)),
        (("service", timedelta(minutes=1)), Classified(FailureClass.SERVICE, 60.0)),
        (("node", None), Classified(FailureClass.NODE)),
        (Classified(FailureClass.NODE, 3.0), Classified(FailureClass.NODE, 3.0)),
        ("unknown", Classified(FailureClass.UNKNOWN)),
        (None, Classified(FailureClass.UNKNOWN)),
    ],
)
def test_an_opinion_may_be_given_in_many_ways(said: Any, understood: Classified) -> None:
    assert classify(Odd(), now=0.0, classifiers=(lambda _: said,)) == understood


@pytest.mark.parametrize(
    "said", ["nobody", 5, ("service", -1), ("service", "soon"), ("service",), (1, 2, 3), object()]
)
def test_an_opinion_that_is_none_is_passed_over_and_noted(said: Any) -> None:
    error = Odd()

    assert classify(error, now=0.0, classifiers=(lambda _: said,)).category == "unknown"
    assert "it was passed over" in error.__notes__[0]


# In a run


def fail_first(make: Callable[[], Exception], app: Penstock) -> tuple[Any, Any]:
    """A job whose first attempt fails so: its history's first error, and how long it took."""
    calls = []

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise make()

    with harness(app) as t:
        t.enqueue(work.job(), key="k")
        began = t.clock.now()
        t.drain()
        job = t.store.job("k").result()
        assert job is not None
        return (job.state, t.store.attempts("k").result()), t.clock.now() - began


def test_a_run_asks_the_apps_own_classifier() -> None:
    app = Penstock("a")
    app.baseline(classify=lambda error: ("service", 42) if isinstance(error, Odd) else None)

    (state, history), seconds = fail_first(Odd, app)

    assert state is JobState.DONE
    assert history[0].error.category is ErrorCategory.SERVICE
    assert 42 <= seconds < 43


def test_without_it_an_odd_error_is_the_jobs_own() -> None:
    (state, history), _ = fail_first(Odd, Penstock("a"))

    assert state is JobState.ERROR
    assert history[0].error.category is ErrorCategory.OWN


def test_a_run_waits_as_the_app_says() -> None:
    app = Penstock("a")
    app.baseline(node=(0.001, 0.001))

    (state, _), seconds = fail_first(ConnectionResetError, app)

    assert state is JobState.DONE
    assert seconds < 0.5


@pytest.mark.parametrize(
    ("make", "category", "least"),
    [
        (lambda: Patience(33), ErrorCategory.SERVICE, 33),
        (lambda: Patience(timedelta(seconds=21)), ErrorCategory.SERVICE, 21),
        (lambda: Refused(503), ErrorCategory.SERVICE, 0),
        (lambda: Refused(429), ErrorCategory.SERVICE, 0),
    ],
)
def test_errors_that_say_so_themselves_need_no_classifier(
    make: Callable[[], Exception], category: ErrorCategory, least: float
) -> None:
    (state, history), seconds = fail_first(make, Penstock("a"))

    assert state is JobState.DONE
    assert history[0].error.category is category
    assert seconds >= least


def test_a_refusal_is_the_jobs_own_fault() -> None:
    (state, _), _ = fail_first(lambda: Refused(404), Penstock("a"))

    assert state is JobState.ERROR


def test_a_body_in_another_process_is_judged_by_the_same_baseline() -> None:
    app = Penstock("a")
    app.baseline(classify=lambda error: ("service", 9) if isinstance(error, Odd) else None)

    said = _raised(plain_error(Odd(), 0.0, app.registry.retry_policy))

    assert isinstance(said, Raised)
    assert (said.category, said.wait_seconds) == (FailureClass.SERVICE, 9)


# Of one task


def waits_of(make: Callable[[], Exception], retry: Retry | None, count: int) -> list[float]:
    """How long a job whose first attempts fail so has waited before each other attempt."""
    app, began = Penstock("a"), []

    @app.task(max_attempts=count + 1, retry=retry)
    async def work(ctx: Context) -> None:
        began.append(now())
        if len(began) <= count:
            raise make()

    with harness(app) as t:
        now = t.clock.now
        t.enqueue(work.job(), key="k")
        t.drain()
    return [later - sooner for sooner, later in pairwise(began)]


@pytest.mark.parametrize("make", [Odd, ConnectionResetError, lambda: Refused(503)])
def test_a_task_waits_as_its_own_retry_says(make: Callable[[], Exception]) -> None:
    waits = waits_of(make, Retry(delay=timedelta(seconds=20), max_delay=30), 3)

    assert 0 <= waits[0] <= 21
    assert all(19 <= wait <= 31 for wait in waits[1:])


def test_a_task_waits_exactly_as_it_is_asked_whatever_its_retry_says() -> None:
    (wait,) = waits_of(lambda: Patience(33), Retry(delay=3600), 1)

    assert 33 <= wait < 34


def test_the_retry_of_one_task_is_not_that_of_another() -> None:
    app, began = Penstock("a"), {"own": 0, "other": 0}

    async def fail(ctx: Context) -> None:
        began[ctx.job.task] += 1
        raise Odd

    own = app.task(name="own", max_attempts=2, retry=Retry(delay=36_000, max_delay=36_000))(fail)
    other = app.task(name="other", max_attempts=2)(fail)
    with harness(app) as t:
        t.enqueue(own.job())
        t.enqueue(other.job())
        t.advance(10)
        assert began == {"own": 1, "other": 2}


def test_a_task_gives_up_when_its_own_retry_says() -> None:
    app = Penstock("a")

    @app.task(retry=Retry(give_up_after=timedelta(seconds=30)))
    async def work(ctx: Context) -> None:
        raise ConnectionResetError("gone")

    with harness(app) as t:
        t.enqueue(work.job(), key="k")
        began = t.clock.now()
        t.drain()
        job = t.store.job("k").result()
        assert job is not None
        assert job.last_error is not None
        assert t.clock.now() - began <= 31
        assert "give_up_after (30 s)" in job.last_error.message


def test_what_a_retry_leaves_out_is_as_the_app_says() -> None:
    policy = RetryPolicy(node=Backoff(2, 120), service=Backoff(5, 300), own=Backoff(1, 60))

    slow, quick = policy.for_task(90, None, None), policy.for_task(None, 3, None)

    assert (slow.node, slow.service, slow.own) == (
        Backoff(90, 120),
        Backoff(90, 300),
        Backoff(90, 90),
    )
    assert (quick.node, quick.service, quick.own) == (Backoff(2, 3), Backoff(3, 3), Backoff(1, 3))
    assert quick.give_up_after_seconds == policy.give_up_after_seconds


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({}, "Retry says nothing"),
        ({"delay": 0}, "Retry: delay= must be above 0 seconds"),
        ({"max_delay": timedelta(seconds=-1)}, "Retry: max_delay= must be above 0"),
        ({"give_up_after": float("inf")}, "Retry: give_up_after= must be"),
        ({"delay": 5, "max_delay": 1}, "max_delay= must be at least delay="),
        ({"delay": "soon"}, "A duration is"),
    ],
)
def test_a_retry_that_cannot_be_meant_is_refused(said: dict[str, Any], refused: str) -> None:
    with pytest.raises(UsageError, match=refused):
        Retry(**said)


def test_what_is_no_retry_is_refused_where_the_task_is_defined() -> None:
    with pytest.raises(UsageError, match=r"@app.task: retry= is such as Retry\(delay=5"):
        Penstock("a").task(retry=5)  # type: ignore[arg-type]

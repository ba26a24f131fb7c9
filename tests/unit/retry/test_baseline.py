# SPDX-License-Identifier: Apache-2.0
"""Does what an app says of failures hold in its runs?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.errors import UsageError
from penstock.model.job import ErrorCategory, JobState
from penstock.processes.task import _raised
from penstock.retry.classify import Classified, FailureClass, classify
from penstock.retry.policy import DEGRADED, NODE, SERVICE, Backoff
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
        {"degraded": ("1s", "2s")},
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

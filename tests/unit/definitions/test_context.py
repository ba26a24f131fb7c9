# SPDX-License-Identifier: Apache-2.0
"""What does a task's body know, and what may it ask for?"""

from __future__ import annotations

import logging

import pytest

from penstock.definitions import context as contexts
from penstock.definitions.context import Context, JobInfo
from penstock.definitions.request import JobRequest
from penstock.errors import UsageError

REQUEST: JobRequest[None] = JobRequest(task="t", payload="{}")


def make() -> Context:
    return Context(JobInfo("k", "t", 2, None))


def test_the_job_and_its_attempt_are_known() -> None:
    ctx = make()

    assert (ctx.job.key, ctx.job.task, ctx.job.attempt, ctx.job.partition) == ("k", "t", 2, None)
    assert ctx.cancelled is False


def test_log_lines_name_the_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.task")
    ctx = make()

    ctx.log.info("%d pages", 3)

    assert ctx.log is ctx.log
    assert caplog.messages == ["[k] 3 pages"]


def test_enqueue_gives_the_key_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "BATCH_JOBS_MAX", 2)
    ctx = make()

    assert ctx.enqueue(REQUEST, key="a") == "a"
    assert ctx.enqueue(REQUEST).startswith("t:")
    with pytest.raises(UsageError, match="at most 2 others"):
        ctx.enqueue(REQUEST, key="c")


def test_a_preflight_enqueues_nothing() -> None:
    ctx = Context(JobInfo("preflight:exists:a", "preflight:exists", 1, "a"))

    with pytest.raises(UsageError, match="'preflight:exists:a' cannot enqueue a job"):
        ctx.enqueue(REQUEST)

    assert ctx._enqueued is None

# SPDX-License-Identifier: Apache-2.0
"""A job that waits for a closed account is told so, while a worker lives and after the run."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.model.provider import ClosedAccount
from penstock.model.worker import WorkerStatus
from penstock.observe.live import reasons
from penstock.observe.why.facts import Gate
from penstock.observe.why.job import explain
from tests.unit.observe.why.test_job import NOW, facts, job, seconds, worker

ACCOUNT = ClosedAccount(
    provider="ai",
    reason="401: no such key",
    since_at=NOW - seconds(5),
    probe_at=NOW + seconds(25),
    tasks=("fetch",),
)
STATUS = WorkerStatus(captured_at=NOW, closed_accounts=(ACCOUNT,))


def test_while_a_worker_lives_it_names_the_account_and_the_probe() -> None:
    found = explain(facts(job(), workers=(worker(status=STATUS),)))
    assert found.gate is Gate.ACCOUNT
    assert "the account of its provider 'ai', which is closed (401: no such key)" in found.sentence
    assert found.when == ACCOUNT.probe_at


def test_a_task_that_does_not_wait_for_it_is_not_told_so() -> None:
    status = WorkerStatus(captured_at=NOW, closed_accounts=(replace(ACCOUNT, tasks=("x",)),))
    assert explain(facts(job(), workers=(worker(status=status),))).gate is not Gate.ACCOUNT


def test_after_a_run_that_it_ended_it_is_still_named() -> None:
    found = explain(facts(job(), workers=(), closed_accounts=(ACCOUNT,)))
    assert found.gate is Gate.ACCOUNT
    assert "the last run ended, since the account of its provider 'ai' was closed" in found.sentence


def test_the_live_view_counts_the_jobs_that_wait_for_it() -> None:
    (found,) = reasons([STATUS, STATUS], {}, {"fetch": 7}, NOW)
    assert found.text == "the account of ai, which is closed (401: no such key)"
    assert found.jobs == 7

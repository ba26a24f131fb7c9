# SPDX-License-Identifier: Apache-2.0
"""A short campaign on SQLite; and the oracle finds every kind of harm that is done to its evidence.

`make soak-campaign` kills hundreds of times, on both databases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.campaign.__main__ import HARMS, Round
from tests.campaign.oracle import Evidence, Execution, Oracle, Send

KILLS = 2


def some_job(evidence: Evidence, task: str) -> tuple[str, str]:
    """A job of this task that has ended well."""
    return next(
        key for key, job in evidence.jobs.items() if job["task"] == task and job["state"] == "done"
    )


def body_of(evidence: Evidence, key: tuple[str, str]) -> Execution:
    return evidence.executions[evidence.jobs[key]["result"]["execution"]]


def bought(evidence: Evidence) -> Send:
    return evidence.sends[evidence.got[0][1]]


def lose(evidence: Evidence) -> None:
    del evidence.jobs[some_job(evidence, "leaf")]


def end_twice(evidence: Evidence) -> None:
    key = some_job(evidence, "ask")
    body = body_of(evidence, key)
    evidence.seen.append((key, body.id, body.began + 1e5))
    evidence.executions["again"] = replace(body, id="again", began=body.began + 1e6, ended=2e6)


def fail(evidence: Evidence) -> None:
    evidence.jobs[some_job(evidence, "flaky")]["state"] = "error"


def forget_to_run(evidence: Evidence) -> None:
    evidence.jobs[some_job(evidence, "leaf")]["state"] = "queued"


def enqueue_for_a_loser(evidence: Evidence) -> None:
    app, key = some_job(evidence, "fetch")
    evidence.jobs[app, f"{key}.loser.0"] = copy.deepcopy(evidence.jobs[app, key])


def begin_too_early(evidence: Evidence) -> None:
    body_of(evidence, some_job(evidence, "join")).began = 0.0


def sit_together(evidence: Evidence) -> None:
    for execution in evidence.executions.values():
        if execution.seat == "a":
            execution.began = 0.0


def run_beside_itself(evidence: Evidence) -> None:
    body = body_of(evidence, some_job(evidence, "ask"))
    evidence.executions["beside"] = replace(body, id="beside")


def run_again(evidence: Evidence) -> None:
    body = body_of(evidence, some_job(evidence, "ask"))
    evidence.executions["again"] = replace(body, id="again", run="nobody", pid=0)
    evidence.kills, evidence.stops = [], []


def run_for_another(evidence: Evidence) -> None:
    body_of(evidence, some_job(evidence, "leaf")).owner = "gamma"


def buy_again(evidence: Evidence) -> None:
    send = bought(evidence)
    evidence.sends[10**9] = replace(send, id=10**9, at=send.at + 1e6)


def spend_more(evidence: Evidence) -> None:
    bought(evidence).billed = 10**12


def count_less(evidence: Evidence) -> None:
    bought(evidence).cost += 1


DEEDS: dict[str, Callable[[Evidence], None]] = {
    "lost": lose,
    "ended twice": end_twice,
    "ended wrongly": fail,
    "stuck": forget_to_run,
    "leaked": enqueue_for_a_loser,
    "out of order": begin_too_early,
    "limits exceeded": sit_together,
    "ran beside itself": run_beside_itself,
    "ran again unprovoked": run_again,
    "by another app": run_for_another,
    "bought twice": buy_again,
    "overspent": spend_more,
    "accounts differ": count_less,
}


@pytest.mark.acceptance
@pytest.mark.faults
@pytest.mark.slow
def test_nothing_is_lost_doubled_or_overspent_beside_kills_and_the_oracle_would_know() -> None:
    played = Round("sqlite", seed=11)
    assert played.play(KILLS, is_short=True), played.harm
    assert played.counts["kills"] == KILLS
    assert set(DEEDS) | {"unexpected"} == set(HARMS) == set(played.harm)
    for harm, do in DEEDS.items():
        evidence = copy.deepcopy(played.evidence)
        do(evidence)
        assert Oracle(evidence).judge()[harm], harm

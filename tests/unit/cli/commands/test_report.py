# SPDX-License-Identifier: Apache-2.0
"""Does a report have the ends of its run, and the money of its run alone?"""

from __future__ import annotations

import json

import msgspec

from penstock.cli.commands.report import document_of, lines_of
from penstock.model.job import JobState, WorkerId
from penstock.model.run import CauseTime, LimitKind, ModelFigures, RunDocument, RunPart
from penstock.model.spending import Account, Amount, Balance, Period
from penstock.observe.explain import RunFacts, run_facts
from penstock.observe.report import RunReport, run_report

SECOND = 1_000_000


def facts(idle_seconds: float = 0.0) -> RunFacts:
    document = RunDocument(
        began_at=0,
        told_at=20 * SECOND,
        over=True,
        causes=(
            CauseTime(LimitKind.OWN_CODE, "", 20.0 - idle_seconds),
            CauseTime(LimitKind.IDLE, "", idle_seconds),
        ),
        retries=3,
        models=(ModelFigures(provider="a", model="m", requests=12, refused=2, tokens=500),),
    )
    found = run_facts([RunPart("run-1", WorkerId("w"), 20 * SECOND, document.encoded())])
    assert isinstance(found, RunFacts)
    return found


def balance(scope: str, span: str, micros: int, *, reserved: int = 0, bought: int = 0) -> Balance:
    period = Period.RUN if span.startswith("run") else Period.DAY
    return Balance(Account(scope, period, span), Amount(micros, 7), Amount(reserved, 1), bought, 4)


def reported(*balances: Balance, in_doubt: int = 0) -> RunReport:
    ended = {JobState.DONE: 9, JobState.ERROR: 1}
    in_store = {**ended, JobState.SKIPPED: 12, JobState.CANCELLED: 3}
    return run_report(facts(), ended, in_store, balances, in_doubt, 20 * SECOND)


def test_every_end_is_there_and_the_rate_is_over_the_whole_run() -> None:
    found = reported()

    assert found.ended == {
        JobState.DONE: 9,
        JobState.SKIPPED: 0,
        JobState.ERROR: 1,
        JobState.CANCELLED: 0,
    }
    assert found.per_second == 0.5  # 10 jobs in 20 s
    assert (found.requests, found.refused, found.tokens) == (12, 2, 500)


def test_jobs_that_were_skipped_because_of_others_or_cancelled_are_counted() -> None:
    found = reported()

    head, run, store = lines_of(found, facts(), 20 * SECOND)[3:6]
    assert head.split() == [*["jobs", "that", "ended"], "done", "skipped", "error", "cancelled"]
    assert run.split() == [*["by", "this", "run"], "9", "0", "1", "0"]
    assert store.split() == [*["in", "the", "store,", "in", "all"], "9", "12", "1", "3"]
    assert document_of(found, facts())["ended_in_store"] == {
        "done": 9,
        "skipped": 12,
        "error": 1,
        "cancelled": 3,
    }


def test_where_nothing_is_paid_nothing_is_said_of_money() -> None:
    lines = lines_of(reported(), facts(), 20 * SECOND)

    assert not any("dollars" in line or "doubt" in line for line in lines)
    assert document_of(reported(), facts())["spent"] == []
    assert lines[-1].startswith("Limited by: The tasks' own code ran for 100% of the run")


def test_what_was_paid_is_that_of_the_run_all_of_it_first() -> None:
    found = reported(
        balance("task:t", "run-1", 2_500_000),
        balance("all", "run-1", 2_500_000, reserved=1_000_000, bought=5),
        balance("all", "2026-11-16", 99_000_000),
        balance("all", "run-0", 99_000_000),
        in_doubt=2,
    )

    assert [one.account.scope for one in found.spent] == ["all", "task:t"]
    lines = lines_of(found, facts(), 20 * SECOND)
    head = lines.index("paid    dollars  tokens  bought  reused")
    assert lines[head + 1] == "all       $2.50       7       5       4"
    assert lines[head + 3] == "2 sends of all runs in doubt."
    assert lines[head + 4] == "$1.00 reserved for calls without an answer so far."


def test_money_is_an_exact_text_in_the_document() -> None:
    found = reported(balance("all", "run-1", 2_500_001, reserved=1, bought=5))

    (spent,) = msgspec.json.decode(msgspec.json.encode(document_of(found, facts())))["spent"]

    assert (spent["usd"], spent["reserved_usd"]) == ("2.500001", "0.000001")


def test_without_prices_no_dollars_are_told() -> None:
    found = reported(balance("all", "run-1", 0, bought=5), in_doubt=2)

    lines = lines_of(found, facts(), 20 * SECOND)

    head = lines.index("paid  dollars  tokens  bought  reused")
    assert lines[head + 1] == "all         -       7       5       4"
    assert lines[head + 2] == "2 sends of all runs in doubt."


def test_calls_sent_again_and_answers_at_an_estimate_are_told() -> None:
    whole = msgspec.structs.replace(balance("all", "run-1", 1), resent=3, estimated=1)

    found = reported(whole)

    lines = lines_of(found, facts(), 20 * SECOND)
    assert "3 calls in doubt sent again: some may be paid twice." in lines
    assert "1 answer settled at an estimate." in lines
    told = json.loads(json.dumps(document_of(found, facts())))
    assert (told["spent"][0]["resent"], told["spent"][0]["estimated"]) == (3, 1)


def test_of_a_run_that_goes_on_each_number_says_of_when_it_is() -> None:
    going_on = msgspec.structs.replace(facts(), is_over=False)
    paid = [balance("all", "run-1", 2_500_000, reserved=1_000_000, bought=5)]
    found = run_report(going_on, {JobState.DONE: 10}, {}, paid, 0, 25 * SECOND)

    lines = lines_of(found, going_on, 25 * SECOND)

    assert lines[0] == ("Run run-1, still running; attempts, requests and limits as of 5.0 s ago")
    assert lines[2].startswith("10 jobs ended in 25 s, 0.4/s, by 1 worker")
    assert "$1.00 reserved for calls without an answer so far." in lines


def test_a_daemon_that_mostly_waits_for_its_ticks_was_limited_by_nothing() -> None:
    idle = facts(idle_seconds=19.0)

    lines = lines_of(reported(), idle, 20 * SECOND)

    assert not [line for line in lines if line.startswith("Limited by")]
    assert document_of(reported(), idle)["limited_by"] is None

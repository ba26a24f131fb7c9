# SPDX-License-Identifier: Apache-2.0
"""What do `penstock explain` and `penstock report` say, and with which codes do they end?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import WorkerId
from penstock.model.lease import WorkerInfo
from penstock.model.run import (
    ActivityTime,
    CauseTime,
    LimitKind,
    ModelFigures,
    RunDocument,
    RunPart,
)
from penstock.model.spending import Amount, Budget, BudgetRefusal, BudgetStop, Period
from penstock.stores.sqlite.store import SqliteStore
from tests.unit.cli.conftest import Command


@pytest.fixture
def store(project: Path) -> Iterator[SqliteStore]:
    (project / ".penstock").mkdir()
    store = SqliteStore.open(project / ".penstock" / "shop.db", durability="normal")
    yield store
    store.close()


CAUSES = (
    CauseTime(LimitKind.SLOTS, "async", 15.0, 4.0),
    CauseTime(LimitKind.LATENCY, "a/m", 5.0),
    CauseTime(LimitKind.IDLE, "", 7.0),
)


def tell(
    store: SqliteStore,
    run_id: str = "run-1",
    *,
    over: bool = True,
    stops: tuple[BudgetStop, ...] = (),
    causes: tuple[CauseTime, ...] = CAUSES,
) -> None:
    document = RunDocument(
        began_at=0,
        told_at=20_000_000,
        over=over,
        stops=stops,
        causes=causes,
        doing=(
            ActivityTime(LimitKind.LATENCY, "a/m", 60.0),
            ActivityTime(LimitKind.OWN_CODE, "", 20.0),
        ),
        ended=40,
        slots={"async": 4},
        models=(ModelFigures(provider="a", model="m", requests=40, refused=2, tokens=900),),
    )
    part = RunPart(run_id, WorkerId("w"), document.told_at, document.encoded())
    store.save_run(part).result()


@pytest.mark.parametrize("name", ["explain", "report"])
def test_a_budget_that_ended_a_run_is_told(store: SqliteStore, command: Command, name: str) -> None:
    refusal = BudgetRefusal(Budget("all", Period.RUN, tokens=9), "a/m", Amount(0, 5), Amount(0, 1))
    tell(store, stops=(BudgetStop(refusal=refusal, span="run-1", tasks=("t",)),))

    said = command(name)

    sentence = (
        "The budget [budget.run] of 9 tokens a run is used up (a call of a/m may need 5 tokens)"
    )
    assert (
        f"A budget ended workers of this run: {sentence}: raise budget.run.tokens = 9" in said.out
    )
    assert f'"over_budget": "{sentence}: raise' in command(name, "--json").out


def test_the_last_run_is_explained(store: SqliteStore, command: Command) -> None:
    tell(store, "run-0")
    tell(store)

    ended = command("explain")

    assert ended.code == 0
    assert ended.out.splitlines() == [
        "Run run-1: 1 worker, 20 s",
        "",
        "All 4 async slots were taken for 75% of the run, while other jobs were ready.",
        "What would help most: Raise runtime.async_slots from 4: jobs in a slot waited for "
        "replies 75% of the time, which costs no CPU.",
        "",
        "limited by    time",
        "async slots    75%",
        "a/m: replies   25%",
        "",
        "In addition, there was nothing to do for 7.0 s.",
    ]


def test_the_explanation_is_a_document(store: SqliteStore, command: Command) -> None:
    tell(store)

    document = command("explain", "--run", "run-1", "--json").document

    assert document["run"] == "run-1"
    assert sum(share["percent"] for share in document["shares"]) == 100
    assert document["shares"][0]["cause"] == "async slots"
    assert document["change"].startswith("Raise runtime.async_slots")


def test_a_run_that_goes_on_says_how_old_its_words_are(
    store: SqliteStore, command: Command
) -> None:
    tell(store, over=False)
    worker = WorkerInfo(id=WorkerId("w"), run_id="run-1", tasks=())
    store.register(worker, 600.0).result()

    assert "ago" in command("explain").out.splitlines()[0]
    assert (
        "still running; attempts, requests and limits as of"
        in command("report").out.splitlines()[0]
    )


def test_a_run_whose_workers_are_dead_is_over_also_if_they_could_not_say_so(
    store: SqliteStore, command: Command
) -> None:
    tell(store, over=False)

    assert "ago" not in command("explain").out
    assert command("report", "--json").document["is_over"]


@pytest.mark.parametrize("name", ["explain", "report"])
def test_without_a_store_or_a_run_a_sentence_says_what_to_do(
    project: Path, command: Command, name: str
) -> None:
    missing = command(name)
    assert missing.code == 2
    assert "There is no store" in missing.sentence

    (project / ".penstock").mkdir()
    SqliteStore.open(project / ".penstock" / "shop.db", durability="normal").close()
    empty = command(name)
    assert empty.code == 1
    assert "No run has left a record" in empty.sentence
    assert "penstock queue run" in empty.sentence


@pytest.mark.parametrize("name", ["explain", "report"])
def test_an_unknown_run_names_those_that_are_known(
    store: SqliteStore, command: Command, name: str
) -> None:
    tell(store)

    near = command(name, "--run", "run-2")
    assert near.code == 2
    assert "closest: 'run-1'" in near.sentence
    assert "the last ones are 'run-1'" in command(name, "--run", "xyz").sentence


def test_a_run_of_another_version_says_so(store: SqliteStore, command: Command) -> None:
    store.save_run(RunPart("run-9", WorkerId("w"), 1, '{"strange": true}')).result()

    ended = command("explain")

    assert ended.code == 1
    assert "another version" in ended.sentence


def test_a_run_without_a_plan_says_so(store: SqliteStore, command: Command) -> None:
    tell(store)

    assert "has left no capacity plan" in command("explain", "--capacity").sentence


def test_the_report_of_a_real_run_counts_its_ends(project: Path, command: Command) -> None:
    assert command("queue", "enqueue", "visit", "k", '{"host": "h"}').code == 0
    assert command("queue", "run", "--drain").code == 0

    document = command("report", "--json").document
    lines = command("report").out.splitlines()
    plan = command("explain", "--capacity")

    assert document["ended"] == {"done": 1, "skipped": 0, "error": 0, "cancelled": 0}
    assert document["spent"] == []
    assert lines[2].startswith("1 job ended in ")
    assert not any("paid" in line for line in lines)
    assert "resource_limits.async" in plan.out
    assert "default of runtime.async_slots" in plan.out


def test_a_run_that_was_mostly_idle_is_told_of_no_change(
    store: SqliteStore, command: Command
) -> None:
    tell(store, causes=(CauseTime(LimitKind.STORE, "", 1.0), CauseTime(LimitKind.IDLE, "", 19.0)))

    said = command("explain").out.splitlines()

    assert said[2] == "Nothing limited most of this run: there was nothing to do for 19 s of it."
    assert not [line for line in said if line.startswith("What would help most")]
    assert "In addition, there was nothing to do for 19 s." not in said

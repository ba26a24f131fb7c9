# SPDX-License-Identifier: Apache-2.0
"""What do `penstock plan`, `penstock build --dry-run` and `penstock dataset` print?"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.commands.dataset_shop import DATASETS, Shop
from tests.unit.cli.conftest import Command

RANGE = ("--from", "2024-01-02", "--to", "2024-01-04")

TABLE = """\
level 0   prices  3 slices, 2024-01-01 to 2024-01-03
level 1   mean    2 slices, 2024-01-02 to 2024-01-03
level 2   total   2 slices in 1 job, 2024-01-02 to 2024-01-03

prices  3 new
mean    2 new
total   2 new

Plan """


@pytest.fixture
def shop(project: Path) -> Iterator[Shop]:
    made = Shop(project)
    yield made
    made.close()


def is_untouched(shop: Shop) -> bool:
    """Is there neither a store nor a folder for slices?"""
    return {path.name for path in shop.folder.iterdir()} <= {"pipeline.py", "__pycache__"}


# plan


def test_a_plan_is_a_table_of_levels_and_changes_nothing(shop: Shop, command: Command) -> None:
    ended = command("plan", "total", *RANGE)

    assert ended.code == 0, ended.err
    assert ended.out.startswith(TABLE), ended.out
    assert ended.out.endswith(": 7 slices in 6 jobs, 3 levels.\n")
    assert command("build", "total", *RANGE, "--dry-run").out == ended.out
    assert is_untouched(shop)


def test_a_plan_is_a_document_and_the_same_one_each_time(shop: Shop, command: Command) -> None:
    ended = command("plan", "total", *RANGE, "--format", "json")
    document = ended.document

    assert document["targets"] == ["total"]
    assert [len(level) for level in document["levels"]] == [3, 2, 1]
    assert command("build", "total", *RANGE, "--dry-run", "--json").document == document


@pytest.mark.parametrize(("form", "begin"), [("mermaid", "graph"), ("dot", "digraph")])
def test_a_plan_is_a_picture(shop: Shop, command: Command, form: str, begin: str) -> None:
    picture = command("plan", "total", *RANGE, "--format", form).out

    assert begin in picture.splitlines()[0] or picture.startswith("flowchart")
    assert "prices" in picture
    assert "mean" in picture


def test_what_is_up_to_date_is_told_and_forced_if_asked(shop: Shop, command: Command) -> None:
    shop.build("mean", start="2024-01-02", end="2024-01-04")

    known = command("plan", "mean", *RANGE).out
    assert "prices  3 up to date, skipped" in known
    assert known.endswith("\nUp to date: nothing to build.\n")
    assert "Plan " in command("plan", "mean", *RANGE, "--force").out


def test_slices_of_the_future_are_left_out_and_counted(shop: Shop, command: Command) -> None:
    ended = command("plan", "prices", "--from", "2999-01-01", "--to", "2999-01-04")

    assert ended.code == 0
    assert "prices  3 in the future, left out" in ended.out


def test_an_empty_range_is_nothing_to_build(shop: Shop, command: Command) -> None:
    ended = command("plan", "prices", "--from", "2024-01-02", "--to", "2024-01-02")

    assert ended.code == 0
    assert "prices  nothing in this range" in ended.out
    assert "Nothing to build: the targets have no slice in this range." in ended.out


def test_over_a_million_slices_are_planned_only_when_told_so(shop: Shop, command: Command) -> None:
    shop.write(
        DATASETS.replace("calendar=Hourly()", "calendar=Every(timedelta(seconds=1))").replace(
            "Daily, Hourly", "Daily, Every\nfrom datetime import timedelta"
        )
    )
    ended = command("plan", "hours", "--from", "2024-01-01", "--to", "2024-03-01")

    assert ended.code == 2
    assert "about 5,184,000 slices of 'hours'" in ended.sentence
    assert "confirm with --yes" in ended.sentence


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("price", *RANGE), "closest: 'prices'"),
        (("prices", "--from", "2024-01-04", "--to", "2024-01-02"), "lies after the end"),
        (("prices", "--from", "yesterday", "--to", "now"), "'yesterday' is not a time"),
        (("prices", "--from", "2024-02-30", "--to", "now"), "'2024-02-30' is not a time"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    shop: Shop, command: Command, typed: tuple[str, ...], said: str
) -> None:
    for verb in ("plan", "build"):
        more = ("--dry-run",) if verb == "build" else ()
        ended = command(verb, *typed, *more)
        assert ended.code == 2
        assert said in ended.sentence
    assert is_untouched(shop)


def test_a_range_and_a_target_are_asked_for(shop: Shop, command: Command) -> None:
    assert command("plan", *RANGE).code == 2
    assert command("plan", "prices", "--from", "2024-01-01").code == 2


def test_a_cycle_is_told_with_its_way(shop: Shop, command: Command) -> None:
    circle = DATASETS.replace("Daily(), version", 'Daily(), needs=["total"], version')
    shop.write(circle.replace("prices(ctx: Context, at)", "prices(ctx: Context, at, total)"))
    ended = command("plan", "mean", *RANGE)

    assert ended.code == 2
    assert "→" in ended.sentence
    assert is_untouched(shop)


# dataset


def test_datasets_are_listed_with_what_is_committed(shop: Shop, command: Command) -> None:
    assert command("dataset", "list").out == (
        "hours   nothing yet\nmean    nothing yet\nprices  nothing yet\ntotal   nothing yet\n"
    )
    assert is_untouched(shop)
    shop.build("mean", start="2024-01-02", end="2024-01-04")

    assert "prices  3 slices, 2024-01-01 to 2024-01-03\n" in command("dataset", "list").out
    found = {one["name"]: one for one in command("dataset", "list", "--json").document["datasets"]}
    assert found["prices"]["slices"] == 3
    assert found["mean"]["first_at"] == "2024-01-02T00:00:00.000000Z"
    assert found["total"]["first_at"] is None


def test_a_dataset_is_shown_with_its_newest_slices(shop: Shop, command: Command) -> None:
    report = shop.build("mean", start="2024-01-02", end="2024-01-04")
    shown = command("dataset", "show", "mean", "--limit", "1").out.splitlines()

    assert shown[1] == "needs: prices.lookback(2)"
    assert shown[2] == "committed: 2 slices, 2024-01-02 to 2024-01-03"
    assert shown[3].startswith("  2024-01-03  1 row, ")
    assert shown[4].startswith("  … older ones with --limit")
    document = command("dataset", "show", "mean", "--json").document
    assert [one["name"] for one in document["newest"]] == ["2024-01-02", "2024-01-03"]
    assert document["newest"][0]["plan_id"] == report.plan_id
    nothing = command("dataset", "show", "meen")
    assert (nothing.code, "closest: 'mean'" in nothing.sentence) == (2, True)


def test_rows_are_read_as_csv_and_json(shop: Shop, command: Command) -> None:
    shop.build("prices", start="2024-01-02", end="2024-01-05")

    rows = list(csv.DictReader(io.StringIO(command("dataset", "read", "prices").out)))
    assert [row["day"] for row in rows] == ["2", "3", "4"]
    part = command("dataset", "read", "prices", "--format", "json", "--from", "2024-01-04")
    assert [row["day"] for row in json.loads(part.out)] == [4]
    none = command("dataset", "read", "prices", "--format", "json", "--to", "2023-01-01")
    assert json.loads(none.out) == []


def test_a_damaged_file_is_told_by_its_name(shop: Shop, command: Command) -> None:
    shop.build("prices", start="2024-01-02", end="2024-01-03")
    (path,) = (shop.folder).rglob("part-*.parquet")
    path.write_bytes(b"nothing")
    ended = command("dataset", "read", "prices")

    assert ended.code == 1
    assert path.name in ended.sentence
    assert "--force" in ended.sentence

# SPDX-License-Identifier: Apache-2.0
"""`penstock results`: what jobs returned as JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import polars
import pytest

from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.open import open_store
from tests.unit.cli.conftest import Command

RESULTS: list[Any] = [
    {"title": "a", "words": 3, "tags": ["x"], "key": 1, "score": 1},
    {"title": None, "words": 4, "score": 0.5, "late": True},
    {"title": 'ü,\n"q"', "words": 5, "tags": {"y": 1}},
]


@pytest.fixture
def ended(project: Path) -> str:
    """A store whose jobs of `visit` have ended with objects, those of `broken` with numbers."""
    url = f"sqlite:///{project}/jobs.db"
    store = open_store(url, app="shop", tasks=("visit", "broken"))
    worker = WorkerId("w")
    info = WorkerInfo(id=worker, run_id="r", tasks=("visit", "broken"), host="h", pid=1)
    store.register(info, 30.0).result()
    for number, result in enumerate([*RESULTS, 1, 2]):
        task = "visit" if isinstance(result, dict) else "broken"
        job = NewJob(key=f"k{number}", task=task, payload="{}", group="g")
        store.enqueue([job]).result()
        request = LeaseRequest(worker=worker, tasks=(task,), limit=1, caps=ConfiguredCaps({}))
        (leased,) = store.lease(request).result().jobs
        text = json.dumps(result)
        store.ack(worker, [JobEnd(leased, JobState.DONE, 0, number, text)]).result()
    store.close()
    return url


def test_json_lines_hold_key_and_result(command: Command, ended: str) -> None:
    out = command("results", "visit", "--store", ended).out

    lines = [json.loads(line) for line in out.splitlines()]
    assert lines == [{"key": f"k{n}", "result": result} for n, result in enumerate(RESULTS)]


def test_fields_of_objects_are_columns_of_csv(command: Command, ended: str) -> None:
    out = command("results", "visit", "--to", "csv", "--store", ended).out

    assert list(csv.reader(out.splitlines(keepends=True))) == [
        ["key", "title", "words", "tags", "result.key", "score", "late"],
        ["k0", "a", "3", '["x"]', "1", "1", ""],
        ["k1", "", "4", "", "", "0.5", "True"],
        ["k2", 'ü,\n"q"', "5", '{"y":1}', "", "", ""],
    ]


def test_what_is_no_object_is_one_column(command: Command, ended: str) -> None:
    out = command("results", "broken", "--to", "csv", "--store", ended).out

    assert out.splitlines() == ["key,result", "k3,1", "k4,2"]


def test_parquet_has_the_narrowest_type_of_each_column(
    command: Command, ended: str, project: Path
) -> None:
    told = command("results", "visit", "--to", "parquet", "--out", "v.parquet", "--store", ended)

    frame = polars.read_parquet(project / "v.parquet")
    assert told.err == "Wrote 3 results of visit to v.parquet.\n"
    assert dict(frame.schema) == {
        "key": polars.String,
        "title": polars.String,
        "words": polars.Int64,
        "tags": polars.String,
        "result.key": polars.Int64,
        "score": polars.Float64,
        "late": polars.Boolean,
    }
    assert frame["words"].to_list() == [3, 4, 5]
    assert frame["tags"].to_list() == ['["x"]', None, '{"y":1}']


def test_a_file_is_replaced_when_it_is_complete(
    command: Command, ended: str, project: Path
) -> None:
    (project / "v.jsonl").write_text("old")

    command("results", "visit", "--out", "v.jsonl", "--store", ended)

    assert len((project / "v.jsonl").read_text().splitlines()) == 3
    assert not list(project.glob(".v.jsonl*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("vist",),
            "no job of a task named 'vist'. The nearest is 'visit'. Tasks with jobs",
        ),
        (("visit", "--to", "parquet"), "name it with --out FILE.parquet."),
        (("visit", "--out", "nowhere/v.csv"), "nowhere/v.csv cannot be written: No such file"),
    ],
)
def test_mistakes_are_one_sentence(
    command: Command, ended: str, arguments: tuple[str, ...], sentence: str
) -> None:
    refused = command("results", *arguments, "--store", ended)

    assert refused.code == 2
    assert sentence in refused.sentence

# SPDX-License-Identifier: Apache-2.0
"""What the benchmark's JSON, text and Markdown hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.runner import Check, Kind, Outcome, SectionResult, Sense, Table

CHECKS = (
    Check("speed, × yardstick", 0.25, Sense.AT_LEAST, 0.3),
    Check("memory, MiB", 120.5, Sense.BELOW, 200.0, timing=False),
    Check("dream", 1.0, Sense.AT_LEAST, 2.0, Kind.GOAL),
)
TABLE = Table("Rates", report.SPREAD_COLUMNS, (report.spread("ours", "jobs/s", [1.0, 3.0, 2.0]),))
AROUND = report.Circumstances(
    {"cores": 2, "python": "3.11"}, "abc", "python -m benchmarks fake", "now"
)


def result(name: str = "fake", *, smoke: bool = False) -> SectionResult:
    return SectionResult(name, smoke, Outcome(CHECKS, (TABLE,)), 1.5)


def test_the_document_has_the_promised_shape() -> None:
    document = report.to_document([result()], AROUND)
    assert document["section"] == "fake"
    assert document["machine"] == {"cores": 2, "python": "3.11"}
    assert (document["commit"], document["command"]) == ("abc", "python -m benchmarks fake")
    assert document["date"] == "now"
    assert [list(check) for check in document["checks"]] == [
        ["name", "value", "bound", "kind", "ok"]
    ] * len(CHECKS)
    assert document["checks"][0] == {
        "name": "speed, × yardstick",
        "value": 0.25,
        "bound": 0.3,
        "kind": "bound",
        "ok": False,
    }
    assert document["checks"][2]["kind"] == "goal"
    assert document["tables"][0]["columns"] == list(report.SPREAD_COLUMNS)


def test_the_document_is_json() -> None:
    document = report.to_document([result()], AROUND)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_sections_that_run_together_share_one_document() -> None:
    document = report.to_document([result("a"), result("b")], AROUND)
    assert document["section"] == "a b"
    assert len(document["checks"]) == 2 * len(CHECKS)


def test_the_machine_is_described_without_being_named() -> None:
    machine = report.describe_machine()
    assert {"cores", "python", "sqlite", "kernel"} <= machine.keys()


def test_a_spread_tells_median_range_and_number_of_runs() -> None:
    assert report.spread("x", "ms", [1.0, 3.0, 2.0]) == ("x", "ms", 2.0, 1.0, 3.0, 1.0, 3)
    assert report.spread("x", "ms", [4.0]) == ("x", "ms", 4.0, 4.0, 4.0, 0.0, 1)


def test_missed_bounds_and_goals_are_told_apart() -> None:
    text = report.to_text(result())
    assert "Missed bound: speed, × yardstick: 0.25, must be ≥ 0.3" in text
    assert "Missed goal: dream: 1, must be ≥ 2" in text
    assert "fake: 1 of 3 checks met in 2 s." in text


def test_a_smoke_run_prints_how_much_it_was_relaxed() -> None:
    assert "relaxed by a factor of 2" in report.to_text(result(smoke=True))
    assert "relaxed" not in report.to_text(result())


def test_saving_writes_json_and_a_page(tmp_path: Path) -> None:
    json_path, page_path = report.save(result(), AROUND, tmp_path / "results")
    assert json.loads(json_path.read_text()) == report.to_document([result()], AROUND)
    page = page_path.read_text()
    assert "- command: `python -m benchmarks fake`" in page
    assert "- commit: abc" in page
    assert "| speed, × yardstick | 0.25 | ≥ 0.3 | bound | FAILED |" in page
    assert "| dream | 1 | ≥ 2 | goal | missed |" in page
    assert "| ours | jobs/s | 2 | 1 | 3 | 1 | 3 |" in page


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1234567, "1,234,567"), (0.12345, "0.123"), (123.45, "123.5"), (99_999.4, "99,999")],
)
def test_numbers_are_shown_as_exactly_as_a_reader_needs(value: float, shown: str) -> None:
    table = Table("t", ("n",), ((value,),))
    shown_result = SectionResult("fake", False, Outcome((), (table,)), 0.0)
    assert f"| {shown} |" in report.to_markdown(shown_result, AROUND)

# SPDX-License-Identifier: Apache-2.0
"""Pictures of a plan are of datasets, however many jobs; its document has every job."""

from __future__ import annotations

import json
from array import array

import pytest

from penstock.cli.render import plan_and_build
from penstock.cli.render.plan_and_build import format_reasons, to_graphviz, to_json, to_mermaid
from penstock.model.dataset import Need, Rule, SliceMarks, utc_text
from penstock.model.plan import BuildPlan, BuildRequest
from penstock.planning.build_plan import plan_build
from tests.datasets import DAY, EMPTY, Steps, by_name, dataset

MARKET = by_name(
    [
        dataset("prices"),
        dataset("volatility", Need(dataset="prices", rule=Rule.LOOKBACK, count=20)),
        dataset("report", "volatility", calendar=Steps(7 * DAY), batch=2),
    ]
)


def planned(days: int = 30) -> BuildPlan:
    """Prices are there, the rest is new."""

    def marks(name: str, start: int, end: int, _version: str) -> SliceMarks:
        found = MARKET[name].calendar.between(start, end) if name == "prices" else ()
        ats = array("q", found)
        ones = array("q", [1] * len(ats))
        return SliceMarks(ats=ats, seqs=ones, bases=ones, outdated=EMPTY, seq=1)

    request = BuildRequest(targets=("report",), ranges=((0, days * DAY),))
    return plan_build(MARKET, request, marks, days * DAY)


def test_a_plan_as_mermaid() -> None:
    assert to_mermaid(planned(), MARKET) == (
        "flowchart LR\n"
        '  d0["prices<br/>up to date, 48 slices"]\n'
        '  d1["volatility<br/>5 of 5 slices<br/>level 0"]\n'
        '  d2["report<br/>5 of 5 slices in 3 jobs<br/>level 1"]\n'
        '  d0 -->|"lookback(20)"| d1\n'
        "  d1 --> d2\n"
        "  class d0 fresh\n"
        "  classDef fresh stroke-dasharray: 4\n"
    )


def test_a_plan_as_graphviz() -> None:
    assert to_graphviz(planned(), MARKET) == (
        "digraph plan {\n"
        "  rankdir=LR;\n"
        "  node [shape=box];\n"
        '  "prices" [label="prices\\nup to date, 48 slices", style=dashed];\n'
        '  "volatility" [label="volatility\\n5 of 5 slices\\nlevel 0"];\n'
        '  "report" [label="report\\n5 of 5 slices in 3 jobs\\nlevel 1"];\n'
        '  "prices" -> "volatility" [label="lookback(20)"];\n'
        '  "volatility" -> "report";\n'
        "}\n"
    )


def test_a_picture_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_and_build, "DATASETS_SHOWN", 2)

    assert "1 datasets further upstream are left out." in to_mermaid(planned(), MARKET)
    assert "prices" not in to_graphviz(planned(), MARKET)
    assert len(to_mermaid(planned(3_000), MARKET)) < 300


@pytest.mark.parametrize("piece", [1, 2, 1_000])
def test_a_plan_as_one_document_with_all_its_jobs(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_and_build, "PIECE_JOBS", piece)
    plan = planned()

    document = json.loads("".join(to_json(plan)))

    assert document["plan_id"] == plan.plan_id
    assert document["targets"] == ["report"]
    assert document["jobs"] == 8
    assert document["datasets"]["report"]["counts"]["new"] == 5
    assert [[job["job_id"] for job in level] for level in document["levels"]] == [
        [job.job_id for job in level] for level in plan.levels
    ]
    assert document["levels"][1][0]["needs"] == [{"dataset": "volatility", "first": 0, "last": 1}]
    assert document["levels"][1][0]["timestamps"] == [
        "1970-01-01T00:00:00Z",
        "1970-01-08T00:00:00Z",
    ]


def test_times_and_reasons_are_told_in_words() -> None:
    assert utc_text(1) == "1970-01-01T00:00:00.000001Z"
    assert utc_text(-500_000) == "1969-12-31T23:59:59.5Z"
    assert format_reasons(planned().counts["volatility"]) == "5 new"
    assert format_reasons(planned().counts["prices"]) == ""

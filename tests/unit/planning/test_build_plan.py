# SPDX-License-Identifier: Apache-2.0
"""What a plan says, what it leaves out, and what is refused."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.model.dataset import Need, Rule, SliceMarks
from penstock.model.plan import BuildRequest, JobDescriptor, JobRange, SliceCounts
from penstock.planning import build_plan
from penstock.planning.build_plan import plan_build, request_digest
from penstock.planning.plan_jobs import with_plan_id
from tests.datasets import DAY, EMPTY, HOUR, Moments, Steps, by_name, dataset, nothing_built

MARKET = by_name(
    [
        dataset("prices"),
        dataset("volatility", Need(dataset="prices", rule=Rule.LOOKBACK, count=2)),
        dataset("report", "volatility", calendar=Steps(2 * DAY), batch=2),
    ]
)
NOW = 100 * DAY


def asked(name: str = "report", start: int = 0, end: int = 5 * DAY, **more: bool) -> BuildRequest:
    return BuildRequest(targets=(name,), ranges=((start, end),), **more)


def test_a_plan_has_levels_of_jobs_with_what_they_need() -> None:
    plan = plan_build(MARKET, asked(), nothing_built, NOW)

    p = f"build:{plan.plan_id}:"
    assert [[job.job_id.removeprefix(p) for job in level] for level in plan.levels] == [
        [f"prices@{day}" for day in ("1969-12-31", "1970-01-01", "1970-01-02", "1970-01-03")]
        + ["prices@1970-01-04", "prices@1970-01-05"],
        ["volatility@1970-01-01", "volatility@1970-01-03", "volatility@1970-01-05"],
        ["report@1970-01-01..1970-01-03", "report@1970-01-05"],
    ]
    assert plan.levels[1][1] == JobDescriptor(
        job_id=f"{p}volatility@1970-01-03",
        dataset="volatility",
        timestamps=(2 * DAY,),
        needs=(JobRange("prices", 2, 3),),
        level=1,
        lock="volatility",
    )
    assert plan.levels[2][0].needs == (JobRange("volatility", 0, 1),)
    assert list(plan.counts) == ["prices", "volatility", "report"]
    assert plan.counts["prices"] == SliceCounts(needed=6, new=6)


def test_what_lies_in_the_future_is_left_out_and_counted() -> None:
    plan = plan_build(MARKET, asked("prices", 0, 10 * DAY), nothing_built, 3 * DAY)
    none = plan_build(MARKET, asked("prices", 5 * DAY, 10 * DAY), nothing_built, 3 * DAY)

    assert plan.counts == {"prices": SliceCounts(needed=4, new=4, future=6)}
    assert plan.jobs == 4
    assert none.counts == {"prices": SliceCounts(needed=0, future=5)}
    assert none.levels == ()


def test_an_empty_range_is_an_empty_plan_and_a_reversed_one_an_error() -> None:
    assert plan_build(MARKET, asked(start=DAY, end=DAY), nothing_built, NOW).jobs == 0
    with pytest.raises(UsageError, match="'report' ends before it starts"):
        plan_build(MARKET, asked(start=DAY, end=0), nothing_built, NOW)
    with pytest.raises(UsageError, match="1 datasets has 0 ranges"):
        plan_build(MARKET, BuildRequest(targets=("report",), ranges=()), nothing_built, NOW)


def test_a_newer_input_makes_exactly_what_needs_it_stale() -> None:
    """Prices of the third day were rebuilt (commit 9) after volatility had read them (basis 1)."""

    def marks(name: str, start: int, end: int, version: str) -> SliceMarks:
        ats = array("q", MARKET[name].calendar.between(start, end))
        if name == "prices":
            seqs = array("q", [9 if at == 2 * DAY else 1 for at in ats])
            return SliceMarks(
                ats=ats, seqs=seqs, bases=array("q", [0] * len(ats)), outdated=EMPTY, seq=9
            )
        twos = array("q", [2] * len(ats))
        bases = array("q", [1] * len(ats))
        return SliceMarks(ats=ats, seqs=twos, bases=bases, outdated=EMPTY, seq=9)

    plan = plan_build(MARKET, asked("volatility"), marks, NOW)

    assert [job.timestamps for level in plan.levels for job in level] == [(2 * DAY,), (3 * DAY,)]
    assert plan.counts["volatility"] == SliceCounts(needed=5, fresh=3, rebuilt=2)
    assert list(plan.fresh["volatility"]) == [0, DAY, 4 * DAY]
    assert plan.counts["prices"] == SliceCounts(needed=6, fresh=6)


def test_more_slices_than_are_planned_unasked_need_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_plan, "SLICES_UNASKED_MAX", 11)

    with pytest.raises(UsageError, match=r"more than 11 must be confirmed.*--yes"):
        plan_build(MARKET, asked(), nothing_built, NOW)

    assert plan_build(MARKET, asked(yes=True), nothing_built, NOW).jobs == 11


def test_the_id_of_a_plan_is_of_request_definitions_and_jobs() -> None:
    plan = plan_build(MARKET, asked(), nothing_built, NOW)
    changed = {**MARKET, "prices": msgspec.structs.replace(MARKET["prices"], version="2")}
    elsewhere = {**MARKET, "other": dataset("other")}

    assert plan_build(MARKET, asked(), nothing_built, NOW) == plan
    assert plan_build(elsewhere, asked(yes=True), nothing_built, NOW).plan_id == plan.plan_id
    others = [
        plan_build(changed, asked(), nothing_built, NOW),
        plan_build(MARKET, asked(eager=True), nothing_built, NOW),
        plan_build(MARKET, asked(), nothing_built, 3 * DAY),
    ]
    assert len({plan.plan_id, *(other.plan_id for other in others)}) == 4


def test_the_digest_of_a_request_is_of_everything_that_a_plan_left_behind_depends_on() -> None:
    window = Need(dataset="prices", rule=Rule.WINDOW, micros=DAY)
    digest = request_digest(MARKET, asked())
    replaced = [
        {**MARKET, "prices": msgspec.structs.replace(MARKET["prices"], batch=3)},
        {**MARKET, "prices": msgspec.structs.replace(MARKET["prices"], version="2")},
        {**MARKET, "prices": msgspec.structs.replace(MARKET["prices"], calendar=Steps(HOUR))},
        {**MARKET, "volatility": msgspec.structs.replace(MARKET["volatility"], needs=(window,))},
    ]
    requests = [asked(end=6 * DAY), asked(force=True), asked(eager=True), asked(fail_fast=True)]

    assert request_digest({**MARKET, "other": dataset("other")}, asked(yes=True)) == digest
    digests = [request_digest(specs, asked()) for specs in replaced]
    digests += [request_digest(MARKET, request) for request in requests]
    digests.append(request_digest(MARKET, asked(), root="here"))
    assert len({digest, *digests}) == 10


def test_a_plan_under_another_id_is_the_same_otherwise() -> None:
    plan = plan_build(MARKET, asked(), nothing_built, NOW)

    again = with_plan_id(plan, f"{plan.plan_id}-2")

    assert again.levels[0][0].job_id == f"build:{plan.plan_id}-2:prices@1969-12-31"
    assert with_plan_id(again, plan.plan_id) == plan


def test_a_needed_slice_that_cannot_be_is_refused_before_anything_is_asked() -> None:
    specs = by_name([dataset("up", calendar=Moments((DAY,))), dataset("down", "up")])

    with pytest.raises(UsageError, match=r"down@1970-01-01 needs up at or before 1970-01-01"):
        plan_build(specs, asked("down"), lambda *_: pytest.fail("asked"), NOW)

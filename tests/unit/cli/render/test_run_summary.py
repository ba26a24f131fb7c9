# SPDX-License-Identifier: Apache-2.0
"""Does the closing report say what a run did, and what to do next?"""

from __future__ import annotations

import dataclasses

import msgspec

from penstock.cli.render.run_summary import (
    PROVIDERS_NAMED,
    RunSummary,
    summary_lines,
)
from penstock.cli.render.throughput import Throughput
from penstock.model.job import JobState
from penstock.model.run import ModelFigures
from penstock.model.spending import Amount
from penstock.observe.live import Units, UnitTroubles
from tests.live_sample import CLOSING, sample_closing

REPORT = """\
53,650 done, 0 skipped, 3 error in 9:11 (97.4/s)
crossref: 52,466 requests, 31 refused with 429, 2 errored; limit 15 of 256 at the end
openai: 1,204 requests, 1 refused with 429; limit 8 of 64 at the end
Paid calls: 1,180 bought, 24 reused; $1.23 spent
Limited by: crossref sat at its adaptive limit of 15 for 84% of the run; it answered 429 at 16.
3 jobs failed: penstock queue list --state error
Next: penstock queue retry-failed, once the cause is fixed"""

PACE = Throughput(ended={}, left=0, elapsed_seconds=2.0, rate=0.0, mean=0.0, seconds_left=None)


def report(left: int = 0, **known: object) -> list[str]:
    pace = dataclasses.replace(PACE, left=left)
    return list(summary_lines(RunSummary(pace=pace, ended={JobState.DONE: 4}, **known)))  # type: ignore[arg-type]


def test_the_report_of_a_run_with_everything() -> None:
    assert sample_closing() == REPORT


def test_a_run_with_nothing_else_to_say_has_one_line() -> None:
    assert report() == ["4 done, 0 skipped, 0 error in 2.0 s (2.0/s)"]


def test_what_is_left_names_the_command_that_goes_on() -> None:
    assert report(left=3)[1:] == [
        "Next: penstock queue run --drain continues with the remaining jobs"
    ]


def test_a_used_up_budget_is_to_be_raised_before_the_run_goes_on() -> None:
    assert report(left=3, is_over_budget=True)[-1] == (
        "Next: raise the used-up budget, then penstock queue run --drain continues"
    )


def test_a_run_that_did_everything_points_at_what_would_make_it_faster() -> None:
    assert report(limited_by="x")[1:] == [
        "Limited by: x",
        "Next: penstock explain shows what would help",
    ]


def test_a_build_leaves_failures_and_the_next_command_to_its_own_report() -> None:
    """`retry-failed` leaves jobs of plans alone."""
    ended = {JobState.DONE: 4, JobState.ERROR: 1}
    assert list(summary_lines(RunSummary(pace=PACE, ended=ended, build=True))) == [
        "5 jobs ended in 2.0 s"
    ]
    assert report(left=3, build=True, is_over_budget=True)[1:] == [
        "Next: raise the used-up budget, then the same command continues"
    ]
    assert report(build=True, limited_by="x")[1:] == ["Limited by: x"]


def test_a_budget_that_lacks_a_price_is_not_to_be_raised() -> None:
    assert report(left=3, is_over_budget=True, lacks_price=True)[1:] == [
        "Next: set the missing price, then penstock queue run --drain continues"
    ]


def test_a_paused_queue_is_resumed_first() -> None:
    assert report(left=3, paused=True)[1:] == [
        "Next: penstock queue resume, since the queue is paused"
    ]


def test_calls_in_doubt_of_earlier_runs_are_not_told_and_what_limited_the_run_is() -> None:
    closing = dataclasses.replace(CLOSING, in_doubt=2, limited_by="crossref, for 71 % of it")

    lines = list(summary_lines(closing))

    assert "Paid calls: 1,180 bought, 24 reused; $1.23 spent" in lines
    assert "Limited by: crossref, for 71 % of it" in lines


def test_what_this_run_has_in_doubt_is_told_apart_from_that_of_all_runs() -> None:
    assert CLOSING.money is not None
    money = msgspec.structs.replace(CLOSING.money, in_doubt=Amount(6_600, 1_080))

    lines = list(summary_lines(dataclasses.replace(CLOSING, money=money, in_doubt=12)))

    assert (
        "Paid calls: 1,180 bought, 24 reused; $1.23 spent, at most $0.0066 in doubt (counted in "
        "budgets); 12 sends of all runs in doubt"
    ) in lines


def test_calls_sent_again_and_answers_at_an_estimate_are_told() -> None:
    assert CLOSING.money is not None
    money = msgspec.structs.replace(CLOSING.money, resent=4, estimated=1)

    lines = list(summary_lines(dataclasses.replace(CLOSING, money=money)))

    assert (
        "Paid calls: 1,180 bought, 24 reused, 4 sent again; $1.23 spent (1 answer at an estimate)"
    ) in lines


def test_the_report_is_short_however_many_providers_there_are() -> None:
    one = ModelFigures(provider="p", model="*", requests=1, limit=1, limit_max=2)
    many = {f"p\x1b{number}": one for number in range(100)}

    lines = list(summary_lines(dataclasses.replace(CLOSING, providers=many, limited_by="x")))

    assert len(lines) <= 12
    assert f"{100 - PROVIDERS_NAMED} more providers: penstock providers" in lines
    assert "\x1b" not in "".join(lines)


UNITS = Units(live=40, ticking=2, troubles=UnitTroubles(degraded=1))


def test_a_daemon_goes_on_with_its_own_command() -> None:
    assert report(left=3, daemon=True)[-1] == "Next: penstock run continues with the remaining jobs"
    assert report(daemon=True, units=UNITS)[1:] == [
        "40 units of schedules, 1 degraded, see penstock doctor",
        "Next: penstock run continues with the schedules",
    ]


def test_what_is_late_when_nobody_serves_it_any_more_is_no_trouble() -> None:
    late = Units(live=40, ticking=0, troubles=UnitTroubles(late=8))
    ill = Units(live=40, ticking=0, troubles=UnitTroubles(degraded=1, late=8))

    assert "40 units of schedules" in report(units=late, daemon=True)
    assert report(units=ill, daemon=True)[1].endswith(" schedules, 1 degraded, see penstock doctor")

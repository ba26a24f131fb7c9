# SPDX-License-Identifier: Apache-2.0
"""Does a run look right on terminals of any size?"""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from penstock.cli.live.layout import KEYS_HELP, Style, coloured, compose, plain, width_of
from penstock.model.job import JobState
from penstock.model.worker import JobProgress, WorkProgress
from penstock.observe.live import BuildView, ProviderLine, RunSnapshot, Units, UnitTroubles, Work
from penstock.supervisor.display import Course
from penstock.supervisor.protocol import Checking
from tests.live_sample import PACE, sample_screen, sample_snapshot, sample_view

WIDE = """\
penstock · draining · 2:03 · 1 worker (pid 4121) · 61 of 96 slots · sqlite:harvest.db
12,040 done   3 failed   61 running   41,429 queued   120 delayed   300 waiting for others
██████▋░░░░░░░░░░░░░░░░░░░░░░░  98.4/s · about 7:08 left · mean 97.9/s · 22% of 53,953

provider      limit  in flight  waiting  429s  failed          rpm       tpm  spent  binds now
crossref  14 of 256         14       22     7       2  2,961/3,600         –      –  adaptive limit
openai      8 of 64          2        0     1       0          120  81k/200k  $1.23  cool-down 12 s

waiting for  160  async slots
              44  fair share of async slots
              22  openai cools down for 12 s
               –  keyed limit host:example.org of 2 is full
             120  their due time, the next in 9 s
             300  other jobs
$1.23 spent · $0.02 reserved · 1,180 bought · 24 reused · 812k tokens

12:04:01 INFO run: crossref limit 8 → 14 of 256 (14 in flight, 7 refused).
12:04:09 WARNING worker: 'fetch:10.5555/12345' failed (attempt 1 of 5) and is tried again in 12 s: …

p pause   d drain   q stop   ? keys"""

NARROW = """\
draining · 2:03 · 1 worker (pid 4121)
12,040 done   3 failed   61 running
41,429 queued   120 delayed
98.4/s · about 7:08 left · mean 97.9/s
provider      limit  binds now
crossref  14 of 256  adaptive limit
openai      8 of 64  cool-down 12 s
160  async slots
$1.23 spent · $0.02 reserved · 24 reused
12:04:01 INFO run: crossref limit 8 → 1…
12:04:09 WARNING worker: 'fetch:10.5555…
p pause   d drain   q stop   ? keys"""

TINY = """\
draining · 2:03
12,040 done
98.4/s · 7:08 left
crossref  14 of 256
160  async slots
$1.23 spent"""


@pytest.mark.parametrize(
    ("columns", "rows", "expected"), [(100, 20, WIDE), (40, 12, NARROW), (20, 6, TINY)]
)
def test_the_screen_of_a_size(columns: int, rows: int, expected: str) -> None:
    assert sample_screen(columns, rows) == expected


@pytest.mark.parametrize("columns", [1, 2, 5, 13, 20, 33, 60, 79, 80, 132, 300])
@pytest.mark.parametrize("rows", [1, 2, 3, 6, 9, 15, 24, 80])
def test_nothing_is_wider_or_longer_than_the_terminal(columns: int, rows: int) -> None:
    lines = compose(sample_view(), columns, rows)

    assert len(lines) <= rows
    assert max(width_of(line) for line in plain(lines).split("\n")) <= columns


def test_the_keys_stand_in_the_last_line_of_a_tall_terminal() -> None:
    lines = plain(compose(sample_view(), 100, 50)).split("\n")

    assert len(lines) == 50
    assert lines[-1].startswith("p pause")


def test_a_terminal_that_nobody_types_on_shows_no_keys() -> None:
    assert "pause" not in plain(compose(sample_view(keys=False), 100, 30))


@pytest.mark.parametrize("rows", [24, 30, 60])
def test_help_stands_above_the_log_and_does_not_hide_it(rows: int) -> None:
    shown = plain(compose(sample_view(help=True), 100, rows))

    assert all(text in shown for text in KEYS_HELP)
    assert shown.index(KEYS_HELP[-1]) < shown.index("WARNING worker")


@pytest.mark.parametrize(
    ("done", "left", "words"), [(238, 1, "99% of 239"), (239, 0, "100% of 239")]
)
def test_all_is_done_when_a_hundred_percent_are_shown(done: int, left: int, words: str) -> None:
    pace = dataclasses.replace(PACE, ended={JobState.DONE: done}, left=left)
    view = dataclasses.replace(sample_view(), pace=pace)

    assert words in plain(compose(view, 100, 20))


def test_many_providers_are_cut_with_a_count() -> None:
    snapshot = sample_snapshot()
    many = [
        ProviderLine(f"p{number:03}", line.live, line.binding)
        for number in range(100)
        for line in snapshot.providers[:1]
    ]

    shown = plain(compose(sample_view(msgspec.structs.replace(snapshot, providers=many)), 100, 24))

    assert "p000" in shown
    assert "more" in shown
    assert "300 waiting for others" in shown
    assert "p pause" in shown


def test_a_paused_run_says_so_first() -> None:
    paused = RunSnapshot(work=Work(paused=True))

    assert plain(compose(sample_view(paused), 80, 10)).startswith("penstock · paused · ")
    assert "no worker now" in plain(compose(sample_view(paused), 80, 10))


def test_a_stopping_run_says_so() -> None:
    shown = plain(compose(sample_view(course=Course.STOPPING), 80, 10))

    assert shown.startswith("penstock · stopping · ")


def test_hostile_names_are_shown_as_text() -> None:
    snapshot = sample_snapshot()
    hostile = ProviderLine(
        "a\x1b[2Jb\u202e", snapshot.providers[0].live, snapshot.providers[0].binding
    )
    view = sample_view(
        msgspec.structs.replace(snapshot, providers=(hostile,)), store="x\x1b]0;y\x07"
    )

    shown = plain(compose(view, 120, 20))

    assert "\x1b" not in shown
    assert "a\\x1b[2Jb\\u202e" in shown


def test_wide_characters_take_two_columns() -> None:
    snapshot = sample_snapshot()
    wide = ProviderLine("図書館" * 20, snapshot.providers[0].live, snapshot.providers[0].binding)
    view = sample_view(msgspec.structs.replace(snapshot, providers=(wide,)))

    lines = plain(compose(view, 60, 20)).split("\n")

    assert max(map(width_of, lines)) <= 60


def test_colours_are_given_and_taken_back_in_each_piece() -> None:
    lines = compose(sample_view(), 100, 30)

    for line in lines:
        text = coloured(line)
        assert text.count("\x1b[0m") == sum(bool(piece.style) for piece in line)
        assert text.count("\x1b[") == 2 * text.count("\x1b[0m")
    assert Style.BAD in {piece.style for line in lines for piece in line}


def test_while_preflights_run_the_screen_shows_only_how_far_they_are() -> None:
    view = sample_view(
        RunSnapshot(work=Work()),
        course=Course.CHECKING,
        checking=Checking(passed=12, failed=1, total=40),
        log=(),
    )

    shown = plain(compose(view, 80, 10)).splitlines()

    assert shown[0].startswith("penstock · checking")
    assert shown[1] == "12 of 40 preflights have passed, 1 failed"
    assert "nothing left" not in "\n".join(shown)
    assert "queued" not in "\n".join(shown)


def test_units_have_a_line_of_their_own() -> None:
    units = Units(live=40, ticking=3, troubles=UnitTroubles(degraded=2, late=1))

    shown = plain(compose(sample_view(RunSnapshot(work=Work(), units=units)), 80, 12)).splitlines()

    assert "40 units of schedules · 3 ticking · 2 degraded · 1 late" in shown


def test_jobs_that_tell_how_far_they_are_have_a_line() -> None:
    told = (
        JobProgress("page-1", 1, WorkProgress(120, 400)),
        JobProgress("page\x1b-2", 2, WorkProgress(3)),
    )

    shown = plain(compose(sample_view(RunSnapshot(work=Work(), progress=told)), 80, 12))

    assert "page-1 120 of 400 (30%) · page\\x1b-2 3" in shown.splitlines()


def test_a_daemon_without_jobs_has_no_bar() -> None:
    pace = dataclasses.replace(PACE, ended={}, left=0)
    view = dataclasses.replace(
        sample_view(RunSnapshot(work=Work(), units=Units(live=3, ticking=0))), pace=pace
    )

    assert "no job has come yet" in plain(compose(view, 80, 12))
    assert "nothing left" not in plain(compose(view, 80, 12))


def test_a_build_says_its_plan_and_how_far_it_is() -> None:
    build = BuildView(plan_id="ab12", levels=5, committed=2, slices=900, states={JobState.DONE: 40})
    snapshot = msgspec.structs.replace(sample_snapshot(), build=build)

    shown = plain(compose(sample_view(snapshot), 100, 20))
    assert "plan ab12: 900 slices · 40 of 40 jobs ended · 2 of 5 levels committed" in shown


def test_while_a_build_is_planned_no_preflights_are_named() -> None:
    view = dataclasses.replace(sample_view(), course=Course.PLANNING)

    shown = plain(compose(view, 100, 20))
    assert "penstock · planning · " in shown
    assert "a build waits for its datasets, or is planned" in shown
    assert "preflights" not in shown

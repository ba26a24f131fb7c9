# SPDX-License-Identifier: Apache-2.0
"""What does a tick know, what may it leave behind, and what do jobs get from preflights?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Context, JobRequest, TickContext
from penstock.definitions.context import JobInfo
from penstock.errors import UnknownPreflight, UsageError
from penstock.model.schedule import CURSOR_BYTES_MAX

UNIT = JobInfo("schedule:poll:o/a", "schedule:poll", 1, "o/a")


def make(cursor: str | None = None, **options: Any) -> TickContext:
    return TickContext(UNIT, due_at=1_700_000_000_500_000, cursor=cursor, **options)


def test_a_tick_knows_its_occurrence() -> None:
    ctx = make(missed=3)

    assert ctx.due_at == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert (ctx.missed, ctx.partition, ctx.job.partition) == (3, "o/a", "o/a")


def test_a_cursor_that_nobody_touched_is_not_kept_again() -> None:
    assert make().changed_cursor() is None
    assert make('{"page": 1}').changed_cursor() is None


def test_a_cursor_that_was_only_read_is_not_kept_again() -> None:
    ctx = make('{ "page" : 1 }')

    assert ctx.cursor == {"page": 1}
    assert ctx.changed_cursor() is None
    assert make().cursor is None


def test_a_cursor_that_was_assigned_is_kept() -> None:
    ctx = make('{"page":1}')
    ctx.cursor = {"page": 2}

    assert ctx.cursor == {"page": 2}
    assert ctx.changed_cursor() == '{"page":2}'


def test_a_cursor_that_was_assigned_the_same_is_not_kept_again() -> None:
    ctx = make('{"page":1}')
    ctx.cursor = {"page": 1}

    assert ctx.changed_cursor() is None


def test_a_first_cursor_is_kept() -> None:
    ctx = make()
    ctx.cursor = 0

    assert ctx.changed_cursor() == "0"


def test_a_cursor_can_be_emptied() -> None:
    ctx = make("5")
    ctx.cursor = None

    assert ctx.changed_cursor() == "null"


def test_a_cursor_that_was_changed_in_place_is_kept() -> None:
    ctx = make('{"seen":[1]}')
    ctx.cursor["seen"].append(2)

    assert ctx.changed_cursor() == '{"seen":[1,2]}'


def test_what_is_changed_after_the_assignment_is_kept_too() -> None:
    ctx = make()
    seen = [1]
    ctx.cursor = seen
    seen.append(2)

    assert ctx.changed_cursor() == "[1,2]"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "NaN"),
        (b"x", "bytes"),
        ({"a": [object()]}, "object"),
        ("\ud800", "surrogate"),
        (2**64, "64 bits"),
        ("x" * CURSOR_BYTES_MAX, "262,146 bytes"),
    ],
)
def test_a_cursor_that_is_not_json_is_refused_where_it_is_assigned(value: Any, why: str) -> None:
    ctx = make("5")

    with pytest.raises(UsageError, match=why) as refused:
        ctx.cursor = value
    assert "The cursor of 'schedule:poll:o/a'" in str(refused.value)
    assert ctx.cursor == 5
    assert ctx.changed_cursor() is None


def test_a_cursor_that_was_spoiled_in_place_is_refused_at_the_end() -> None:
    ctx = make("[]")
    ctx.cursor.append(object())

    with pytest.raises(UsageError, match="must be a JSON value"):
        ctx.changed_cursor()


def test_a_cursor_may_be_a_dataclass() -> None:
    @dataclass
    class Mark:
        page: int

    ctx = make()
    ctx.cursor = Mark(3)

    assert ctx.changed_cursor() == '{"page":3}'


# What preflights returned


def test_the_values_of_preflights_are_read_by_name() -> None:
    ctx = Context(UNIT, {"exists": '{"id": 7}', "token": "null"})

    assert ctx.preflight["exists"] == {"id": 7}
    assert ctx.preflight["token"] is None
    assert (len(ctx.preflight), list(ctx.preflight)) == (2, ["exists", "token"])
    assert "exists" in ctx.preflight
    assert "other" not in ctx.preflight
    assert ctx.preflight.get("other", 5) == 5


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(UnknownPreflight) as refused:
        Context(UNIT, {"exists": "1", "token": "2"}).preflight["exist"]
    assert str(refused.value) == (
        "No preflight named 'exist' has a value for this job; there are: 'exists', 'token'."
    )
    assert isinstance(refused.value, KeyError)
    with pytest.raises(UnknownPreflight, match="there are: none"):
        Context(UNIT).preflight["x"]


def test_one_job_cannot_change_what_another_gets() -> None:
    texts = {"exists": "[1]"}
    Context(UNIT, texts).preflight["exists"].append(2)
    again = Context(UNIT, texts)

    assert again.preflight["exists"] == [1]
    assert again.preflight["exists"] is again.preflight["exists"]


# Partitions are inherited


def test_what_a_tick_enqueues_has_its_partition_and_group() -> None:
    ctx = make()
    ctx.enqueue(JobRequest(task="t", payload="{}"), key="plain")
    ctx.enqueue(JobRequest(task="t", payload="{}", group="own"), key="grouped")
    ctx.enqueue(JobRequest(task="t", payload="{}", partition="other"), key="elsewhere")
    ctx.enqueue(JobRequest(task="t", payload="{}"), key="said", group="here")

    jobs = ctx._enqueued or []
    assert [(job.key, job.partition, job.group) for job in jobs] == [
        ("plain", "o/a", "o/a"),
        ("grouped", "o/a", "own"),
        ("elsewhere", "other", "other"),
        ("said", "o/a", "here"),
    ]


def test_without_a_partition_nothing_is_inherited() -> None:
    ctx = Context(JobInfo("k", "t", 1, None))
    ctx.enqueue(JobRequest(task="t", payload="{}"), key="plain")

    (job,) = ctx._enqueued or []
    assert (job.partition, job.group) == (None, "t")

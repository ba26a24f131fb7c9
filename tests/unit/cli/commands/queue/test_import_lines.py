# SPDX-License-Identifier: Apache-2.0
"""Which lines are jobs, and what is said of the others?"""

from __future__ import annotations

import io
import json

import pytest

from penstock import Context, Penstock
from penstock.cli.commands.queue import import_jobs
from penstock.cli.commands.queue.import_jobs import LINE_BYTES_MAX, Line, read_lines, to_job
from penstock.errors import UsageError
from penstock.model.job import Edge, EdgeKind, NewJob

LONG_BYTES = 2**27

app = Penstock("lines")


@app.task(priority=3)
async def visit(ctx: Context, host: str, depth: int = 1) -> None: ...


@app.task()
async def anything(ctx: Context, id: int, text: str) -> None: ...


def job(document: object, task: str | None = None) -> NewJob:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return to_job(Line(1, content, len(content)), app, task)


def problem(document: object, task: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        job(document, task)
    return str(caught.value)


def numbers(data: bytes) -> list[tuple[int, bytes]]:
    return [(line.number, line.content) for line in read_lines(io.BytesIO(data))]


def test_bom_crlf_blank_lines_and_a_missing_last_newline_are_no_problem() -> None:
    data = b'\xef\xbb\xbf{"a": 1}\r\n\r\n \t\n{"b": 2}\n{"c": 3}'

    assert numbers(data) == [(1, b'{"a": 1}'), (4, b'{"b": 2}'), (5, b'{"c": 3}')]


def test_an_empty_file_has_no_lines() -> None:
    assert numbers(b"") == []
    assert numbers(b"\xef\xbb\xbf\n") == []


class _LongLine(io.RawIOBase):
    """A line that nobody should keep, then a good one."""

    def __init__(self) -> None:
        self._left = LONG_BYTES
        self._tail = io.BytesIO(b"\n{}\n")
        self.largest = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self.largest = max(self.largest, len(buffer))
        if not self._left:
            return self._tail.readinto(buffer)
        count = min(len(buffer), self._left)
        self._left -= count
        buffer[:count] = b"x" * count
        return count


def test_a_line_beyond_all_bounds_is_passed_over_and_not_kept() -> None:
    raw = _LongLine()

    lines = list(read_lines(io.BufferedReader(raw, 2**20)))

    assert [(line.number, line.is_too_long, line.content) for line in lines] == [
        (1, True, b""),
        (2, False, b"{}"),
    ]
    assert raw.largest <= 2**21
    with pytest.raises(UsageError, match="134,217,729 bytes; a line has at most 2,162,688"):
        to_job(lines[0], app, "visit")


def test_the_longest_line_that_may_be_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LINE_BYTES_MAX == 2 * 2**20 + 64 * 2**10
    monkeypatch.setattr(import_jobs, "LINE_BYTES_MAX", 10)

    found = list(read_lines(io.BytesIO(b"123456789\n1234567890\n12345")))

    assert [(line.number, line.is_too_long) for line in found] == [
        (1, False),
        (2, True),
        (3, False),
    ]


def test_payload_or_all_other_fields_are_the_arguments() -> None:
    wrapped = job({"key": "k", "task": "visit", "payload": {"host": "h"}})
    flat = job({"key": "k", "task": "visit", "host": "h"})

    assert wrapped == flat
    assert wrapped.payload == '{"host":"h"}'
    assert wrapped.priority == 3  # the task's


def test_everything_about_a_job_can_be_said() -> None:
    found = job(
        {
            "id": 17,
            "host": "h",
            "priority": -1,
            "after": ["a", {"key": "b", "kind": "finished"}],
            "delay": "10m",
            "group": "g",
        },
        "visit",
    )

    assert found.key == "17"
    assert found.priority == -1
    assert found.after == (Edge("a"), Edge("b", EdgeKind.FINISHED))
    assert found.delay_seconds == 600
    assert found.group == "g"


def test_the_lines_own_task_wins_and_an_id_beside_a_key_is_an_argument() -> None:
    found = job({"key": "k", "id": 5, "task": "anything", "text": "t"}, "visit")

    assert found.task == "anything"
    assert found.payload == '{"id":5,"text":"t"}'


def test_one_key_to_wait_for_may_stand_alone() -> None:
    assert job({"key": "k", "host": "h", "after": "a"}, "visit").after == (Edge("a"),)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"key": "k",}', "column 13"),
        (b'{"key": "k"', "column 12"),
        (b'{"key": "\xff"}', "column 10: not UTF-8"),
        (b'{"key": "k", "key": "l"}', "'key' occurs twice"),
        (b'{"key": "k", "host": NaN}', "NaN is not JSON"),
        (b'{"key": "k", "host": "\\ud800"}', "lone surrogate"),
        (b"[" * 100_000, "nested deeper than 64"),
        ([1], "must be a JSON object, got [1]"),
        ({"host": "h"}, "no key; write a field 'key' or 'id'"),
        ({"key": None, "host": "h"}, "no key"),
        ({"key": True, "host": "h"}, "the key must be text or a whole number, got true"),
        ({"id": 1.5, "host": "h"}, "the id must be text or a whole number, got 1.5"),
        ({"key": "", "host": "h"}, "A key has 1 to 512 characters; got 0"),
        ({"key": "k" * 513, "host": "h"}, "got 513"),
        ({"key": "k", "task": 5}, "the task must be text, got 5"),
        ({"key": "k", "task": "vist", "host": "h"}, "closest: 'visit'"),
        ({"key": "k", "payload": [1]}, "the payload must be an object, got [1]"),
        ({"key": "k", "payload": None}, "the payload must be an object, got null"),
        ({"key": "k", "payload": {"host": "h"}, "dept": 1}, "unknown field 'dept' beside"),
        ({"key": "k"}, "is missing the argument 'host'"),
        ({"key": "k", "host": 5}, "argument 'host'"),
        ({"key": "k", "host": "h", "prio": 1}, "no argument 'prio'; it takes: 'host', 'depth'"),
        ({"key": "k", "host": "h", "priority": "1"}, "the priority must be a whole number"),
        ({"key": "k", "host": "h", "priority": True}, "the priority must be a whole number"),
        ({"key": "k", "host": "h", "priority": 2**40}, "A priority lies within"),
        ({"key": "k", "host": "h", "delay": "soon"}, "the delay must be a number of seconds"),
        ({"key": "k", "host": "h", "delay": -1}, "A delay is at least 0"),
        ({"key": "k", "host": "h", "group": 1}, "the group must be text"),
        ({"key": "k", "host": "h", "after": [1]}, "'after' must be a list of keys, got [1]"),
        ({"key": "k", "host": "h", "after": {"key": "a", "kind": "x"}}, "'after' must be"),
        ({"key": "k", "host": "x" * 2**20}, "1,048,576 are kept"),
    ],
)
def test_a_bad_line_is_told_with_its_place_and_what_was_expected(line: object, said: str) -> None:
    assert said in problem(line, "visit")


def test_a_line_without_a_task_says_what_to_do() -> None:
    assert problem({"key": "k"}) == "no task; write a field 'task', or name one with --task"

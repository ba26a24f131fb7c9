# SPDX-License-Identifier: Apache-2.0
"""How does a line of a jobs file become a job, or a sentence about what is wrong with it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from penstock.app.app import Penstock
from penstock.config.durations import parse_duration
from penstock.definitions.request import to_new_job
from penstock.errors import NotJson, PayloadError
from penstock.model import strict_json
from penstock.model.job import PAYLOAD_BYTES_MAX, Edge, NewJob

LINE_BYTES_MAX = 2 * 1024 * 1024 + 64 * 1024  # a payload with every character escaped, and the rest
_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"

#: Fields that say something about the job; whatever else a line holds is its payload.
_ABOUT = ("task", "payload", "priority", "after", "delay", "group")


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank."""

    number: int
    content: bytes
    bytes_read: int  # its whole length in the file
    is_too_long: bool = False
    indent: int = 0  # characters in front of the content
    is_cut: bool = False  # the file ends without the end of this line


class BadLine(PayloadError):
    """What is wrong with a line, and in which column, counted in characters from 1."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"column {column}: {problem}")
        self.problem = problem
        self.column = column


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Cut a stream into lines; a line that is too long is passed over, not kept."""
    number = 0
    while piece := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        size, too_long = len(piece), len(piece) > LINE_BYTES_MAX
        while too_long and not piece.endswith(b"\n"):
            piece = stream.readline(LINE_BYTES_MAX)
            size += len(piece)
            if not piece:
                break
        is_cut = not piece.endswith(b"\n")
        content = b"" if too_long else piece.rstrip(_BLANKS)
        if number == 1:
            content = content.removeprefix(_BOM)
        indent = len(content) - len(content.lstrip(_BLANKS))
        if len(content) > indent or too_long:
            yield Line(number, content[indent:], size, too_long, indent, is_cut)


def to_job(line: Line, app: Penstock, default_task: str | None) -> NewJob:
    """Turn a line into a job.

    Raises:
        PenstockError: what is wrong with it, without the line's number.
    """
    if line.is_too_long:
        raise PayloadError(f"{line.bytes_read:,} bytes; a line has at most {LINE_BYTES_MAX:,}")
    fields = _object(line)
    key = _take_key(fields)
    task = fields.pop("task", default_task)
    if not isinstance(task, str):
        raise PayloadError(
            "no task; write a field 'task', or name one with --task"
            if task is None
            else f"the task must be text, got {_shown(task)}"
        )
    said = {name: fields.pop(name) for name in _ABOUT if fields.get(name, _ABOUT) is not _ABOUT}
    payload = _payload(said.get("payload", _ABOUT), fields)
    request = app.find_task(task).job_from_json(payload)
    return to_new_job(
        request.with_options(
            key=key,
            after=_after(said.get("after")),
            priority=_whole("priority", said.get("priority")),
            delay=_delay(said.get("delay")),
            group=_text("group", said.get("group")),
        )
    )


def _object(line: Line) -> dict[str, Any]:
    try:
        text = line.content.decode()
    except UnicodeDecodeError as error:
        before = line.content[: error.start].decode()
        raise BadLine("not UTF-8", line.indent + len(before) + 1) from None
    try:
        document = strict_json.loads(text)
    except NotJson as error:
        hint = "; the file ends inside this line" if line.is_cut else ""
        raise BadLine(f"not JSON: {error.problem}{hint}", line.indent + error.column) from None
    if not isinstance(document, dict):
        raise PayloadError(f"a line must be a JSON object, got {_shown(document)}")
    return document


def _take_key(fields: dict[str, Any]) -> str:
    name = "key" if "key" in fields else "id"
    key = fields.pop(name, None)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if key is None:
        raise PayloadError("no key; write a field 'key' or 'id'")
    if not isinstance(key, str):
        raise PayloadError(f"the {name} must be text or a whole number, got {_shown(key)}")
    return key


def _payload(payload: object, others: dict[str, Any]) -> str:
    if payload is _ABOUT:
        return strict_json.dumps(others, limit_bytes=PAYLOAD_BYTES_MAX)
    if not isinstance(payload, dict):
        raise PayloadError(f"the payload must be an object, got {_shown(payload)}")
    if others:
        raise PayloadError(
            f"unknown field {next(iter(others))!r} beside 'payload'; put it inside, or take it out"
        )
    return strict_json.dumps(payload, limit_bytes=PAYLOAD_BYTES_MAX)


def _after(after: object) -> list[Edge] | None:
    if after is None:
        return None
    listed = after if isinstance(after, list) else [after]
    try:
        return [Edge(x) if isinstance(x, str) else msgspec.convert(x, Edge) for x in listed]
    except msgspec.ValidationError:
        raise PayloadError(f"'after' must be a list of keys, got {_shown(after)}") from None


def _whole(name: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PayloadError(f"the {name} must be a whole number, got {_shown(value)}")


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise PayloadError(f"the {name} must be text, got {_shown(value)}")


def _delay(value: object) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise PayloadError(f"the delay {error}, got {_shown(value)}") from None


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"

# SPDX-License-Identifier: Apache-2.0
"""Bulk insert: new jobs as arrays and COPY lines, with few round trips.

While the server answers, another thread has the interpreter, and it takes a while to get it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from penstock.stores.sql.statements import Row


def numbers(values: Iterable[int | None]) -> str:
    """An array of whole numbers; None is null."""
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """An array of texts; None is null."""
    return "{" + ",".join(["null" if value is None else _quoted(value) for value in values]) + "}"


def binaries(values: Iterable[bytes]) -> str:
    """An array of bodies."""
    return "{" + ",".join(['"\\\\x' + value.hex() + '"' for value in values]) + "}"


def _quoted(value: str) -> str:
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    return f'"{value}"'


INSERT_CHARACTERS = 8 * 1024 * 1024  # of payloads of one statement, unless one job has more
COPY_MIN = 32  # jobs of a batch that is worth two COPYs
PIECE = 250  # jobs of a COPY that are sent together
RANK_MAX = 2**63 - 1

T = TypeVar("T")

_SPECIAL = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """New jobs, by so many characters of payloads that a statement ends in its time."""
    first = size = 0
    for place, row in enumerate(rows):
        size += len(row[4])
        if size > INSERT_CHARACTERS and place > first:
            yield rows[first:place]
            first, size = place, len(row[4])
    yield rows[first:]


def arrays(rows: Sequence[Row]) -> tuple[str, ...]:
    """Key, lane, partition, priority, payload, plan_id and level, an array each."""
    keys, lane_ids, partitions, priorities, payloads, _, _, plan_ids, levels = zip(
        *rows, strict=True
    )
    return (
        texts(keys),
        numbers(lane_ids),
        texts(_some(partitions)),
        numbers(priorities),
        texts(payloads),
        texts(_some(plan_ids)),
        numbers(_some(levels)),
    )


def _some(column: tuple[T, ...]) -> tuple[T, ...]:
    """A column that is beside others: if all of it is null, nothing does as well."""
    return () if column.count(None) == len(column) else column


def places(rows: Sequence[Row], created: dict[str, int]) -> Iterator[str]:
    """Id, lane, priority, bytes, row_state and due_at of those that are new, an array each."""
    found: dict[str, tuple[int, ...]] = {}
    for key, lane_id, _, priority, payload, row_state, due_at, _, _ in reversed(rows):
        if key in created:  # of two with one key the first counts
            size = len(payload.encode())
            found[key] = (created[key], lane_id, priority, size, row_state, due_at)
    return map(numbers, zip(*reversed(found.values()), strict=True))


def jobs_copied(rows: Sequence[Row], ids: Sequence[int], now: int, app: int) -> Iterator[str]:
    """The rows of `jobs` in the order of keys, so that two batches never wait in a ring.

    They come in pieces: the server works on the first while the next is made.
    """
    plain = _is_plain("".join([row[0] for row in rows])) and _is_plain(
        "".join([row[4] for row in rows])
    )
    numbered = sorted(zip(rows, ids, strict=True), key=_by_key)
    last = f"{now}\t{app}\n"
    for first in range(0, len(numbered), PIECE):
        piece = numbered[first : first + PIECE]
        yield "".join([_line(row, id_, last, plain) for row, id_ in piece])


def _line(row: Row, job_id: int, last: str, plain: bool) -> str:
    key, lane_id, partition, priority, payload, _, _, plan_id, level = row
    if not plain:
        key, payload = key.translate(_SPECIAL), payload.translate(_SPECIAL)
    if partition is None and plan_id is None and level is None:
        rest = "\\N\t\\N\t\\N"
    else:
        rest = "\t".join((_text(partition), _text(plan_id), _number(level)))
    return f"{job_id}\t{key}\t{lane_id}\t{priority}\t{payload}\t{rest}\t{last}"


def hot_copied(rows: Sequence[Row], ids: Sequence[int], now: int) -> str:
    """The rows of `hot`."""
    return "".join(
        [
            f"{job_id}\t{lane_id}\t{-priority if priority > -RANK_MAX else RANK_MAX}\t"
            f"{len(payload) if payload.isascii() else len(payload.encode())}\t"
            f"{row_state}\t{due_at}\t{due_at}\t{now}\n"
            for (_, lane_id, _, priority, payload, row_state, due_at, _, _), job_id in zip(
                rows, ids, strict=True
            )
        ]
    )


def _by_key(numbered: tuple[Row, int]) -> str:
    key: str = numbered[0][0]
    return key


def _is_plain(text: str) -> bool:
    return not ("\\" in text or "\n" in text or "\r" in text or "\t" in text)


def _text(value: str | None) -> str:
    return "\\N" if value is None else value.translate(_SPECIAL)


def _number(value: int | None) -> str:
    return "\\N" if value is None else str(value)

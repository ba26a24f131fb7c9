# SPDX-License-Identifier: Apache-2.0
"""How do new jobs reach the server? In as few waits for it as can be.

While the server answers, another thread has the interpreter, and it takes a while to get it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import psycopg

from penstock.clock import BootTime
from penstock.stores.group_commit import Contended
from penstock.stores.postgres.lane_cache import KnownLanes, ScanPlaces
from penstock.stores.postgres.pipeline import Question, RoundTrip
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import Row
from penstock.stores.sql.transaction import LaneSpec, Transaction


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


def jobs_copied(rows: Sequence[Row], ids: Sequence[int], now: int) -> Iterator[str]:
    """The rows of `jobs` in the order of keys, so that two batches never wait in a ring.

    They come in pieces: the server works on the first while the next is made.
    """
    plain = _is_plain("".join([row[0] for row in rows])) and _is_plain(
        "".join([row[4] for row in rows])
    )
    numbered = sorted(zip(rows, ids, strict=True), key=_by_key)
    for first in range(0, len(numbered), PIECE):
        yield "".join([_line(row, id_, now, plain) for row, id_ in numbered[first : first + PIECE]])


def _line(row: Row, job_id: int, now: int, plain: bool) -> str:
    key, lane_id, partition, priority, payload, _, _, plan_id, level = row
    if not plain:
        key, payload = key.translate(_SPECIAL), payload.translate(_SPECIAL)
    if partition is None and plan_id is None and level is None:
        rest = "\\N\t\\N\t\\N"
    else:
        rest = "\t".join((_text(partition), _text(plan_id), _number(level)))
    return f"{job_id}\t{key}\t{lane_id}\t{priority}\t{payload}\t{rest}\t{now}\n"


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


Cursor = psycopg.RawCursor[Row]


class AcceptingTransaction(Transaction):
    """Owns what is still to be done about new jobs. The connection is the session's."""

    def __init__(
        self,
        cursor: Cursor,
        round_trip: RoundTrip,
        queries: dict[str, str],
        now: int,
        boot: BootTime,
        lanes: KnownLanes,
        places: ScanPlaces,
        still_time: Callable[[], None],
    ) -> None:
        super().__init__(now, boot)
        self._cursor = cursor
        self._round_trip = round_trip
        self._queries = queries
        self._lanes = lanes  # kept by the session
        self._copies = lanes.keys_are_new  # all batches or none: what runs again must end
        self._keys_were_new: bool | None = None  # of all batches; None without any
        self.copied = 0  # jobs; the next transaction will be like this one
        self._unheld: set[int] = set()  # lanes of new jobs that a purge may still take away
        self._places = places
        self._still_time = still_time
        self._behind: set[int] = set()  # lanes whose new jobs are behind where a lease begins
        self.witness: Question | None = None  # what only our commit can have made true
        self.writes = 0  # statements that may have changed something

    def lane_ids(self, specs: Mapping[str, LaneSpec]) -> dict[str, int]:
        """Those that are known already are held with the jobs that are put into them."""
        known = self._lanes.numbers
        if all(text in known for text in specs):
            found = {text: known[text] for text in specs}
            self._unheld.update(found.values())
            return found
        found = super().lane_ids(specs)
        known |= found
        return found

    def insert_jobs(self, rows: Sequence[Row]) -> dict[str, int]:
        created: dict[str, int] = {}
        for part in slices(rows):
            created |= self._insert_slice(part)
        if created:
            self.witness = "was_created", (next(iter(created)), self.now)
            for lane_id, priority, due_at in {(row[1], row[3], row[6]) for row in rows}:
                self._arrived(lane_id, priority, due_at)
        return created

    def _arrived(self, lane_id: int, priority: int, due_at: int) -> None:
        """A new job stands behind what was taken last, unless its priority is higher."""
        if self._places.is_behind(lane_id, -priority, due_at):
            self._behind.add(lane_id)
        else:
            self._places.forget([lane_id])

    def _insert_slice(self, rows: Sequence[Row]) -> dict[str, int]:
        keys = [row[0] for row in rows]
        if self._copies and len(rows) >= COPY_MIN and _differ(keys):
            return self._copy(rows, keys)
        columns = (*arrays(rows), self.now)
        created: dict[str, int]
        (_, _, _, _, _, state, due_at, _, _), *others = rows
        if all(row[5] == state and row[6] == due_at for row in others):
            created = dict(self._with_lanes("accept_jobs", *columns, state, due_at))
        else:
            created = dict(self._with_lanes("insert_jobs", *columns))
            if created:
                self.run("place_jobs", *places(rows, created), self.now)
        self._keys_were_new = self._keys_were_new is not False and len(created) == len(rows)
        return created

    def _copy(self, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, int]:
        """The shortest way, while nobody has enqueued any of these keys; else all runs again."""
        ids = self._ids_for(rows)
        self.writes += 1
        self._still_time()
        try:
            with self._cursor.copy(self._queries["copy_jobs"]) as copy:
                for piece in jobs_copied(rows, ids, self.now):
                    copy.write(piece)
                places = hot_copied(rows, ids, self.now)
        except psycopg.errors.UniqueViolation as error:
            self._lanes.keys_are_new = False
            raise Contended("A key of the batch was known already.") from error
        self._still_time()
        with self._cursor.copy(self._queries["copy_hot"]) as copy:
            copy.write(places)
        self.copied += len(rows)
        return dict(zip(keys, ids, strict=True))

    def accepted(self) -> None:
        """It is committed: the next batches are likely to be like these."""
        if self._keys_were_new is not None:
            self._lanes.keys_are_new = self._keys_were_new

    def _ids_for(self, rows: Sequence[Row]) -> list[int]:
        """Ids in stock will do, unless a job waits for another, whose id must be lower."""
        count, stock = len(rows), self._lanes.ids
        if count <= len(stock) and all(row[5] != RowState.WAITING for row in rows):
            ids = stock[:count]
            del stock[:count]
            return ids
        return [job_id for (job_id,) in self._with_lanes("reserve_ids", count)]

    def _with_lanes(self, query: str, *parameters: object) -> list[Row]:
        """Ask something about new jobs, and hold their lanes in the same round trip."""
        if not self._unheld:
            return self.rows(query, *parameters)
        wanted, self._unheld = self._unheld, set()
        self.writes += 1
        self._still_time()
        kept, answered = self._round_trip.ask(
            (("keep_lanes", (numbers(sorted(wanted)),)), (query, parameters))
        )
        gone = wanted.difference(lane_id for (lane_id,) in kept)
        if gone:
            self._lanes.forget(gone)
            raise Contended("A lane was purged while jobs were put into it.")
        return answered


def _differ(keys: Sequence[str]) -> bool:
    return len({*keys}) == len(keys)

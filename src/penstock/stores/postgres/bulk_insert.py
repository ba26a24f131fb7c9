# SPDX-License-Identifier: Apache-2.0
"""How do new jobs reach the server? In as few waits for it as can be.

While the server answers, another thread has the interpreter, and it takes a while to get it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psycopg

from penstock.clock import BootTime
from penstock.stores.group_commit import Contended
from penstock.stores.postgres import new_jobs
from penstock.stores.postgres.arrays import numbers
from penstock.stores.postgres.lane_cache import KnownLanes
from penstock.stores.postgres.pipeline import Question, RoundTrip
from penstock.stores.postgres.scan_places import ScanPlaces
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import Row
from penstock.stores.sql.transaction import LaneSpec, Transaction

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
        for part in new_jobs.slices(rows):
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
        if self._copies and len(rows) >= new_jobs.COPY_MIN and _differ(keys):
            return self._copy(rows, keys)
        columns = (*new_jobs.arrays(rows), self.now)
        created: dict[str, int]
        (_, _, _, _, _, state, due_at, _, _), *others = rows
        if all(row[5] == state and row[6] == due_at for row in others):
            created = dict(self._with_lanes("accept_jobs", *columns, state, due_at))
        else:
            created = dict(self._with_lanes("insert_jobs", *columns))
            if created:
                self.run("place_jobs", *new_jobs.places(rows, created), self.now)
        self._keys_were_new = self._keys_were_new is not False and len(created) == len(rows)
        return created

    def _copy(self, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, int]:
        """The shortest way, while nobody has enqueued any of these keys; else all runs again."""
        ids = self._ids_for(rows)
        self.writes += 1
        self._still_time()
        try:
            with self._cursor.copy(self._queries["copy_jobs"]) as copy:
                for piece in new_jobs.jobs_copied(rows, ids, self.now):
                    copy.write(piece)
                places = new_jobs.hot_copied(rows, ids, self.now)
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

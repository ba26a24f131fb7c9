# SPDX-License-Identifier: Apache-2.0
"""A write transaction of the embedded store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from penstock.clock import BootTime
from penstock.model.job import LeasedJob
from penstock.stores.sql.statements import Row, as_json
from penstock.stores.sql.transaction import PayloadsTooLarge, Transaction
from penstock.stores.sqlite.connection import ImpossibleRows

_decode = msgspec.json.Decoder().decode
_decode_jobs = msgspec.json.Decoder(list[LeasedJob]).decode


class SqliteTransaction(Transaction):
    """Owns nothing of its own: the connection is the session's."""

    def __init__(
        self,
        connection: apsw.Connection,
        queries: dict[str, str],
        now: int,
        boot: BootTime,
    ) -> None:
        super().__init__(now, boot)
        self._connection = connection
        self._queries = queries

    def run(self, query: str, *parameters: object) -> int:
        before = self._connection.total_changes()
        self._connection.execute(self._queries[query], parameters).fetchall()
        return self._connection.total_changes() - before

    def rows(self, query: str, *parameters: object) -> list[Row]:
        return self._connection.execute(self._queries[query], parameters).fetchall()

    def array(self, query: str, *parameters: object) -> list[Any]:
        return _decode(self.value(query, *parameters))  # type: ignore[no-any-return]

    def insert_jobs(self, rows: Sequence[Row]) -> dict[str, int]:
        last = self.value("last_job_id")
        created = self.run("insert_jobs", as_json(rows), self.now, last, self.app)
        if created == len(rows):
            ids = range(last + 1, last + 1 + created)
            return dict(zip((row[0] for row in rows), ids, strict=True))
        return dict(self.array("keys_above", last))

    def find_jobs(self, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
        found = self.array("jobs_by_key", as_json(keys), self.app)
        return {key: (id_, state) for key, id_, state in found}

    def take_jobs(self, lane_ids: Sequence[int], most: int, no: int) -> list[LeasedJob]:
        try:
            return _decode_jobs(self.value("take_jobs", as_json(lane_ids), most))
        except apsw.TooBigError:
            raise PayloadsTooLarge from None

    def mark_leased(self, jobs: Sequence[LeasedJob], no: int) -> None:
        marked = self.run("mark_leased", as_json([job.id for job in jobs]), no, self.now)
        if marked != len(jobs):
            raise ImpossibleRows(f"{len(jobs) - marked} jobs of the index jobs_ready are not ready")
        self.touch_all(job.lane_id for job in jobs)

    def ran_short(self, lane_ids: Sequence[int]) -> bool:
        if lane_ids:  # their heads are always their first ready jobs
            raise ImpossibleRows("lanes have ready jobs that the index jobs_ready does not have")
        return False

    def take_suspects(self, job_ids: Sequence[int], no: int) -> list[LeasedJob]:
        jobs = _decode_jobs(self.value("take_suspects", as_json(job_ids)))
        self.run("mark_solo", as_json(job_ids), no, self.now)
        return jobs

    def park_lanes(self, rows: Sequence[tuple[int, str, int]]) -> None:
        self.run("park_lanes", as_json(rows))
        self.touch_all(lane_id for lane_id, _, _ in rows)

    def end_jobs(self, rows: Sequence[Row], no: int) -> set[int]:
        batch = as_json(rows)
        self.run("savepoint_ends")
        changed = self.run("end_jobs", batch, no)
        if changed != len(rows):
            self.run("rollback_ends")
            self.run("release_ends")
            return set()
        self.run("release_ends")
        self.run("write_history", batch, no)
        return {row[0] for row in rows}

    def end_job(self, row: Row, no: int) -> bool:
        if not self.run("end_job", *row[:7], no):
            return False
        self.run("write_history", as_json([row]), no)
        return True

    def _look_for_heads(self, lane_ids: Sequence[int]) -> None:
        self.run("refresh_heads", as_json(lane_ids))
        self.made_work = True

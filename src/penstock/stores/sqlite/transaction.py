# SPDX-License-Identifier: Apache-2.0
"""What does one write transaction know besides the database?

Merged consequences: which lanes have to look for their head again, by how much the counters moved.
They are written once, before the commit, whatever the number of operations in the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from penstock.clock import BootTime
from penstock.errors import InternalError
from penstock.model.job import JobState, WorkerId

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Row = tuple[Any, ...]


def as_json(value: object) -> str:
    """A batch, as one parameter."""
    return _encode(value).decode()


class Transaction:
    """Owns the merged consequences of one transaction. Belongs to the writer's thread."""

    def __init__(
        self,
        connection: apsw.Connection,
        queries: dict[str, str],
        now: int,
        boot: BootTime,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self.now = now
        self.boot = boot
        self.made_work = False  # somebody may have something to lease now
        self.passed: list[str] = []  # failpoints to pass once this is durable
        self._touched: set[int] = set()
        self._moves: dict[tuple[int, JobState], int] = {}
        self._arrivals: dict[tuple[str, str, JobState], int] = {}
        self._run_moves: dict[tuple[str, JobState], int] = {}
        self._alive: dict[WorkerId, tuple[int, str] | None] = {}

    def run(self, query: str, *parameters: object) -> int:
        """Execute a named statement; how many rows it changed."""
        before = self._connection.total_changes()
        self._connection.execute(self._queries[query], parameters).fetchall()
        return self._connection.total_changes() - before

    def rows(self, query: str, *parameters: object) -> list[Row]:
        return self._connection.execute(self._queries[query], parameters).fetchall()

    def row(self, query: str, *parameters: object) -> Row | None:
        found = self.rows(query, *parameters)
        return found[0] if found else None

    def value(self, query: str, *parameters: object) -> Any:  # noqa: ANN401 (a column)
        return self.rows(query, *parameters)[0][0]

    def array(self, query: str, *parameters: object) -> list[Any]:
        """The one JSON column of a query that answers with one."""
        return _decode(self.value(query, *parameters))  # type: ignore[no-any-return]

    def touch(self, lane_id: int) -> None:
        """A job of this lane became ready, or stopped being it."""
        self._touched.add(lane_id)

    def touch_all(self, lane_ids: Iterable[int]) -> None:
        self._touched.update(lane_ids)

    def move(
        self, lane_id: int, source: JobState | None, target: JobState | None, count: int = 1
    ) -> None:
        """Jobs of this lane went from one state to another; None is outside the store."""
        moves = self._moves
        if source is not None:
            moves[lane_id, source] = moves.get((lane_id, source), 0) - count
        if target is not None:
            moves[lane_id, target] = moves.get((lane_id, target), 0) + count

    def arrive(self, task: str, group: str, state: JobState) -> None:
        """A new job of a known task and group is in this state."""
        key = (task, group, state)
        self._arrivals[key] = self._arrivals.get(key, 0) + 1

    def ended_in_run(self, run_id: str, state: JobState, count: int = 1) -> None:
        self._run_moves[run_id, state] = self._run_moves.get((run_id, state), 0) + count

    def flush_heads(self) -> None:
        """Bring the heads of touched lanes up to date; leasing needs this before it looks."""
        if self._touched:
            self.run("refresh_heads", as_json(list(self._touched)))
            self._touched.clear()
            self.made_work = True

    def flush_counts(self) -> None:
        """Write the merged counters."""
        counts: dict[tuple[str, JobState, str], int] = {}
        for (task, group, state), n in (*self._arrivals.items(), *self._named_moves()):
            counts["task", state, task] = counts.get(("task", state, task), 0) + n
            counts["group", state, group] = counts.get(("group", state, group), 0) + n
        for (run_id, state), n in self._run_moves.items():
            counts["run", state, run_id] = n
        self._arrivals.clear()
        self._moves.clear()
        self._run_moves.clear()
        if counts:
            self.run("add_counts", as_json([(*key, n) for key, n in counts.items() if n]))

    def _named_moves(self) -> list[tuple[tuple[str, str, JobState], int]]:
        moves = {key: n for key, n in self._moves.items() if n}
        if not moves:
            return []
        lanes = {lane_id for lane_id, _ in moves}
        names = {
            lane: (task, group)
            for lane, task, group in self.array("lane_names", as_json(list(lanes)))
        }
        if len(names) != len(lanes):
            raise InternalError(f"Jobs moved in lanes that do not exist: {lanes - set(names)}.")
        return [((*names[lane_id], state), n) for (lane_id, state), n in moves.items()]

    def finish(self) -> None:
        """Write all merged consequences; the commit follows."""
        self.flush_heads()
        self.flush_counts()

    def mark(self) -> tuple[Any, ...]:
        """A copy of the consequences so far, for an operation that may be refused."""
        return (
            set(self._touched),
            dict(self._moves),
            dict(self._arrivals),
            dict(self._run_moves),
            self.made_work,
            list(self.passed),
        )

    def reset(self, mark: tuple[Any, ...]) -> None:
        self._touched, self._moves, self._arrivals, self._run_moves, self.made_work, self.passed = (
            mark
        )
        self._alive.clear()

    def alive(self, worker: WorkerId) -> tuple[int, str] | None:
        """Number and run of a worker whose lease has not expired; None otherwise."""
        if worker not in self._alive:
            row = self.row("worker_row", worker, self.boot.boot_id, self.boot.at)
            self._alive[worker] = None if row is None else (row[0], row[1])
        return self._alive[worker]

    def forget_alive(self) -> None:
        self._alive.clear()

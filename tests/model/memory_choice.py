# SPDX-License-Identifier: Apache-2.0
"""Which ready jobs does the memory store hand out, and is that fair?

Groups with ready jobs stand in a round: who is served goes to the end, who is passed over because a
limit key is full keeps its place, and is the first when there is room. The limit is divided by
weight between the groups that are visited; inside a group jobs come by priority, then due time,
then id, over all its lanes with room.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from penstock.model.lease import BlockedKey, LeaseRequest
from penstock.stores.protocol import GROUPS_PER_LEASE
from penstock.stores.sql.lease import WeightedShares, weight_of
from penstock.stores.sql.row_state import RowState
from tests.model.memory_rows import JobRow, Lane, Tables, WorkerRow


class FairChoice:
    """Owns the choice of ready jobs. Does not know expiry, retries or edges."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._shares = WeightedShares()

    def take(self, worker: WorkerRow, request: LeaseRequest, now: int) -> list[JobRow]:
        """Lease up to `request.limit` ready jobs to a worker."""
        groups = self._visit(request)
        parts = self._parts(groups, request)
        taken: list[JobRow] = []
        for place, group in enumerate(groups):
            left = request.limit - len(taken)
            # What a group does not need, those after it get.
            share = left - sum(parts[place + 1 :]) if parts else left // (len(groups) - place)
            found = self._take_group(group, share, worker, request, now)
            if found:
                self._tables.serve_last(group)
                taken += found
        return taken

    def take_cell(self, worker: WorkerRow, request: LeaseRequest, now: int) -> list[JobRow]:
        """Lease the first suspect that may run now, and with it others of its cell."""
        taken: list[JobRow] = []
        for row in self._suspects(request):
            if len(taken) == request.limit:
                break
            alike = not taken or (row.cell and row.cell == taken[0].cell)
            if alike and self._has_room(row.lane, request):
                self._hand_out(row, worker, now, solo=True)
                taken.append(row)
        return taken

    def more(self, request: LeaseRequest) -> bool:
        """Would another call find work now?"""
        if request.quarantine:
            return any(self._has_room(row.lane, request) for row in self._suspects(request))
        return any(self._has_room(lane, request) for lane in self._lanes(request))

    def blocked(self, request: LeaseRequest) -> tuple[BlockedKey, ...]:
        """The full limit keys that keep ready lanes of this worker's tasks from running."""
        found: dict[str, BlockedKey] = {}
        for lane in self._lanes(request):
            full = self._tables.full_key(lane.limit_keys, request.caps)
            if full is not None:
                found[full.limit_key] = full
        return tuple(found[key] for key in sorted(found))

    def _visit(self, request: LeaseRequest) -> list[str]:
        """The groups of this call: the next ones that have something to hand out."""
        most = GROUPS_PER_LEASE if request.weights else min(GROUPS_PER_LEASE, request.limit)
        groups: dict[str, None] = {}
        for lane in self._lanes(request):
            if len(groups) >= most:
                break
            if lane.group not in groups and self._has_room(lane, request):
                groups[lane.group] = None
        return list(groups)

    def _parts(self, groups: list[str], request: LeaseRequest) -> list[int]:
        """What each group gets by weight; nothing if all weigh the same."""
        if not request.weights or not groups:
            return []
        ready = list(self._lanes(request))
        weights = [
            weight_of((lane.task for lane in ready if lane.group == group), request.weights)
            for group in groups
        ]
        return self._shares.divide(request.limit, groups, weights)

    def _take_group(
        self, group: str, share: int, worker: WorkerRow, request: LeaseRequest, now: int
    ) -> list[JobRow]:
        lanes = [lane for lane in self._lanes(request) if lane.group == group]
        heads = [(turn, lane) for lane in lanes if (turn := lane.ready.first()) is not None]
        heapq.heapify(heads)  # no two turns are equal: the id is part of them
        taken: list[JobRow] = []
        while heads and len(taken) < share:
            turn, lane = heapq.heappop(heads)
            if not self._has_room(lane, request):
                continue
            row = self._tables.jobs[turn.id]
            self._hand_out(row, worker, now, solo=False)
            taken.append(row)
            following = lane.ready.first()
            if following is not None:
                heapq.heappush(heads, (following, lane))
        return taken

    def _hand_out(self, row: JobRow, worker: WorkerRow, now: int, *, solo: bool) -> None:
        row.token += 1  # before it is held: a lease is named by its token
        self._tables.move(row, RowState.IN_PROGRESS, now, worker=worker)
        row.solo = solo

    def _lanes(self, request: LeaseRequest) -> Iterator[Lane]:
        tasks = frozenset(request.tasks)  # an app may have a thousand datasets
        for lanes in self._tables.ready_lanes.values():
            for lane in lanes.values():
                if lane.task in tasks and lane.app == self._tables.app:
                    yield lane

    def _suspects(self, request: LeaseRequest) -> list[JobRow]:
        """Those of the cell that is asked for, or of all cells that nobody runs, cell by cell."""
        rows = [self._tables.jobs[job_id] for job_id in self._tables.suspects]
        run = {row.cell for row in self._tables.jobs.values() if row.solo and row.worker} - {0}
        return sorted(
            (
                row
                for row in rows
                if row.new.task in request.tasks
                and row.app == self._tables.app
                and (row.cell == request.cell if request.cell else row.cell not in run)
            ),
            key=lambda row: (row.cell, row.id),
        )

    def _has_room(self, lane: Lane, request: LeaseRequest) -> bool:
        return self._tables.full_key(lane.limit_keys, request.caps) is None

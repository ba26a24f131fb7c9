# SPDX-License-Identifier: Apache-2.0
"""Leases ready jobs to workers, fairly.

A skip-scan over lane rows from a rotating cursor: its cost knows neither the backlog nor what is
finished. Groups share the limit by weight; inside a group jobs come by priority, due time and id.
Keyed limits hold here: a lane whose limit key is full is parked until a holder of the key ends.

Shares by weight inside a worker are those of `admission/tasks/queue.py` and `policies.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from typing import NamedTuple

import msgspec

from penstock import failpoints
from penstock.errors import LeaseLost
from penstock.model.job import PAYLOAD_BYTES_MAX, JobState, LeasedJob
from penstock.model.lease import BlockedKey, LeaseBatch, LeaseRequest, dimension_key
from penstock.stores.protocol import (
    CELLS_PER_LEASE,
    GROUPS_PER_LEASE,
    LANES_PER_LEASE,
    LEASE_BYTES_MAX,
    PROMOTE_SLICE,
    SUSPECTS_PER_LEASE,
)
from penstock.stores.sql.dead_workers import sweep
from penstock.stores.sql.dependants import settle
from penstock.stores.sql.schedules import lay_aside
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import PayloadsTooLarge, Transaction

CREDITS_MAX = 4_096  # groups whose balance is remembered


def weight_of(tasks: Iterable[str], weights: Mapping[str, int]) -> int:
    """The weight of a group: that of the heaviest of its tasks that are ready."""
    return max((weights.get(task, 1) for task in tasks), default=1)


class WeightedShares:
    """Owns what each group is still owed, less than a job. Knows neither jobs nor lanes."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}

    def divide(self, limit: int, groups: Sequence[str], weights: Sequence[int]) -> list[int]:
        """The part of each group; together they are the limit."""
        total = sum(weights)
        due = [
            self._owed.get(group, 0.0) + limit * weight / total
            for group, weight in zip(groups, weights, strict=True)
        ]
        parts = [max(0, int(part)) for part in due]
        while (left := limit - sum(parts)) != 0:
            step = 1 if left > 0 else -1
            places = [n for n in range(len(parts)) if parts[n] + step >= 0]
            parts[max(places, key=lambda n: step * (due[n] - parts[n]))] += step
        if len(self._owed) > CREDITS_MAX:
            self._owed.clear()
        for group, part, got in zip(groups, due, parts, strict=True):
            self._owed[group] = min(1.0, max(-1.0, part - got))
        return parts


EMPTY_ROUNDS = 4  # looks of one lease call, while lanes turn out to be empty

_decode_keys = msgspec.json.Decoder(list[str]).decode


class LeaseCursor:
    """Where the round of the groups stands; kept in memory by each process."""

    def __init__(self) -> None:
        self.group = ""
        self.end = ""  # where the round ends, if it takes several calls
        self.largest = PAYLOAD_BYTES_MAX  # characters of the largest payload of the last lease
        self.shares = WeightedShares()
        self.largest_of: dict[int, int] = {}  # the same by lane, of the last lease with jobs

    def note(self, jobs: Sequence[LeasedJob]) -> None:
        """These are a lease: the next ones of their lanes are likely to be as large."""
        if not jobs:
            self.largest = PAYLOAD_BYTES_MAX
            return
        largest: dict[int, int] = {}
        for job in jobs:
            size = len(job.payload)
            if size > largest.get(job.lane_id, -1):
                largest[job.lane_id] = size
        self.largest, self.largest_of = max(largest.values()), largest


class _Room:
    """How many more jobs each keyed limit allows, counted once in this transaction."""

    def __init__(
        self, tx: Transaction, request: LeaseRequest, keys: Sequence[str], *, to_tell: bool = False
    ) -> None:
        # Keys that somebody else is counting just now; who only tells of them may be a bit behind.
        self.busy = frozenset() if to_tell else tx.count_alone(keys)
        wanted = {*keys, *(dimension_key(key) for key in keys)}
        overrides = dict(tx.array("cap_overrides", as_json(sorted(wanted))))
        self.caps: dict[str, int] = {}
        for key in keys:
            cap = request.caps.cap(key, overrides)
            if cap is not None and key not in self.busy:  # else the count may be old at once
                self.caps[key] = cap
        counts = dict(tx.array("count_holders", as_json(list(self.caps))))
        self.left = {key: cap - counts[key] for key, cap in self.caps.items()}

    def full(self, keys: Sequence[str]) -> str | None:
        """The first of these keys that has no room."""
        return next((key for key in keys if self.left.get(key, 1) <= 0), None)

    def is_busy(self, keys: Sequence[str]) -> bool:
        return not self.busy.isdisjoint(keys)

    def most(self, keys: Sequence[str], wanted: int) -> int:
        return min((self.left[key] for key in keys if key in self.left), default=wanted)

    def take(self, keys: Sequence[str], count: int) -> None:
        for key in keys:
            if key in self.left:
                self.left[key] -= count


class _Lane(msgspec.Struct):
    id: int
    group: str
    keys_text: str
    task: str
    most: int = 0  # jobs that it may give
    ready_lanes: int = 1  # of its group; 2 means several
    is_empty: bool = False

    @property
    def keys(self) -> list[str]:
        return [] if self.keys_text == "[]" else _decode_keys(self.keys_text)


class _Found(NamedTuple):
    """What a look at the next groups of the round gave."""

    jobs: list[LeasedJob]
    parked: bool = False  # a lane had to be parked
    emptied: bool = False  # a lane turned out to be empty: another look may find more


class _View(NamedTuple):
    """What a lease call must know first; the order of columns in `lease_view`."""

    expired: int
    settling: int
    next_due_at: int | None
    suspects: int
    paused: int | None
    open_keys: int
    parked: int
    pauses: int


def _look(tx: Transaction) -> _View:
    return _View(*tx.rows("lease_view", tx.boot.boot_id, tx.boot.at, tx.app)[0])


def lease(tx: Transaction, request: LeaseRequest, cursor: LeaseCursor) -> LeaseBatch:
    """Hand out ready jobs."""
    view, more = _catch_up(tx)
    alive = tx.alive(request.worker)
    if alive is None:
        raise LeaseLost(
            f"The lease of worker {request.worker!r} has ended, so it counts as dead. It must "
            f"register again."
        )
    blocked: tuple[BlockedKey, ...] = ()
    jobs: list[LeasedJob] = []
    if view.paused:
        more = False
    elif request.quarantine:
        jobs = _lease_cell(tx, request, alive[0])
        more = more or bool(jobs)
        jobs = lay_aside(tx, jobs) if view.pauses else jobs
    else:
        tasks = as_json(request.tasks)
        if view.open_keys:
            more = _unpark(tx, request, tasks) or more
        parked = False
        for _ in range(EMPTY_ROUNDS):
            found = _lease_ready(tx, request, cursor, tasks, alive[0])
            jobs, parked = found.jobs, parked or found.parked
            if jobs or not found.emptied:
                break
        jobs = lay_aside(tx, jobs) if view.pauses else jobs
        tx.flush_heads()
        more = more or tx.is_ready(tasks, gave=bool(jobs) and not parked)
        if view.parked or parked:
            blocked = _name_blocked(tx, request, tasks)
    failpoints.hit("lease.in_tx")
    tx.passed.append("lease.committed")
    return LeaseBatch(
        jobs=jobs,
        next_due_at=view.next_due_at,
        blocked=blocked,
        more=more,
        suspects=view.suspects,
        paused=bool(view.paused),
    )


def _catch_up(tx: Transaction) -> tuple[_View, bool]:
    """Take back, tell and promote what is due to be; True if some of it is left."""
    tx.flush_heads()
    view = _look(tx)
    due = view.next_due_at is not None and view.next_due_at <= tx.now
    if not (view.expired or view.settling or due):
        return view, False
    more = sweep(tx) if view.expired else False
    more = settle(tx) or more
    more = _promote(tx) or more
    tx.flush_heads()
    return _look(tx), more


def _promote(tx: Transaction) -> bool:
    lanes = tx.rows("promote_due", tx.now, PROMOTE_SLICE)
    tx.touch_all(lane_id for (lane_id,) in lanes)
    return len(lanes) == PROMOTE_SLICE


def _unpark(tx: Transaction, request: LeaseRequest, tasks: str) -> bool:
    """Let lanes try again whose key has room; True if some are left that could."""
    keys = tx.array("list_open_keys")
    if not keys:
        return False
    room = _Room(tx, request, keys)
    left = False
    for key in keys:
        free = room.left.get(key)
        if room.is_busy([key]):
            left = True
            continue
        if free is not None and free <= 0:
            tx.run("close_key", key)  # whoever frees it opens it again
            if room.caps[key] <= 0:
                tx.run("park_for_good", key)
            continue
        woken = tx.run(
            "unpark_lanes", key, tasks, LANES_PER_LEASE if free is None else free, tx.app
        )
        if not tx.value("is_parked_on", key):
            tx.run("close_key", key)
        elif woken:
            left = True
    return left


def _lease_ready(
    tx: Transaction, request: LeaseRequest, cursor: LeaseCursor, tasks: str, no: int
) -> _Found:
    """Serve the next groups of the round."""
    most = GROUPS_PER_LEASE if request.weights else min(GROUPS_PER_LEASE, request.limit)
    heads = _next_heads(tx, cursor, tasks, most)
    if not heads:
        return _Found([])
    lanes = _with_siblings(tx, heads, tasks)
    keys = sorted({key for lane in lanes for key in lane.keys})
    room = _Room(tx, request, keys) if keys else None
    by_group: dict[str, list[_Lane]] = {lane.group: [] for lane in heads}
    parked: list[tuple[int, str]] = []
    for lane in lanes:
        full = room.full(lane.keys) if room else None
        if full is not None:
            parked.append((lane.id, full))
        elif room is None or not room.is_busy(lane.keys):
            by_group[lane.group].append(lane)
    _share(tx, by_group, _quotas(by_group, request, cursor), room)
    jobs = _take(tx, [lane for lane in lanes if lane.most > 0], no, cursor)
    given: dict[int, int] = {}
    for job in jobs:
        given[job.lane_id] = given.get(job.lane_id, 0) + 1
    # With jobs in hand nobody waits for that: the next call finds out which lanes are empty.
    emptied = not jobs and tx.ran_short(
        [lane.id for lane in lanes if lane.is_empty or given.get(lane.id, 0) < lane.most]
    )
    if room is not None:
        _park(tx, lanes, parked, room)
    # With all groups served, the next call needs no second look for those before the cursor.
    _go_on(tx, cursor, heads[-1].group if len(heads) == most else "")
    return _Found(jobs, bool(parked), emptied)


def _with_siblings(tx: Transaction, heads: list[_Lane], tasks: str) -> list[_Lane]:
    """The lanes to serve: the first of each group, and more where a group has several."""
    wider = [lane.group for lane in heads if lane.ready_lanes > 1]
    if not wider:
        return heads
    per_group = max(1, LANES_PER_LEASE // len(heads))
    rows = tx.array("ready_lanes", as_json(wider), per_group, tasks, tx.app)
    siblings = [_Lane(*row) for row in rows]
    if len(siblings) >= per_group:
        tx.had_their_turn([lane.id for lane in siblings])
    return [lane for lane in heads if lane.ready_lanes <= 1] + siblings


def _park(
    tx: Transaction, lanes: Sequence[_Lane], parked: list[tuple[int, str]], room: _Room
) -> None:
    """Let lanes wait that were found full, and those that have just filled their key."""
    known = {lane_id for lane_id, _ in parked}
    for lane in lanes:
        full = room.full(lane.keys)
        if full is not None and lane.most > 0 and lane.id not in known:
            parked.append((lane.id, full))
    if parked:
        tx.flush_heads()
        number = tx.next_parking()
        rows = [(lane_id, key, number if room.caps[key] else 0) for lane_id, key in parked]
        tx.park_lanes(rows)


def _next_heads(tx: Transaction, cursor: LeaseCursor, tasks: str, most: int) -> list[_Lane]:
    """The first ready lanes of the next groups of the round; it begins again at its end."""
    heads = [_Lane(*row) for row in tx.array("ready_heads", cursor.group, most, tasks, tx.app)]
    if len(heads) < most and cursor.group:
        known = {lane.group for lane in heads}
        rows = tx.array("ready_heads", "", most - len(heads), tasks, tx.app)
        heads += [lane for row in rows if (lane := _Lane(*row)).group not in known]
    return heads


def _go_on(tx: Transaction, cursor: LeaseCursor, last: str) -> None:
    """Where the next call goes on: a round ends with the last group that was there at its begin.

    Else groups whose names grow, such as times, would keep it from ever beginning again.
    """
    if last <= cursor.group:
        cursor.end = ""  # it has begun again on the way
    if last and not cursor.end:
        cursor.end = tx.first("last_ready_group", tx.app) or last
    if last >= cursor.end:
        last = cursor.end = ""
    cursor.group = last


def _quotas(
    groups: Mapping[str, list[_Lane]], request: LeaseRequest, cursor: LeaseCursor
) -> dict[str, int]:
    """Divide the limit between groups: evenly, or by weight between those with room."""
    if not request.weights:
        return dict.fromkeys(groups, max(1, request.limit // len(groups)))
    names = [group for group, lanes in groups.items() if lanes]
    if not names:
        return {}
    weights = [weight_of((lane.task for lane in groups[group]), request.weights) for group in names]
    parts = cursor.shares.divide(request.limit, names, weights)
    return dict(zip(names, parts, strict=True))


def _share(
    tx: Transaction,
    groups: Mapping[str, list[_Lane]],
    quotas: Mapping[str, int],
    room: _Room | None,
) -> None:
    """Divide a group's part between its lanes."""
    for group, lanes in groups.items():
        quota = quotas.get(group, 0)
        if not quota:
            continue
        open_lanes = [lane for lane in lanes if room is None or room.full(lane.keys) is None]
        if len(open_lanes) > 1:
            _share_lanes(tx, open_lanes, quota, room)
        elif open_lanes:
            lane = open_lanes[0]
            lane.most = quota if room is None else min(quota, room.most(lane.keys, quota))
            if room is not None:
                room.take(lane.keys, lane.most)


def _share_lanes(tx: Transaction, lanes: Sequence[_Lane], quota: int, room: _Room | None) -> None:
    """Serve several lanes of a group in the order of their jobs."""
    by_id = {lane.id: lane for lane in lanes}
    keys = {lane.id: lane.keys for lane in lanes}
    promised = 0
    order = tx.merge_lanes(list(by_id), quota)
    for lane_id in by_id.keys() - set(order):
        by_id[lane_id].is_empty = True
    for lane_id in order:
        if promised == quota:
            break
        if room is not None:
            if room.full(keys[lane_id]) is not None:
                continue
            room.take(keys[lane_id], 1)
        by_id[lane_id].most += 1
        promised += 1


def _take_jobs(
    tx: Transaction, cursor: LeaseCursor, lane_ids: Sequence[int], most: int, no: int
) -> list[LeasedJob]:
    """The first jobs of lanes; fewer of each where their payloads are large."""
    lanes = as_json(lane_ids)
    largest = sum(cursor.largest_of.get(lane_id, cursor.largest) for lane_id in lane_ids)
    while most > 1:
        likely = largest * most > LEASE_BYTES_MAX
        if not (likely and tx.value("weigh_jobs", lanes, most) > LEASE_BYTES_MAX):
            break
        most //= 2
    try:
        jobs = tx.take_jobs(lane_ids, most, no)
    except PayloadsTooLarge:  # all at once they became large: weigh them, and take fewer
        cursor.largest = PAYLOAD_BYTES_MAX
        cursor.largest_of.clear()
        return _take_jobs(tx, cursor, lane_ids, max(most // 2, 1), no) if most > 1 else []
    cursor.note(jobs)
    return jobs


def _take(tx: Transaction, lanes: Sequence[_Lane], no: int, cursor: LeaseCursor) -> list[LeasedJob]:
    """Lease the first jobs of lanes; one statement for all lanes that give equally many."""
    jobs: list[LeasedJob] = []
    by_most: dict[int, list[int]] = {}
    for lane in lanes:
        by_most.setdefault(lane.most, []).append(lane.id)
    for most, lane_ids in by_most.items():
        jobs += _take_jobs(tx, cursor, lane_ids, most, no)
    turns = {lane.group: turn for turn, lane in enumerate(lanes)}
    # The statement picks the right ones, but hands them out by id.
    jobs.sort(key=lambda job: (turns[job.group], -job.priority, job.due_at, job.id))
    tx.mark_leased(jobs, no)
    keys = {lane.id: lane.keys for lane in lanes if lane.keys_text != "[]"}
    if keys:
        held = [
            (job.id, job.token, key) for job in jobs if job.limited for key in keys[job.lane_id]
        ]
        tx.run("hold_keys", as_json(held))
    counts: dict[int, int] = {}
    for job in jobs:
        counts[job.lane_id] = counts.get(job.lane_id, 0) + 1
    for lane_id, count in counts.items():
        tx.move(lane_id, JobState.QUEUED, JobState.IN_PROGRESS, count)
    return jobs


class _Suspect(NamedTuple):
    """The order of columns in `list_suspects`."""

    cell: int
    id: int
    keys_text: str
    bytes: int

    @property
    def mates(self) -> tuple[int, int]:
        """Equal for those that may run together; in cell 0 everybody is alone."""
        return self.cell, 0 if self.cell else self.id


def _lease_cell(tx: Transaction, request: LeaseRequest, no: int) -> list[LeasedJob]:
    """Suspects of one cell: the first of which some may run now."""
    if request.limit < 1:
        return []
    tasks = as_json(request.tasks)
    found = tx.array("list_suspects", tasks, request.cell, SUSPECTS_PER_LEASE, tx.app)
    cells = groupby((_Suspect(*row) for row in found), key=lambda one: one.mates)
    for _, members in islice(cells, CELLS_PER_LEASE):
        chosen = _choose_suspects(tx, request, list(members))
        jobs = tx.take_suspects(list(chosen), no) if chosen else []
        held = [(job.id, job.token, key) for job in jobs for key in chosen[job.id]]
        if held:
            tx.run("hold_keys", as_json(held))
        for job in jobs:
            tx.move(job.lane_id, JobState.QUEUED, JobState.IN_PROGRESS)
        if jobs:
            return jobs
    return []


def _choose_suspects(
    tx: Transaction, request: LeaseRequest, members: Sequence[_Suspect]
) -> dict[int, list[str]]:
    """Those of a cell that fit, with their limit keys."""
    keys_of = {one.id: _decode_keys(one.keys_text) for one in members}
    keys = sorted({key for keys in keys_of.values() for key in keys})
    room = _Room(tx, request, keys) if keys else None
    chosen: dict[int, list[str]] = {}
    left = LEASE_BYTES_MAX
    for one in members:
        if len(chosen) == request.limit or (chosen and one.bytes > left):
            break
        keys = keys_of[one.id]
        if room is not None:
            if room.is_busy(keys) or room.full(keys) is not None:
                continue
            room.take(keys, 1)
        chosen[one.id] = keys
        left -= one.bytes
    return chosen


def _name_blocked(tx: Transaction, request: LeaseRequest, tasks: str) -> tuple[BlockedKey, ...]:
    """The full keys that lanes of this worker's tasks wait for, with their holders."""
    keys = tx.array("parked_keys", tasks, tx.app)
    if not keys:
        return ()
    room = _Room(tx, request, keys, to_tell=True)
    return tuple(
        BlockedKey(key, room.caps[key], tuple(tx.array("name_holders", key)))
        for key in keys
        if room.left.get(key, 1) <= 0
    )

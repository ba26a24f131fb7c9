# SPDX-License-Identifier: Apache-2.0
"""Enqueues a batch of jobs: lanes, rows and edges, all or nothing.

Duplicates are known by their key: the first job of a key wins, and it stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from operator import attrgetter

import msgspec

from penstock import failpoints
from penstock.clock import MICROSECONDS
from penstock.errors import EnqueueRefused
from penstock.model.job import (
    BATCH_JOBS_MAX,
    AttemptError,
    Edge,
    EdgeKind,
    ErrorCategory,
    JobKind,
    JobState,
    NewJob,
    kind_of_name,
)
from penstock.model.strict_json import is_same
from penstock.model.views import EnqueueReport
from penstock.stores.group_commit import Contended
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import LaneSpec, Transaction

_encode = msgspec.json.Encoder().encode
_spec: Callable[[NewJob], LaneSpec] = attrgetter("task", "group", "limit_keys", "kind")

_Placed = tuple[NewJob, LaneSpec, int]  # a job and its lane


def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> EnqueueReport:
    """Accept jobs, all or nothing; the first of a key wins. Runs in a savepoint."""
    if len(jobs) > BATCH_JOBS_MAX:
        raise EnqueueRefused(
            f"{len(jobs):,} jobs in one batch; at most {BATCH_JOBS_MAX:,} are accepted together."
        )
    if not jobs:
        return EnqueueReport(frozenset(), frozenset())
    if len(jobs) == 1 and not jobs[0].after and _insert_alone(tx, jobs[0]):
        return EnqueueReport(frozenset((jobs[0].key,)), frozenset())
    # Before they get ids: ids must grow from a job to those that wait for it.
    wanted = sorted({edge.key for job in jobs for edge in job.after})
    parents = tx.find_jobs(wanted) if wanted else {}
    specs = [*map(_spec, jobs)]
    lanes = lanes_of(tx, {*specs})
    lane_ids = [lanes[spec] for spec in specs]
    created = tx.insert_jobs(_rows(jobs, lane_ids, tx.now))
    failpoints.hit("enqueue.in_tx")
    tx.passed.append("enqueue.committed")
    keys = frozenset(created)
    known = differing = frozenset[str]()
    if len(created) == len(jobs):
        fresh = list(zip(jobs, specs, lane_ids, strict=True))
    else:
        fresh = _first_of_each(zip(jobs, specs, lane_ids, strict=True), created)
        known = frozenset(job.key for job in jobs) - keys
        differing = _differing(tx, jobs, {id(job) for job, _, _ in fresh})
    with_edges = [(job, lane_id) for job, _, lane_id in fresh if job.after]
    _arrive(tx, [one for one in fresh if not one[0].after] if with_edges else fresh)
    if with_edges:
        _link(tx, with_edges, created, parents, {job.key for job in jobs})
    return EnqueueReport(keys, known, differing)


def _differing(tx: Transaction, jobs: Sequence[NewJob], fresh: Set[int]) -> frozenset[str]:
    """The keys of jobs that were not accepted, and whose task or payload is not the kept one's."""
    known = [job for job in jobs if id(job) not in fresh]
    rows = [(job.key, job.task, job.payload) for job in known]
    return frozenset(
        known[place].key
        for place, task, payload in tx.differing_jobs(rows)
        if task != known[place].task or not is_same(payload, known[place].payload)
    )


def _first_of_each(jobs: Iterable[_Placed], created: dict[str, int]) -> list[_Placed]:
    """The jobs that were new; of two with one key the first counts."""
    first: dict[str, _Placed] = {}
    for placed in jobs:
        if placed[0].key in created:
            first.setdefault(placed[0].key, placed)
    return list(first.values())


def _arrive(tx: Transaction, jobs: Sequence[_Placed]) -> None:
    """Count new jobs that wait for no other, and let leasing find those that are due."""
    for (task, group, _, _), count in Counter([spec for _, spec, _ in jobs]).items():
        tx.arrive(task, group, JobState.QUEUED, count)
    due = {lane_id for job, _, lane_id in jobs if job.delay_seconds <= 0}
    tx.touch_all(due)
    if any(job.delay_seconds > 0 for job, _, _ in jobs):
        tx.made_work = True


def _insert_alone(tx: Transaction, job: NewJob) -> bool:
    """The short way for one new job in a known lane; False if it has to go the long way."""
    state, due_at = _first_state(job, tx.now)
    row = tx.row(
        "insert_job", *_row_alone(job, tx.lane_text(_spec(job), tx.app), state, due_at, tx.now)
    )
    if row is None:
        return False
    failpoints.hit("enqueue.in_tx")
    tx.passed.append("enqueue.committed")
    tx.arrive(job.task, job.group, JobState.QUEUED)
    tx.made_work = True
    if state is RowState.READY:
        tx.touch(row[0])
    return True


def foreseen_alone(
    jobs: Sequence[NewJob], lane_text: Callable[[LaneSpec, int], str], app: int
) -> Callable[[int | None], tuple[object, ...]] | None:
    """What `insert_job` will be asked with at a time; None where that is not certain."""
    if len(jobs) != 1 or jobs[0].after or jobs[0].delay_seconds > 0:
        return None
    job, lane = jobs[0], lane_text(_spec(jobs[0]), app)
    return lambda now: _row_alone(job, lane, RowState.READY, now, now)


def _row_alone(
    job: NewJob, lane: str, state: RowState, due_at: int | None, now: int | None
) -> tuple[object, ...]:
    return (
        job.key,
        lane,
        job.partition,
        job.priority,
        job.payload,
        int(state),
        due_at,
        job.plan_id,
        job.level,
        now,
    )


def _first_state(job: NewJob, now: int) -> tuple[RowState, int]:
    """The state that a new job starts in, and when it is due."""
    if job.delay_seconds > 0:
        due_at = now + round(job.delay_seconds * MICROSECONDS)
        return (RowState.WAITING if job.after else RowState.DELAYED), due_at
    return (RowState.WAITING if job.after else RowState.READY), now


def specs_of(jobs: Iterable[NewJob]) -> set[LaneSpec]:
    """The lanes that jobs belong to."""
    return {*map(_spec, jobs)}


def lanes_of(tx: Transaction, specs: Set[LaneSpec]) -> dict[LaneSpec, int]:
    """The lanes that a batch needs, made if need be."""
    texts = {tx.lane_text(spec, tx.app): spec for spec in specs}
    return {texts[text]: lane_id for text, lane_id in tx.lane_ids(texts).items()}


def _rows(jobs: Sequence[NewJob], lane_ids: Sequence[int], now: int) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for job, lane_id in zip(jobs, lane_ids, strict=True):
        if job.after or job.delay_seconds > 0:
            state, due_at = _first_state(job, now)
        else:
            state, due_at = RowState.READY, now
        rows.append(
            (
                job.key,
                lane_id,
                job.partition,
                job.priority,
                job.payload,
                int(state),
                due_at,
                job.plan_id,
                job.level,
            )
        )
    return rows


def _link(
    tx: Transaction,
    jobs: Sequence[tuple[NewJob, int]],
    created: dict[str, int],
    found: dict[str, tuple[int, int]],
    batch: set[str],
) -> None:
    """Resolve the edges of new jobs, in their order, so that a skip goes down a chain."""
    parents = {key: (job_id, int(RowState.READY)) for key, job_id in created.items()} | found
    edges: list[tuple[int, int, str, int, int]] = []
    placed: list[tuple[object, ...]] = []
    states: dict[int, RowState] = {}
    for job, lane_id in jobs:
        child_id = created[job.key]
        first = len(edges)
        pending, spoiler = 0, None
        for ordinal, edge in enumerate(_strictest(job.after)):
            if kind_of_name(edge.key) is JobKind.TICK:
                raise no_end(job.key, edge.key)
            if edge.key not in parents:
                if edge.key in batch:
                    raise Contended(f"Another process was accepting {edge.key!r} just now.")
                raise EnqueueRefused(
                    f"Job {edge.key!r} does not exist, but job {job.key!r} is to run after it. "
                    f"Enqueue it first, or correct the key."
                )
            parent_id, row_state = parents[edge.key]
            if parent_id >= child_id:
                raise EnqueueRefused(
                    f"Job {job.key!r} is to run after {edge.key!r}, which is the same job or comes "
                    f"later in the batch. Put a job behind those that it runs after."
                )
            state = states.get(parent_id, RowState(row_state))
            if state < RowState.DONE:
                pending += 1
                edges.append((parent_id, child_id, edge.kind, 1, ordinal))
                continue
            edges.append((parent_id, child_id, edge.kind, 0, ordinal))
            if edge.kind is EdgeKind.SUCCESS and state is not RowState.DONE:
                blamed = (parent_id, state, edge.key)
                spoiler = blamed if spoiler is None else min(spoiler, blamed)  # the oldest
        placed.append(_place(tx, job, lane_id, child_id, pending, spoiler, states))
        if spoiler is not None:
            edges[first:] = [(p, c, kind, 0, n) for p, c, kind, _, n in edges[first:]]
    tx.run("insert_edges", as_json(edges))
    tx.run("place_children", as_json(placed))


def _strictest(after: Sequence[Edge]) -> list[Edge]:
    """Each parent once; of two edges to one job, `success` counts."""
    edges: dict[str, Edge] = {}
    for edge in after:
        if edge.key not in edges or edge.kind is EdgeKind.SUCCESS:
            edges[edge.key] = edge
    return list(edges.values())


def _place(
    tx: Transaction,
    job: NewJob,
    lane_id: int,
    child_id: int,
    pending: int,
    spoiler: tuple[int, RowState, str] | None,
    states: dict[int, RowState],
) -> tuple[object, ...]:
    if spoiler is not None:
        parent_id, parent_state, parent_key = spoiler
        states[child_id] = RowState.SKIPPED
        tx.arrive(job.task, job.group, JobState.SKIPPED)
        error = _encode(upstream_error(parent_state, parent_key)).decode()
        return (child_id, int(RowState.SKIPPED), 0, parent_id, error, tx.now)
    if pending:
        states[child_id] = RowState.WAITING
        tx.arrive(job.task, job.group, JobState.WAITING)
        return (child_id, int(RowState.WAITING), pending, None, None, None)
    state = RowState.DELAYED if job.delay_seconds > 0 else RowState.READY
    states[child_id] = state
    tx.arrive(job.task, job.group, JobState.QUEUED)
    tx.made_work = True
    if state is RowState.READY:
        tx.touch(lane_id)
    return (child_id, int(state), 0, None, None, None)


def upstream_error(parent_state: int, parent_key: str) -> AttemptError:
    """Why a dependant was skipped."""
    word = "skipped" if parent_state == RowState.SKIPPED else "failed"
    return AttemptError(ErrorCategory.OWN, "upstream", f"upstream {word}: {parent_key}")


def no_end(key: str, unit: str) -> EnqueueRefused:
    """Why a job cannot wait for a unit."""
    return EnqueueRefused(
        f"Job {key!r} cannot run after {unit!r}: a unit of a schedule never ends. Let the "
        "schedule enqueue the job."
    )

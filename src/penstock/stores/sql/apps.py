# SPDX-License-Identifier: Apache-2.0
"""Apps of a store: they sign on, take over what has no owner, and are renamed.

What was enqueued before stores knew apps has no owner. An app that serves all of it, in a store
that names no other, gives it its name; else what is its own moves to it, in slices by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.clock import BootTime
from penstock.errors import UsageError
from penstock.model.job import JobId, JobKind, JobState, kind_of_name
from penstock.model.views import AppView, Moved
from penstock.sentences import command, counted
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.enqueue import lanes_of
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import Statements, as_json
from penstock.stores.sql.transaction import UNOWNED, LaneSpec, Transaction, scoped, unscoped

MOVE_SLICES = 5_000  # slices of a dataset that go at once

_decode_keys = msgspec.json.Decoder(tuple[str, ...]).decode


class SignedOn(NamedTuple):
    """The number of an app, and what it has taken over so far."""

    no: int
    moved: Moved


class _Job(NamedTuple):
    """A job that goes to another app; the order of columns in `movable_jobs`."""

    id: int
    key: str
    lane_id: int
    row_state: int
    task: str
    group: str
    limit_keys: str
    kind: str

    @property
    def spec(self) -> LaneSpec:
        return self.task, self.group, _decode_keys(self.limit_keys), JobKind(self.kind)


NOTHING = Moved(0, False, JobId(0))


def sign_on(tx: Transaction, name: str, tasks: Sequence[str] | None, after: JobId) -> SignedOn:
    """The number of an app, which takes a slice of what is its own and has no owner.

    Without tasks it takes nothing.
    """
    tx.one_at_a_time()
    known = tx.first("read_app", name)
    is_unowned = tasks is not None and tx.first("read_app", "") == UNOWNED
    is_alone = is_unowned and not tx.value("is_app_named", name)
    if known is None and is_alone and _serves_all(tx, tasks or ()):
        tx.run("name_app", UNOWNED, name)
        known = UNOWNED
    elif known is None:
        tx.run("add_app", name)
        known = tx.value("read_app", name)
    tx.run("see_app", known, tx.now)
    tx.app = known
    if tasks is None or not is_unowned or known == UNOWNED:
        return SignedOn(known, NOTHING)
    return SignedOn(known, _take_over(tx, name, tasks if is_alone else (), after, is_alone))


def _serves_all(tx: Transaction, tasks: Sequence[str]) -> bool:
    """Whether nothing without an owner is left if an app with these tasks takes what is its own.

    Units and plans name their app, which is the only one here.
    """
    return {task for task in _unowned(tx) if kind_of_name(task) is JobKind.JOB} <= {*tasks}


def _unowned(reader: Statements) -> dict[str, int]:
    """Jobs without an owner, by task."""
    counts: dict[str, int] = {}
    for task, _, n in reader.rows("read_task_counts", UNOWNED):
        counts[task] = counts.get(task, 0) + n
    return counts


def _take_over(
    tx: Transaction, name: str, tasks: Sequence[str], after: JobId, is_alone: bool
) -> Moved:
    has_jobs = not {*tasks}.isdisjoint(_unowned(tx)) or tx.value("is_named_in", UNOWNED, name)
    moved = _move(tx, UNOWNED, name, tasks, after) if has_jobs else NOTHING
    if moved.more or not is_alone:
        return moved
    return _move_names(tx, UNOWNED)


def adopt(tx: Transaction, name: str, tasks: Sequence[str] | None, after: JobId) -> Moved:
    """Give an app a slice of what has no owner: all of it, or jobs of these tasks."""
    tx.one_at_a_time()
    tx.app = _number_of(tx, name)
    if tx.first("read_app", "") != UNOWNED:
        return NOTHING
    moved = _move(tx, UNOWNED, name, tasks, after)
    return moved if moved.more or tasks is not None else _move_names(tx, UNOWNED, moved)


def rename(tx: Transaction, old: str, new: str, after: JobId) -> Moved:
    """Give an app another name; a slice of its jobs, if another app has that name already."""
    tx.one_at_a_time()
    source = _number_of(tx, old)
    rows = tx.rows("list_apps", tx.boot.boot_id, tx.boot.at)
    live = next(workers for no, _, _, workers in rows if no == source)
    if live:
        raise UsageError(
            f"The app {old!r} has {counted(live, 'live worker')}; stop every one before it is "
            "renamed."
        )
    target = tx.first("read_app", new)
    tx.app = source if target is None else target
    if target is None:
        tx.run("name_app", source, new)
        moved = NOTHING
    else:
        moved = _merge(tx, source, old, new, after)
    if not moved.more:
        for query in ("rename_units", "rename_preflights", "rename_plans", "rename_calls"):
            tx.run(query, old, new)
        tx.rename_accounts(old, new)
    return moved


def _merge(tx: Transaction, source: int, old: str, new: str, after: JobId) -> Moved:
    common = tx.first("common_key", source, tx.app)
    if common is not None:
        raise UsageError(
            f"The apps {old!r} and {new!r} both have a job {common!r}, so they cannot become one; "
            "purge it in one of them first."
        )
    moved = _move(tx, source, new, None, after)
    return moved if moved.more else _move_names(tx, source, moved)


def _number_of(tx: Transaction, name: str) -> int:
    number = tx.first("read_app", name)
    if number is None:
        raise UsageError(
            f"No app {name!r} is known in this store; '{command('app', 'list')}' names those that "
            "are."
        )
    return int(number)


def _move(
    tx: Transaction, source: int, name: str, tasks: Sequence[str] | None, after: JobId
) -> Moved:
    """Move a slice of jobs to our app; those whose key it has already stay."""
    end = tx.value("window_end", after, CHORE_SLICE)
    if end is None:
        return Moved(0, False, after)
    tx.hold("hold_movable", source, after, end)
    wanted = None if tasks is None else as_json(tasks)
    found = [_Job(*row) for row in tx.rows("movable_jobs", source, after, end, wanted, name)]
    taken = set(tx.array("taken_keys", as_json([job.key for job in found]), tx.app))
    jobs = [job for job in found if job.key not in taken]
    if jobs:
        lanes = lanes_of(tx, {job.spec for job in jobs})
        tx.run("move_jobs", as_json([(job.id, lanes[job.spec]) for job in jobs]), tx.app)
        for job in jobs:
            _moved(tx, job, lanes[job.spec])
        units = [job.key for job in jobs if job.kind == JobKind.TICK]
        for key in units:
            tx.run("move_cursor", scoped(source, key), scoped(tx.app, key))
    return Moved(len(jobs), True, JobId(end))


def _moved(tx: Transaction, job: _Job, lane_id: int) -> None:
    state = PUBLIC[job.row_state]
    tx.move(job.lane_id, state, None)
    tx.move(lane_id, None, state)
    if job.row_state == RowState.READY:
        tx.leave(job.lane_id)
        tx.touch(lane_id)
    tx.made_work = True


def _move_names(tx: Transaction, source: int, moved: Moved = NOTHING) -> Moved:
    """Move cursors and a slice of the datasets of an app to ours."""
    for stored, is_dataset in tx.rows("cursors_and_datasets"):
        app, name = unscoped(stored)
        if app != source:
            continue
        if not is_dataset:
            tx.run("move_cursor", stored, scoped(tx.app, name))
        elif tx.run("move_slices", stored, scoped(tx.app, name), MOVE_SLICES) == MOVE_SLICES:
            return Moved(moved.count, True, moved.last)
    tx.run("copy_pauses", source, tx.app)
    tx.run("drop_pauses", source)
    return moved


def apps_of(reader: Statements, boot: BootTime) -> list[AppView]:
    """Every app of a store, with its jobs."""
    tasks: dict[int, dict[str, dict[JobState, int]]] = {}
    for app, task, state, n in reader.rows("app_counts"):
        if kind_of_name(task) is not JobKind.TICK:
            tasks.setdefault(app, {}).setdefault(task, {})[JobState(state)] = n
    return [
        AppView(name=name, tasks=tasks.get(no, {}), workers=workers, seen_at=seen_at or None)
        for no, name, seen_at, workers in reader.rows("list_apps", boot.boot_id, boot.at)
        if name or tasks.get(no)
    ]

# SPDX-License-Identifier: Apache-2.0
"""Arms and retires units of schedules, each one job for ever; keeps results of preflights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from enum import StrEnum
from typing import NamedTuple

import msgspec

from penstock import failpoints
from penstock.errors import EnqueueRefused
from penstock.model.job import AttemptError, JobKind, JobState, LeasedJob
from penstock.model.plan import KeptEnd
from penstock.model.schedule import (
    ARM_UNITS_MAX,
    RETRY_WAIT_MAX,
    ArmReport,
    PreflightResult,
    UnitPlan,
    UnitView,
    tried_at,
)
from penstock.stores.group_commit import Contended
from penstock.stores.sql.enqueue import lanes_of
from penstock.stores.sql.operator import cancel, refuse_several
from penstock.stores.sql.retention import forget_lanes
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import Row, Statements, as_json
from penstock.stores.sql.transaction import LaneSpec, Transaction, scoped, unscoped

UNITS_READ = 1_000  # at once
FAILING_UNITS_MAX = 1_000  # that are told of
FAILED_CHECKS_MAX = 1_000  # that are told of

_decode_error = msgspec.json.Decoder(AttemptError).decode


def units_of(reader: Statements, app: str | None, after_key: str, limit: int) -> list[UnitView]:
    if app is None:
        rows = reader.rows("list_all_units", after_key, limit)
    else:
        rows = reader.rows("list_units", app, after_key, limit)
    return [_view(row) for row in rows]


def unit_of(reader: Statements, key: str, app: int | None) -> UnitView | None:
    """A unit of an app; of any, if only one has such a unit."""
    units = [_view(row) for row in reader.rows("read_unit", key, app)]
    refuse_several(key, [unit.app for unit in units])
    return units[0] if units else None


def failing_units_of(reader: Statements) -> tuple[UnitView, ...]:
    """Units whose last try failed, or that have ended in error; a bounded number of each app."""
    found: list[UnitView] = []
    last = ""
    while len(found) < FAILING_UNITS_MAX and (page := units_of(reader, None, last, UNITS_READ)):
        last = page[-1].key
        found += [unit for unit in page if unit.is_failing or unit.state is JobState.ERROR]
    return tuple(found[:FAILING_UNITS_MAX])


def cursors_of(reader: Statements, names: Sequence[str], app: int) -> dict[str, str]:
    """Those of these cursors of an app that are set."""
    rows = reader.array("read_cursors", as_json([scoped(app, name) for name in names]))
    return {unscoped(name)[1]: value for name, value in rows}


def preflights_of(
    reader: Statements, app: str, after_unit: str, limit: int
) -> list[PreflightResult]:
    return [_result(row) for row in reader.rows("list_preflights", app, after_unit, limit)]


def kept_ends_of(reader: Statements) -> tuple[tuple[str, KeptEnd], ...]:
    """The units that keep datasets current, and how their last plans ended."""
    rows = reader.rows("list_kept_ends")
    found = [(unscoped(name)[1], KeptEnd.read(value)) for name, value in rows]
    return tuple((unit, end) for unit, end in found if end is not None)


def checked_of(reader: Statements, app: str, units: Sequence[str]) -> list[PreflightResult]:
    """What is kept of these units of preflights."""
    return [_result(row) for row in reader.rows("read_preflights", app, as_json(sorted({*units})))]


def failed_checks_of(reader: Statements) -> tuple[PreflightResult, ...]:
    """Checks that did not pass at the last start of their app; a bounded number."""
    return tuple(_result(row) for row in reader.rows("list_failed_preflights", FAILED_CHECKS_MAX))


def _result(row: Row) -> PreflightResult:
    unit, name, partition, value, error, checked_at = row
    return PreflightResult(
        unit=unit,
        name=name,
        partition=partition,
        value=value,
        error=None if error is None else _decode_error(error),
        checked_at=checked_at,
    )


def broken_units(reader: Statements) -> Iterator[str]:
    """Every broken invariant of units, as sentences."""
    for (sentence,) in reader.rows("check_units"):
        yield f"{sentence}."


def _view(row: Row) -> UnitView:
    return UnitView(
        key=row[0],
        app=row[1],
        task=row[2],
        partition=row[3],
        timing=row[4],
        state=PUBLIC[row[5]],
        due_at=row[6],
        available_at=row[7],
        attempts=row[8],
        deferred_since=row[9],
        last_error=None if row[10] is None else _decode_error(row[10]),
        ticks=row[11],
        missed=row[12],
        failed=row[13],
        last_tick_at=row[14],
        retired_at=row[15],
        paused_by=row[16],
        paused_at=row[17],
    )


class Change(StrEnum):
    """What arming does to a unit; the fields of `ArmReport`."""

    NEW = "new"
    KEPT = "kept"
    RETIMED = "retimed"
    REVIVED = "revived"


def planned(units: Sequence[UnitPlan], now: int) -> dict[str, UnitPlan]:
    """The plans of one call by key; the first of a key counts, and begins within its period."""
    refuse_many(units)
    first: dict[str, UnitPlan] = {}
    for unit in units:
        at = tried_at(unit.first_at, unit.period, now)
        if at != unit.first_at:  # the clock of its worker is ahead
            unit = msgspec.structs.replace(unit, first_at=at)
        first.setdefault(unit.key, unit)
    return first


def refuse_many(units: Sized) -> None:
    """Raise if one call has too many."""
    if len(units) > ARM_UNITS_MAX:
        raise EnqueueRefused(
            f"{len(units):,} units in one call; at most {ARM_UNITS_MAX:,} are accepted together."
        )


def no_unit(key: str) -> EnqueueRefused:
    """Why a unit cannot be armed whose key is a job's."""
    return EnqueueRefused(
        f"The schedule's unit {key!r} cannot be armed: a job of that key was enqueued. Rename the "
        "schedule, or cancel and purge that job."
    )


def judge(row_state: int, *, same_timing: bool) -> Change:
    """What arming does to a unit that is known."""
    if row_state >= RowState.DONE:
        return Change.REVIVED
    return Change.KEPT if same_timing else Change.RETIMED


def due_after(first_at: int, row_state: int, due_at: int, last_due_at: int | None) -> int:
    """When a unit that is armed again is due: never at or before its last success."""
    done = due_at if row_state == RowState.DONE else last_due_at
    return first_at if done is None else max(first_at, done + 1)


def sooner_at(plan: UnitPlan, due_at: int, available_at: int, now: int) -> int:
    """When a known unit that waits is tried, if the clock may have been set back meanwhile."""
    if plan.period is None:
        return available_at
    failed = available_at > due_at
    return tried_at(available_at, max(plan.period, RETRY_WAIT_MAX * failed), now)


def report(changes: Sequence[Change]) -> ArmReport:
    return ArmReport(**{str(change): changes.count(change) for change in Change})


class _Known(NamedTuple):
    """A job of a unit's key; the order of columns in `find_units`."""

    key: str
    job_id: int
    lane_id: int
    row_state: int
    due_at: int
    partition: str | None
    payload: str
    app: str | None  # None: it is no unit
    timing: str | None
    last_due_at: int | None
    retired_at: int | None
    available_at: int


class _Armed(NamedTuple):
    """A known unit, its new plan, and what follows from the difference."""

    was: _Known
    plan: UnitPlan
    lane_id: int
    change: Change


def arm(tx: Transaction, app: str, units: Sequence[UnitPlan]) -> ArmReport:
    """Let units be as they are planned, all or nothing. Runs in a savepoint."""
    plans = planned(units, tx.now)
    if not plans:
        return ArmReport()
    tx.flush_units()
    known = _find(tx, plans)
    lanes = lanes_of(tx, {*map(_spec, plans.values())})
    fresh = [plan for plan in plans.values() if plan.key not in known]
    if fresh:
        _add(tx, app, fresh, lanes)
    armed = [
        _Armed(
            was,
            plans[was.key],
            lanes[_spec(plans[was.key])],
            judge(was.row_state, same_timing=was.timing == plans[was.key].timing),
        )
        for was in known.values()
    ]
    _change(tx, app, armed)
    failpoints.hit("arm.in_tx")
    tx.passed.append("arm.committed")
    return report([Change.NEW] * len(fresh) + [one.change for one in armed])


def _spec(plan: UnitPlan) -> LaneSpec:
    return plan.task, plan.group, plan.limit_keys, JobKind.TICK


def _find(tx: Transaction, keys: Sequence[str] | dict[str, UnitPlan]) -> dict[str, _Known]:
    """The units of these keys as they are until the commit; raises if a job is none."""
    found = [_Known(*row) for row in tx.find_units(sorted(keys))]
    for one in found:
        if one.app is None:
            raise no_unit(one.key)
    return {one.key: one for one in found}


def _first_state(tx: Transaction, due_at: int) -> RowState:
    return RowState.DELAYED if due_at > tx.now else RowState.READY


def _add(tx: Transaction, app: str, plans: Sequence[UnitPlan], lanes: dict[LaneSpec, int]) -> None:
    created = tx.insert_jobs(
        [
            (
                plan.key,
                lanes[_spec(plan)],
                plan.partition,
                0,
                plan.payload,
                int(_first_state(tx, plan.first_at)),
                plan.first_at,
                None,
                None,
            )
            for plan in plans
        ]
    )
    if len(created) < len(plans):
        raise Contended("Another process was arming the same units just now.")
    rows = [(created[plan.key], plan.key, plan.timing) for plan in plans]
    tx.run("insert_units", as_json(rows), app)
    for (task, group), count in Counter((plan.task, plan.group) for plan in plans).items():
        tx.arrive(task, group, JobState.QUEUED, count)
    tx.touch_all(lanes[_spec(plan)] for plan in plans if plan.first_at <= tx.now)
    tx.made_work = True


def _change(tx: Transaction, app: str, armed: Sequence[_Armed]) -> None:
    """Let known units follow their plans, as far as they do not run."""
    noted = [
        (one.was.job_id, one.plan.timing)
        for one in armed
        if (one.was.app, one.was.timing, one.was.retired_at) != (app, one.plan.timing, None)
    ]
    if noted:
        tx.run("change_units", as_json(noted), app)
    at_rest = [one for one in armed if one.was.row_state != RowState.IN_PROGRESS]
    replanned = [one for one in at_rest if _is_replanned(one)]
    if replanned:
        tx.replan_jobs(
            [
                (one.was.job_id, one.lane_id, one.plan.partition, one.plan.payload)
                for one in replanned
            ]
        )
    started = {row[0]: row for row in _started(tx, at_rest)}
    if started:
        tx.start_units([*started.values()])
    _hasten(tx, [one for one in at_rest if one.was.job_id not in started])
    for one in at_rest:
        begun = started.get(one.was.job_id)
        _moved(tx, one, RowState(one.was.row_state if begun is None else begun[1]))
    left = {one.was.lane_id for one in replanned if one.lane_id != one.was.lane_id}
    if left and tx.is_my_turn():
        tx.flush_heads()  # whoever forgets lanes holds those that jobs were put into
        forget_lanes(tx, left)


def _is_replanned(one: _Armed) -> bool:
    was, plan = one.was, one.plan
    return (was.lane_id, was.partition, was.payload) != (one.lane_id, plan.partition, plan.payload)


def _started(tx: Transaction, armed: Sequence[_Armed]) -> Iterator[tuple[int, int, int, int]]:
    """Those that begin anew: [job, row_state, due_at, available_at]; a suspect keeps its turn."""
    for one in armed:
        was, plan = one.was, one.plan
        if one.change is not Change.KEPT and was.row_state != RowState.SUSPECT:
            first_at = plan.first_at
            if was.retired_at is not None and was.timing == plan.timing:
                first_at = was.due_at  # as if nobody had been there meanwhile
            due_at = due_after(first_at, was.row_state, was.due_at, was.last_due_at)
            available_at = tried_at(due_at, plan.period, tx.now)
            yield was.job_id, int(_first_state(tx, available_at)), due_at, available_at


def _hasten(tx: Transaction, armed: Sequence[_Armed]) -> None:
    """Let units wait no longer than their period, also if the clock was set back."""
    sooner = [
        (was.job_id, at)
        for was, plan, *_ in armed
        if was.row_state == RowState.DELAYED
        and (at := sooner_at(plan, was.due_at, was.available_at, tx.now)) != was.available_at
    ]
    if sooner:
        tx.run("hasten_units", as_json(sooner), tx.now)
        tx.made_work = True


def _moved(tx: Transaction, one: _Armed, state: RowState) -> None:
    """What follows from a unit's new lane and state."""
    was, moved = one.was, one.lane_id != one.was.lane_id
    if state == was.row_state and not moved and one.change is Change.KEPT:
        return
    tx.move(was.lane_id, PUBLIC[was.row_state], None)
    tx.move(one.lane_id, None, PUBLIC[state])
    if was.row_state == RowState.READY:
        tx.leave(was.lane_id)
    if state is RowState.READY:
        tx.touch(one.lane_id)
    tx.made_work = True


def retire_units(tx: Transaction, keys: Sequence[str]) -> int:
    """Let units tick no more; how many might have."""
    refuse_many(keys)
    found = [_Known(*row) for row in tx.find_units(sorted(set(keys)))]
    units = [one for one in found if one.app is not None and one.retired_at is None]
    if not units:
        return 0
    running = [one.key for one in units if one.row_state == RowState.IN_PROGRESS]
    if cancel(tx, running, tx.app) != frozenset(running):
        raise Contended("A unit ended by itself while it was to be retired.")
    _cancel_at_rest(tx, [one for one in units if one.row_state < RowState.IN_PROGRESS])
    failed = [one for one in units if one.row_state == RowState.ERROR]
    if failed:
        tx.run("cancel_failed", as_json([one.job_id for one in failed]), tx.now)
        for one in failed:
            tx.move(one.lane_id, JobState.ERROR, JobState.CANCELLED)
    tx.run("retire_units", as_json([one.job_id for one in units]), tx.now)
    return len(units)


def _cancel_at_rest(tx: Transaction, units: Sequence[_Known]) -> None:
    """Many at once: nobody waits for a unit, so nobody need be told."""
    if units:
        tx.run("cancel_units", as_json([one.job_id for one in units]), tx.now)
    for one in units:
        tx.move(one.lane_id, PUBLIC[one.row_state], JobState.CANCELLED)
        if one.row_state == RowState.READY:
            tx.leave(one.lane_id)


def pause_units(tx: Transaction, name: str) -> bool:
    """Let a unit, or all of a schedule, not tick; False if that is so already."""
    return tx.run("add_pause", tx.app, name, tx.now) > 0


def resume_units(tx: Transaction, name: str) -> bool:
    """Let them tick again; False if this name was not paused.

    One that is paused by another name, too, is laid aside again when it is leased.
    """
    if not tx.run("drop_pause", tx.app, name):
        return False
    for (lane_id,) in tx.rows("resume_units", name, tx.app, tx.now):
        tx.move(lane_id, JobState.WAITING, JobState.QUEUED)
    tx.made_work = True
    return True


def lay_aside(tx: Transaction, leased: list[LeasedJob]) -> list[LeasedJob]:
    """Let ticks wait that were leased though they are paused; the other jobs."""
    names = {name for job in leased if job.kind is JobKind.TICK for name in (job.key, job.task)}
    paused = {*tx.array("find_pauses", as_json(sorted(names)), tx.app)} if names else set()
    if not paused:
        return leased
    kept: list[LeasedJob] = []
    aside: list[LeasedJob] = []
    for job in leased:
        is_paused = job.kind is JobKind.TICK and not paused.isdisjoint((job.key, job.task))
        (aside if is_paused else kept).append(job)
    tx.lay_aside([job.id for job in aside], kept)
    for job in aside:
        tx.move(job.lane_id, JobState.IN_PROGRESS, JobState.WAITING)
    limited = [(job.id, job.token) for job in aside if job.limited]
    if limited:
        tx.free_keys(limited)
    return kept


def tick_units(tx: Transaction, keys: Sequence[str]) -> frozenset[str]:
    """Let units that wait for their time, or for another try, tick now; the keys of those."""
    refuse_many(keys)
    tx.flush_units()
    found = [_Known(*row) for row in tx.find_units(sorted(set(keys)))]
    waiting = [one for one in found if one.app is not None and one.row_state == RowState.DELAYED]
    early = [
        (one.job_id, int(RowState.DELAYED), due_at, due_at)
        for one in waiting
        if one.due_at > tx.now
        for due_at in (due_after(tx.now, one.row_state, one.due_at, one.last_due_at),)
    ]
    if early:
        tx.start_units(early)
    again = [(one.job_id, tx.now) for one in waiting if one.due_at <= tx.now]
    if again:
        tx.run("hasten_units", as_json(again), tx.now)
    tx.made_work = tx.made_work or bool(waiting)
    return frozenset(one.key for one in waiting)


def forget_cursors(tx: Transaction, names: Sequence[str], app: int) -> int:
    """Let cursors begin anew; how many were set."""
    refuse_many(names)
    tx.flush_units()
    return tx.run("forget_cursors", as_json([scoped(app, name) for name in names]))


def keep_preflights(tx: Transaction, app: str, results: Sequence[PreflightResult]) -> None:
    """The last word on each check counts."""
    refuse_many(results)
    last = {result.unit: result for result in results}
    if last:
        rows = [
            (
                unit,
                one.name,
                one.partition,
                one.value,
                None if one.error is None else as_json(one.error.without_traceback()),
                one.checked_at,
            )
            for unit, one in sorted(last.items())
        ]
        tx.run("keep_preflights", as_json(rows), app)

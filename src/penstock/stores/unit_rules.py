# SPDX-License-Identifier: Apache-2.0
"""Rules for arming a unit of a schedule, the same for every store."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from enum import StrEnum

from penstock.errors import EnqueueRefused
from penstock.model.job import JobKind, NewJob
from penstock.model.schedule import ARM_UNITS_MAX, ArmReport, UnitPlan
from penstock.stores.sql.row_state import RowState


class Change(StrEnum):
    """What arming does to a unit; the fields of `ArmReport`."""

    NEW = "new"
    KEPT = "kept"
    RETIMED = "retimed"
    REVIVED = "revived"


def planned(units: Sequence[UnitPlan]) -> dict[str, UnitPlan]:
    """The plans of one call by key; the first of a key counts."""
    refuse_many(units)
    first: dict[str, UnitPlan] = {}
    for unit in units:
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


def no_end(key: str, unit: str) -> EnqueueRefused:
    """Why a job cannot wait for a unit."""
    return EnqueueRefused(
        f"Job {key!r} shall run after {unit!r}, a unit of a schedule, which never ends. Let the "
        "schedule enqueue the job."
    )


def judge(row_state: int, *, same_timing: bool) -> Change:
    """What arming does to a unit that is known."""
    if row_state >= RowState.DONE:
        return Change.REVIVED
    return Change.KEPT if same_timing else Change.RETIMED


def due_after(first_at: int, row_state: int, due_at: int, last_due_at: int | None) -> int:
    """When a unit is due that is armed anew: never at or before what ended well."""
    done = due_at if row_state == RowState.DONE else last_due_at
    return first_at if done is None else max(first_at, done + 1)


def job_of(plan: UnitPlan) -> NewJob:
    """The job that a unit is."""
    return NewJob(
        kind=JobKind.TICK,
        key=plan.key,
        task=plan.task,
        payload=plan.payload,
        group=plan.group,
        limit_keys=plan.limit_keys,
        partition=plan.partition,
    )


def report(changes: Sequence[Change]) -> ArmReport:
    return ArmReport(**{str(change): changes.count(change) for change in Change})

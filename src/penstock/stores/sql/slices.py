# SPDX-License-Identifier: Apache-2.0
"""Stages, commits, reads and tidies up slices of datasets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.model.job import Job, JobId, JobState
from penstock.model.lease import CommitLevel, Effect, StageManifest
from penstock.model.plan import LevelStates, PlanRow, PlanState
from penstock.model.views import Progress
from penstock.stores.protocol import DatasetView, SlicePage, SliceRange, SliceRow
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import Row, Statements, as_json
from penstock.stores.sql.transaction import Transaction, scoped, unscoped
from penstock.stores.sql.views import SqlReader

_TOTAL, _COMMITTED = -1, -2  # instead of a state, in the rows of `count_plan_jobs`


def page_of(
    reader: SqlReader, app: int, dataset: str, start: int, end: int, limit: int
) -> SlicePage:
    return _page(reader.slice_rows("read_slices", scoped(app, dataset), start, end, limit))


def ranges_of(reader: SqlReader, app: int, ranges: Sequence[SliceRange]) -> SlicePage:
    wanted = [(scoped(app, one.dataset), one.first, one.last) for one in ranges]
    return _page(reader.slice_rows("read_ranges", as_json(wanted)))


def _page(found: tuple[int, list[Row]]) -> SlicePage:
    seq, rows = found
    return SlicePage(seq=seq, rows=[_slice(row) for row in rows])


def staged_of(reader: Statements, plan_id: str) -> list[SliceRow]:
    return [_slice(row) for row in reader.array("staged_slices", plan_id)]


def paths_of(reader: Statements, dataset: str, after: int, limit: int) -> list[tuple[int, str]]:
    rows = reader.array("read_documents", dataset, after, limit)
    return [(row_id, document) for row_id, document in rows]


def datasets_of(reader: Statements, app: int | None) -> list[DatasetView]:
    """Datasets with something committed, of an app or of all."""
    return [
        DatasetView(
            name=unscoped(name)[1], slices=slices, first_at=first_at, last_at=last_at, seq=seq
        )
        for name, slices, first_at, last_at, seq in reader.rows("list_datasets")
        if app is None or unscoped(name)[0] == app
    ]


def plan_of(reader: Statements, plan_id: str) -> PlanRow | None:
    row = reader.row("read_plan", plan_id)
    return None if row is None else _plan(row)


def open_plans_of(reader: Statements, digest: str | None, app: str | None) -> list[PlanRow]:
    return [_plan(row) for row in reader.rows("list_open_plans", digest, app)]


def states_of(reader: Statements, plan_id: str) -> list[LevelStates]:
    """Counts by level; how many are done is what is left of all."""
    totals: dict[int, int] = {}
    states: dict[int, dict[JobState, int]] = {}
    committed: set[int] = set()
    for kind, level, n in reader.rows("count_plan_jobs", plan_id):
        if kind == _TOTAL:
            totals[level] = n
        elif kind == _COMMITTED:
            committed.add(level)
        else:
            of = states.setdefault(level, {})
            of[PUBLIC[kind]] = of.get(PUBLIC[kind], 0) + n
    return [
        LevelStates(
            level=level,
            states=_with_done(totals[level], states.get(level, {})),
            committed=level in committed,
        )
        for level in sorted(totals)
    ]


def _with_done(total: int, states: dict[JobState, int]) -> dict[str, int]:
    counts = {**states, JobState.DONE: total - sum(states.values())}
    return {state.value: counts[state] for state in JobState if counts.get(state)}


def plan_jobs_of(
    reader: SqlReader, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
) -> list[Job]:
    wanted = [int(row_state) for row_state in RowState if PUBLIC[row_state] in states]
    if not wanted:
        return []
    query = "list_plan_jobs"
    if min(wanted) >= RowState.SKIPPED:
        query = "list_unhappy_of_plan"
    elif max(wanted) < RowState.DONE:
        query = "list_open_of_plan"
    return reader.jobs_by(query, plan_id, after_id, as_json(wanted), limit)


def _slice(row: Row) -> SliceRow:
    dataset, at, built, basis, seq, plan_id, level, job_id, document = row
    return SliceRow(
        dataset=unscoped(dataset)[1],
        at=at,
        built=built,
        basis=basis,
        seq=seq,
        plan_id=plan_id,
        level=level,
        job_id=job_id,
        document=document,
    )


def _plan(row: Row) -> PlanRow:
    return PlanRow(
        id=row[0],
        app=row[1],
        digest=row[2],
        state=PlanState(row[3]),
        run_id=row[4],
        root=row[5],
        document=row[6],
        levels=row[7],
        jobs=row[8],
        created_at=row[9],
        begun_at=row[10],
        ended_at=row[11],
    )


def own_name(tx: Transaction, proposed: str) -> str:
    """What the roots of this store know it by."""
    tx.run("name_store", proposed)
    return str(tx.value("read_meta", "own_name"))


def may_write(tx: Transaction, effects: Sequence[Effect]) -> bool:
    """Whether the plans of all slices and levels among these effects run, until the commit."""
    known = tx.slices.may_write
    for effect in effects:
        if not isinstance(effect, StageManifest | CommitLevel):
            continue
        place = (effect.plan_id, effect.level)
        if place not in known:
            row = tx.row("plan_at", *place)
            known[place] = row is not None and row[0] == PlanState.RUNNING
            if row is not None and row[1]:
                tx.slices.committed.add(place)
        if not known[place]:
            return False
    return True


def apply(tx: Transaction, job_id: JobId, effects: Sequence[Effect]) -> None:
    """Note what an accepted end does to slices; it is written before the commit."""
    staged = [effect for effect in effects if isinstance(effect, StageManifest)]
    levels = [effect for effect in effects if isinstance(effect, CommitLevel)]
    if staged:
        tx.slices.staged(tx.app, job_id, staged)
        tx.passed.append("dataset.staged")
    for level in levels:
        tx.slices.commits(level)
        tx.passed.append("dataset.level_committed")


def tidy(tx: Transaction, limit: int) -> Progress:
    """Write numbers into rows of committed levels; forget what is superseded, and what was left."""
    tx.one_at_a_time()
    tx.flush_slices()
    found = tx.array("untidy_slices", limit + 1)
    rows = found[:limit]
    numbered = as_json([(row_id, dataset, at, n) for row_id, dataset, at, n in rows if n])
    if numbered != "[]":
        tx.run("number_slices", numbered)
        tx.run("drop_superseded", numbered)
    left = [row_id for row_id, _, _, n in rows if not n]
    if left:
        tx.run("drop_slices", as_json(left))
    return Progress(len(rows), more=len(found) > limit)

# SPDX-License-Identifier: Apache-2.0
"""Takes back the jobs of dead workers: ready again, suspect in quarantine, or poison.

What may have killed a worker is a suspect: it runs again in quarantine, with others of its cell
only. If they kill again, cells are halved, until the culprit is alone; at `max_crashes` it is
poison, and ends in error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock import failpoints
from penstock.clock import MICROSECONDS
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState, WorkerId
from penstock.model.lease import MAX_CRASHES, JobFailure, JobRef, WorkerInfo
from penstock.model.views import Progress
from penstock.stores.protocol import (
    EXPIRIES_BEFORE_SUSPECT,
    LOSSES_BEFORE_SUSPECT,
    SWEEP_SLICE,
)
from penstock.stores.sql.ack import fail, free_keys, let_go
from penstock.stores.sql.dependants import note_ended
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction

WORKER_ROWS_KEPT_SECONDS = 24 * 3600
SWEEP_WORKERS = 16  # expired workers that one lease call looks at
ALONE = 0  # the cell of those that run by themselves
CELLS_OF_A_WORKER = SWEEP_SLICE  # its number times this is the first cell of what it held


@dataclass(frozen=True, slots=True)
class _Fate:
    """How the jobs of a worker that is gone are judged."""

    started: frozenset[JobRef] = field(default_factory=frozenset)
    cause: str = ""
    max_crashes: int = 1  # of jobs that ran alone
    died: bool = False  # it did not end in good order
    expired: bool = False  # nobody saw the end: anything it held may have been running
    same_boot: bool = True  # False: the whole machine went down; that is no job's fault


def sweep(tx: Transaction) -> bool:
    """Take back what expired workers held, a slice; True if some is left."""
    budget = SWEEP_SLICE
    expired = tx.rows("expired_workers", tx.boot.boot_id, tx.boot.at, SWEEP_WORKERS)
    for no, same_boot, run_id in expired:
        failpoints.hit("sweep.in_tx")
        fate = _Fate(
            cause="its lease expired",
            max_crashes=_max_crashes(tx, no),
            died=True,
            expired=True,
            same_boot=bool(same_boot),
        )
        count = _take_back(tx, no, run_id, fate, budget)
        budget -= count
        if budget <= 0:
            return True
        _end_worker(tx, no)
    return len(expired) == SWEEP_WORKERS


def reap(
    tx: Transaction,
    worker: WorkerId,
    started: Sequence[JobRef],
    cause: str,
    max_crashes: int,
    overdue: Sequence[JobFailure],
) -> Progress:
    """End a worker whose death was seen; unstarted jobs are ready again, started ones suspect."""
    row = tx.row("worker_no", worker)
    if row is None:
        return Progress(0, more=False)
    failpoints.hit("reap.in_tx")
    for failure in overdue:
        fail(tx, row[0], row[1], failure)
    fate = _Fate(frozenset(started), cause, max_crashes, died=True)
    count = _take_back(tx, row[0], row[1], fate, SWEEP_SLICE)
    if count < SWEEP_SLICE:
        _end_worker(tx, row[0])
    return Progress(count, more=count == SWEEP_SLICE)


def retire(tx: Transaction, worker: WorkerId) -> Progress:
    """End a worker that stops cleanly."""
    row = tx.row("worker_no", worker)
    if row is None:
        return Progress(0, more=False)
    count = _take_back(tx, row[0], row[1], _Fate(), SWEEP_SLICE)
    if count < SWEEP_SLICE:
        _end_worker(tx, row[0])
    return Progress(count, more=count == SWEEP_SLICE)


def note_max_crashes(tx: Transaction, worker: WorkerInfo) -> None:
    """Keep it with the worker: whoever takes its jobs back may be of another app or run."""
    if worker.max_crashes != MAX_CRASHES:
        no = tx.value("worker_no", worker.id)
        tx.run("write_meta", f"max_crashes:{no}", str(worker.max_crashes))


def _max_crashes(tx: Transaction, no: int) -> int:
    return int(tx.first("read_meta", f"max_crashes:{no}") or MAX_CRASHES)


def _end_worker(tx: Transaction, no: int) -> None:
    for job_id, token in tx.rows("detached_of", no):  # no more than it had slots
        let_go(tx, JobRef(job_id, token))
    tx.run("end_worker", no, tx.now)
    tx.run("forget_max_crashes")
    tx.run("forget_workers", tx.now - WORKER_ROWS_KEPT_SECONDS * MICROSECONDS)
    tx.forget_alive()


class _Held(NamedTuple):
    """A lease of a worker that is gone; the order of columns in `leased_by`."""

    id: JobId
    token: int
    lane_id: int
    limited: bool
    losses: int
    crashes: int
    cell: int | None  # of a suspect

    @property
    def ref(self) -> JobRef:
        return JobRef(self.id, self.token)


class _Verdict(NamedTuple):
    """What becomes of a job whose worker is gone."""

    held: _Held
    losses: int
    outcome: str = ""  # of its attempt; nothing if it had none
    accused: bool = False  # it may have killed the worker

    @property
    def crashed(self) -> bool:
        """It was alone, so it was the one."""
        return self.accused and self.held.cell == ALONE

    @property
    def crashes(self) -> int:
        return self.held.crashes + self.crashed


def _take_back(tx: Transaction, no: int, run_id: str, fate: _Fate, most: int) -> int:
    leased = [_Held(*row) for row in tx.array("leased_by", no, most)]
    verdicts = [_judge(fate, held) for held in leased]
    cells = _divide([one.held for one in verdicts if one.accused], no, seen=not fate.expired)
    back: list[tuple[int, int, int, int, int]] = []
    for one in verdicts:
        held = one.held
        if one.crashed and one.crashes >= fate.max_crashes:
            _end_crashed(tx, no, run_id, one, fate.cause)
            continue
        cell = cells.get(held.id, held.cell)
        state = RowState.READY if cell is None else RowState.SUSPECT
        if one.crashed:
            _write(tx, held.ref, no, "crashed", _crash(one.crashes, fate.cause))
        elif one.outcome:
            _write(tx, held.ref, no, one.outcome, _loss(fate.cause))
        back.append((held.id, int(state), one.losses, one.crashes, cell or ALONE))
        tx.move(held.lane_id, JobState.IN_PROGRESS, JobState.QUEUED)
        tx.touch(held.lane_id)
    if back:
        tx.run("take_back", as_json(back), tx.now)
        tx.made_work = True
    free_keys(tx, [(held.id, held.token) for held in leased if held.limited])
    return len(leased)


def _judge(fate: _Fate, held: _Held) -> _Verdict:
    """Judge one lease by what is known of its worker's end."""
    losses = held.losses
    ran = fate.expired or held.ref in fate.started
    outcome = "lost" if ran else ""
    if not fate.died:
        return _Verdict(held, losses if held.cell is not None else 0)
    if not fate.same_boot:  # the whole machine went down
        return _Verdict(held, losses, outcome)
    if ran and (held.cell is not None or not fate.expired):
        return _Verdict(held, losses, outcome, accused=True)
    # Nobody saw it run: its body had ended, or not begun; but again and again is no chance.
    losses += 1
    often = EXPIRIES_BEFORE_SUSPECT if fate.expired else LOSSES_BEFORE_SUSPECT
    accused = losses >= often
    return _Verdict(held, 0 if accused and held.cell is not None else losses, outcome, accused)


def _divide(accused: Sequence[_Held], no: int, *, seen: bool) -> dict[JobId, int]:
    """The cells in which those that may have killed worker `no` run again."""
    found: dict[JobId, int] = {}
    cell = no * CELLS_OF_A_WORKER
    for former in sorted(
        {held.cell for held in accused}, key=lambda one: -1 if one is None else one
    ):
        mates = [held.id for held in accused if held.cell == former]
        parts = 1 if former == ALONE else _parts(len(mates), first=former is None, seen=seen)
        for part in range(parts):
            members = mates[len(mates) * part // parts : len(mates) * (part + 1) // parts]
            together = len(members) > 1 and former != ALONE
            found.update(dict.fromkeys(members, cell if together else ALONE))
            cell += together
    return found


def _parts(count: int, *, first: bool, seen: bool) -> int:
    """Into how many cells suspects of one death are divided.

    A death that was seen cost one worker: they run all together, then in halves. One that nobody
    saw took the whole run along, so in two steps everybody is alone.
    """
    if seen:
        return 1 if first else 2
    return math.isqrt(count - 1) + 1 if first else count


def _end_crashed(tx: Transaction, no: int, run_id: str, verdict: _Verdict, cause: str) -> None:
    """End a poison job."""
    held, error = verdict.held, _crash(verdict.crashes, cause)
    tx.run("end_crashed", held.id, as_json(error), verdict.crashes, tx.now)
    _write(tx, held.ref, no, str(JobState.ERROR), error)
    tx.move(held.lane_id, JobState.IN_PROGRESS, JobState.ERROR)
    tx.ended_in_run(run_id, JobState.ERROR)
    note_ended(tx, [held.id])


def _crash(crashes: int, cause: str) -> AttemptError:
    times = "once" if crashes == 1 else f"{crashes} times"
    return AttemptError(
        ErrorCategory.CRASHED,
        "crashed",
        f"the worker died {times} while this job ran alone: {cause}",
    )


def _loss(cause: str) -> AttemptError:
    return AttemptError(ErrorCategory.CRASHED, "lost", cause)


def _write(tx: Transaction, ref: JobRef, no: int, outcome: str, error: AttemptError) -> None:
    tx.run("write_attempt", ref.id, ref.token, no, outcome, None, tx.now, as_json(error))
    tx.units.grown.add(ref.id)

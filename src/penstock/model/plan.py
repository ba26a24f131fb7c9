# SPDX-License-Identifier: Apache-2.0
"""Build plans: the ordered set of jobs that brings datasets up to date, its report and locks."""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import Self

import msgspec

from penstock.model.job import SCHEDULE, AttemptError, JobState


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked for."""

    targets: tuple[str, ...]  # in order of names, each once
    ranges: tuple[tuple[int, int], ...]  # [start, end) of each target
    force: bool = False  # build what is fresh as well: the targets, and what they need
    eager: bool = False  # each job as soon as its own needs are there
    fail_fast: bool = False
    yes: bool = False  # however many
    to_now: bool = False  # its ranges end where the clock is: who comes later asks the same


class JobRange(msgspec.Struct, frozen=True, gc=False):
    """A range of the plan's jobs of one dataset, by their index in order of time."""

    dataset: str
    first: int
    last: int  # included


class JobDescriptor(msgspec.Struct, frozen=True, gc=False):
    """One job of a plan."""

    job_id: str  # build:PLAN:prices@2024-01-05, which is also the key of the job
    dataset: str
    timestamps: tuple[int, ...]  # of the slices that it builds, in order
    needs: tuple[JobRange, ...]  # jobs of this plan that must be done before
    level: int
    lock: str  # the dataset whose lock guards it


class SliceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one dataset, in slices."""

    needed: int  # wanted by the targets, or by what they need
    fresh: int = 0  # committed, and up to date: skipped
    new: int = 0  # never built
    outdated: int = 0  # of another version or root
    rebuilt: int = 0  # something it was built from was, or is to be, built anew
    forced: int = 0
    future: int = 0  # lie in the future: left out


class BuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What must run, in what order."""

    plan_id: str
    targets: tuple[str, ...]
    levels: tuple[tuple[JobDescriptor, ...], ...]
    counts: dict[str, SliceCounts]  # of every dataset that was looked at, upstream first
    fresh: dict[str, array[int]]  # moments that are needed and not built, in order

    @property
    def jobs(self) -> int:
        """How many jobs it has."""
        return sum(map(len, self.levels))


class SlicePayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job that builds slices is told; its plan and its level are columns of its row."""

    at: tuple[int, ...]
    eager: bool = False  # it commits what it made by itself
    #: Needed slices in these ranges (both ends included) are built by this plan, and no success
    #: edge says so. One that is not of this plan when the job begins: the job is skipped.
    built: dict[str, tuple[tuple[int, int], ...]] = {}


class Step(StrEnum):
    """What a job of a plan is for that builds nothing."""

    START = "start"  # a plan's jobs wait for it until all of them are there
    GATE = "gate"  # others wait for a run of jobs by waiting for it
    JOIN = "join"  # the same, on the way to a barrier or to the end
    LEVEL = "level"  # the barrier: what a level has built becomes visible
    END = "end"


class StepPayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job of a plan is told that builds nothing."""

    step: Step
    level: int | None = None  # of a barrier
    fail_fast: bool = False  # a barrier of a level in which something failed ends skipped
    unit: str | None = None  # of an end: that of the schedule whose plan ends with it


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where the jobs of one dataset go."""

    task: str
    group: str
    priority: int = 0
    limit_keys: tuple[str, ...] = ()  # sorted, each once


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job of a plan that has built nothing: it failed, or was skipped.

    Rows, bytes and files of one that has are in its result and in the manifests of its slices.
    """

    job_id: str
    status: JobState
    started_at: int | None = None
    finished_at: int | None = None
    error: AttemptError | None = None


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a build came to."""

    plan_id: str | None  # None: everything was up to date
    run_id: str
    slices: int = 0  # built and committed by this plan; not counted where it was stopped
    done: int = 0  # jobs
    failed: tuple[JobResult, ...] = ()
    skipped: tuple[JobResult, ...] = ()  # because of those
    fresh: int = 0  # slices that were up to date before
    stopped: bool = False  # before its end: the same request goes on where it was
    over_budget: str | None = None  # which budget, or closed account, has stopped it

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for is built."""
        return not (self.failed or self.skipped or self.stopped)


class KeptEnd(msgspec.Struct, frozen=True, kw_only=True, tag="kept_end"):
    """How the last plan of a schedule of datasets ended: the cursor of its unit."""

    plan_id: str
    ended_at: int
    slices: int  # built
    failed: int = 0  # jobs; the next tick tries them again
    skipped: int = 0  # because of those
    failures: tuple[str, ...] = ()  # the first of those that failed

    @classmethod
    def read(cls, cursor: str | None) -> Self | None:
        """The end that a cursor tells of; None: it is of another schedule, or there is none."""
        try:
            return None if cursor is None else msgspec.json.decode(cursor, type=cls)
        except msgspec.MsgspecError:
            return None


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a plan besides its jobs: the document of its row."""

    targets: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    datasets: tuple[str, ...]  # whose locks it has
    slices: int  # to be built
    fresh: int
    force: bool = False
    eager: bool = False
    fail_fast: bool = False
    counts: dict[str, SliceCounts] = {}

    @classmethod
    def of(cls, plan: BuildPlan, request: BuildRequest, datasets: tuple[str, ...]) -> Self:
        """The facts of a new plan."""
        return cls(
            targets=request.targets,
            ranges=request.ranges,
            datasets=datasets,
            slices=sum(len(job.timestamps) for level in plan.levels for job in level),
            fresh=sum(counts.fresh for counts in plan.counts.values()),
            force=request.force,
            eager=request.eager,
            fail_fast=request.fail_fast,
            counts=plan.counts,
        )

    @classmethod
    def read(cls, document: str) -> Self:
        """The facts of a plan that is kept."""
        return msgspec.json.decode(document, type=cls)

    def document(self) -> str:
        return msgspec.json.encode(self).decode()


KEEPER = "#"  # between the unit of a schedule and the tick that has locked datasets for it


def keeper_of(run_id: str) -> str | None:
    """The unit of the schedule that a lock or a plan belongs to; None: a run's, by its id."""
    unit, sep, _ = run_id.partition(KEEPER)
    return unit if sep and unit.startswith(SCHEDULE) else None


class LockView(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset's lock."""

    name: str
    run_id: str
    mark: str  # identity of the process that took it, see process_identity
    token: int  # grows with every taking
    taken_at: int
    alive: bool  # it was renewed in time


class LocksTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking for locks: all of them, or none and who holds them."""

    taken: bool
    held: tuple[LockView, ...] = ()  # by others, where none was taken
    left: tuple[str, ...] = ()  # plans whose run lost a lock by this; they change nothing more


class PlanState(StrEnum):
    """Where a plan is."""

    DRAFT = "draft"  # not all of its jobs are enqueued: none may run
    RUNNING = "running"
    LEFT = "left"  # its run is gone; whoever has the locks may adopt or abandon it
    ENDED = "ended"
    ABANDONED = "abandoned"


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, as a store keeps it."""

    id: str
    app: str
    digest: str  # of request and definitions: who asks the same may go on with it
    state: PlanState = PlanState.DRAFT
    run_id: str
    root: str  # the id of the output root
    document: str  # strict JSON, for people: targets, ranges, mode, counts
    levels: int
    jobs: int
    created_at: int = 0  # set by the store
    begun_at: int | None = None
    ended_at: int | None = None


class LevelStates(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one level of a plan, counted, barriers and gates left out."""

    level: int
    states: dict[str, int]
    committed: bool

# SPDX-License-Identifier: Apache-2.0
"""Views of the store for people and workers: jobs, stats, workers, findings of the doctor."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.model.dataset import task_name
from penstock.model.job import EdgeKind, Job, JobId, JobState, WorkerId
from penstock.model.journal import CallFigures
from penstock.model.plan import KeptEnd, LockView, PlanRow
from penstock.model.provider import CooldownKey, ProviderModelKey
from penstock.model.schedule import PreflightResult, UnitView


class Diagnostic(msgspec.Struct, frozen=True, order=True):
    """Something that was decided for a user, or that does not work and stops nothing."""

    code: str  # of a closed list
    about: str  # the task, the group or the resource
    text: str  # one sentence, which says so, too


class Finding(msgspec.Struct, frozen=True):
    """One line of `penstock doctor`."""

    check: str  # its short name
    ok: bool
    text: str  # what is well, or one sentence with what is wrong and what to do


def healthy(check: str, text: str) -> Finding:
    """A check that passed."""
    return Finding(check, ok=True, text=text)


def problem(check: str, text: str) -> Finding:
    """A check that failed."""
    return Finding(check, ok=False, text=text)


class Dependency(msgspec.Struct, frozen=True):
    """A job that another waits for, or waited for."""

    key: str
    kind: EdgeKind
    state: JobState
    open: bool  # the other has not been told of an end that lets it go


class Holder(msgspec.Struct, frozen=True):
    """One lease that holds a limit key."""

    key: str
    worker: WorkerId | None
    since: int | None  # when it was leased; None: that lease is over, only its body goes on
    detached: bool


class HeldKey(msgspec.Struct, frozen=True):
    """A limit key of the job, and who holds it."""

    limit_key: str
    count: int
    holders: tuple[Holder, ...]  # a bounded number, by id


class JobContext(msgspec.Struct, frozen=True, kw_only=True):
    """One job with everything in the store that it may depend on."""

    job: Job
    now: int  # by the clock that the store's times are of
    dependencies: tuple[Dependency, ...]  # a bounded number, open ones first
    skipped_by: str | None  # the job because of which this one was skipped
    detached: tuple[WorkerId, ...]  # where a body of it may still run
    held: tuple[HeldKey, ...]  # one for each limit key of the job


class Moved(msgspec.Struct, frozen=True):
    """What one slice gave to another app."""

    count: int  # jobs
    more: bool  # another call goes on
    last: JobId  # where it begins


class AppView(msgspec.Struct, frozen=True, kw_only=True):
    """One app that has signed on to a store; without a name: what no app has taken over."""

    name: str
    tasks: dict[str, dict[JobState, int]]  # its jobs; units of schedules are none
    workers: int  # that are alive
    seen_at: int | None  # when it signed on last

    @property
    def states(self) -> dict[JobState, int]:
        """Its jobs by state."""
        counts = dict.fromkeys(JobState, 0)
        for states in self.tasks.values():
            for state, count in states.items():
                counts[state] += count
        return counts


class EnqueueReport(msgspec.Struct, frozen=True):
    """What became of a batch, by key."""

    created: frozenset[str]
    existing: frozenset[str]
    differing: frozenset[str] = frozenset()  # keys that also stood for another task or payload


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The queue in numbers, from counters. Units of schedules, which never end, are apart."""

    states: dict[JobState, int]
    tasks: dict[str, dict[JobState, int]]
    groups: dict[str, dict[JobState, int]]  # a bounded number, those with open work first
    groups_total: int
    oldest_ready_seconds: float | None
    next_due_at: int | None
    delayed: int  # queued and not due: for later, or to be tried again; 10,000 are counted
    suspects: int
    workers: int  # alive
    paused: bool
    schedules: dict[str, dict[JobState, int]] = {}  # units by task
    paused_schedules: tuple[str, ...] = ()  # and units; a bounded number, by name

    @property
    def shown_tasks(self) -> dict[str, dict[JobState, int]]:
        """The tasks as people know them: a dataset is one, wherever its slices are kept."""
        found: dict[str, dict[JobState, int]] = {}
        for name, counts in self.tasks.items():
            one = found.setdefault(task_name(name), {})
            for state, count in counts.items():
                one[state] = one.get(state, 0) + count
        return found

    @property
    def units(self) -> int:
        """Units of schedules that live."""
        return sum(
            counts.get(state, 0)
            for counts in self.schedules.values()
            for state in (JobState.WAITING, JobState.QUEUED, JobState.IN_PROGRESS)
        )


class EndMark(NamedTuple):
    """A place in the order of ends."""

    finished_at: int
    id: int


FIRST_END = EndMark(-1, 0)


class ResultRow(msgspec.Struct, frozen=True, gc=False):
    """A job that is done, and what it returned."""

    key: str
    result: str | None  # JSON text; None: nothing


class ResultPage(msgspec.Struct, frozen=True):
    """Some results of a task in the order of their ends, and where the next page begins."""

    rows: tuple[ResultRow, ...]
    last: EndMark
    more: bool


class UpstreamRow(msgspec.Struct, frozen=True, gc=False):
    """A job that another was enqueued after, and what it returned."""

    key: str
    task: str
    state: JobState
    result: str | None  # JSON text of the last; None: nothing, or it was never done


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a draining worker must know: what is left, and whether anybody can do it."""

    open_by_task: dict[str, dict[JobState, int]]
    next_due_at: int | None
    suspects: int
    served_elsewhere: frozenset[str]  # tasks that other live workers know
    ended_in_run: dict[JobState, int]  # leases that ended for good in this run, by end
    paused: bool = False


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One registered worker."""

    id: WorkerId
    run_id: str
    host: str
    pid: int
    started_at: int
    alive: bool
    lease_seconds: float = 0.0  # that are left of its lease; 0: it is over
    tasks: tuple[str, ...]  # that it knows
    status: str | None  # JSON document of its last publication
    status_at: int | None


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of the queue looks at."""

    stats: Stats
    workers: list[WorkerView]  # that have not ended
    caps: dict[str, int]  # overrides by operators
    served: frozenset[str]  # tasks that live workers know
    calls: CallFigures = CallFigures()  # that cost money
    units: tuple[UnitView, ...] = ()  # of schedules: those that fail, or have ended in error
    failed_checks: tuple[PreflightResult, ...] = ()  # preflights of the last start
    plans: tuple[PlanRow, ...] = ()  # of builds that have not ended
    locks: tuple[LockView, ...] = ()  # of datasets
    datasets: int = 0  # that have committed slices
    kept: tuple[tuple[str, KeptEnd], ...] = ()  # units that keep datasets, and their last plans
    apps: tuple[AppView, ...] = ()  # that share the store
    cooldowns: tuple[StoredCooldown, ...] = ()  # of providers, and closed accounts


class Progress(msgspec.Struct, frozen=True):
    """What one bounded slice of a long operation did."""

    count: int
    more: bool


class Settled(msgspec.Struct, frozen=True):
    """How far dependants have been told of ends and retries."""

    more: bool
    failed_total: int  # put back by retries since the store was made, by whoever went on with it
    dependants_total: int  # put back because of those


class PutBack(msgspec.Struct, frozen=True):
    """What one slice of a retry or of a rerun of named jobs did."""

    keys: frozenset[str]  # of those that were put back
    more: bool  # there is more to do for these, or for what was asked before: ask again


class RetriedJobs(msgspec.Struct, frozen=True):
    """What became of failed jobs that somebody wants to be tried again."""

    failed: int  # put back
    skipped: int  # put back because of those
    of_builds: int = 0  # failed as well, and left alone: the same build tries them again
    refused: dict[str, str] = {}  # key → why it was left alone, and what fits
    unknown: tuple[str, ...] = ()  # keys that no job has


class RerunJobs(msgspec.Struct, frozen=True):
    """What became of done jobs that somebody wants to run again."""

    rerun: int
    refused: dict[str, str] = {}  # key → why it was left alone, and what fits
    unknown: tuple[str, ...] = ()  # keys that no job has


class PurgedJobs(msgspec.Struct, frozen=True):
    """What became of ended jobs that somebody wants to be forgotten."""

    purged: int
    refused: dict[str, str] = {}  # key → why it is kept
    unknown: tuple[str, ...] = ()  # keys that no job has
    kept: int = 0  # of a task: what a job that has not ended waits for, or what still runs


class RetryCounts(msgspec.Struct, frozen=True):
    """What a retry would put back."""

    failed: int
    dependants: int


class StoredLimit(msgspec.Struct, frozen=True):
    """What a run has learned about one model of a provider."""

    key: ProviderModelKey
    document: str
    learned_at: int


class StoredCooldown(msgspec.Struct, frozen=True, kw_only=True):
    """A long cool-down of one model of a provider, or with `*` of its account."""

    key: CooldownKey
    begun_at: int
    until_at: int  # nothing is sent before
    left_seconds: float  # until then, by the clock of the store; 0: it may be probed
    probed_seconds: float  # for which somebody has the right to probe it; 0: nobody has
    document: str


class BackupReport(msgspec.Struct, frozen=True):
    """What a backup holds."""

    jobs: int
    bytes: int


class RestorePlan(msgspec.Struct, frozen=True):
    """What a restore would do."""

    jobs: int  # in the backup
    replaces: bool  # there is a store already
    replaced: int | None  # jobs in that store; None: there is none, or it cannot be read


class RestoreReport(msgspec.Struct, frozen=True):
    """What a restore did."""

    jobs: int
    bytes: int
    voided: int  # leases of the backup
    kept: Path | None  # where the replaced store is now

# SPDX-License-Identifier: Apache-2.0
"""The explanation of a job, its gates, and the facts that it is derived from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from penstock.model.job import JobState, WorkerId
from penstock.model.lease import dimension_key
from penstock.model.provider import ClosedAccount
from penstock.model.spending import BudgetStop
from penstock.model.views import Dependency, HeldKey, JobContext, Stats, WorkerView
from penstock.model.worker import LeaseReport, UnresponsiveWorker, WorkerStatus, read_status
from penstock.observe.spending import BudgetUse


class Gate(StrEnum):
    """What holds a job up, or the state it is in when nothing does."""

    DEPENDENCY = "dependency"  # another job has to end first
    NOT_DUE = "not_due"  # it is delayed, or waits for a retry
    PAUSED = "paused"  # by an operator: nobody gets work
    NO_WORKER = "no_worker"  # no live worker could run it
    KEYED_LIMIT = "keyed_limit"  # as many as may hold one of its limit keys do
    QUARANTINE = "quarantine"  # a suspect: it may have killed a worker
    SLOTS = "slots"  # all slots are taken
    FAIR_SHARE = "fair_share"  # its group has had its share, and others wait for theirs
    PROVIDER_LIMIT = "provider_limit"  # as many requests as its provider takes are in flight
    COOLDOWN = "cooldown"  # its provider has asked for a pause, or is unhealthy
    REQUEST_BUDGET = "request_budget"  # the declared rpm or tpm is used up
    BUDGET = "budget"  # of money or tokens: its task is held back until one is raised
    ACCOUNT = "account"  # of its provider: its key is dead, or it is empty
    POLICY = "policy"  # another admission policy of its worker
    STOPPING = "stopping"  # its worker stops, and gives it back
    TURN = "turn"  # nothing holds it up: it is among the next
    RUNNING = "running"
    SILENT = "silent"  # its worker no longer answers, and holds it until its lease ends
    DETACHED = "lingering"  # its lease is over, and its body still runs
    FINISHED = "finished"
    OVERLAPPING = "overlapping"  # of a unit: its last tick still runs, and occurrences have passed
    DEGRADED = "degraded"  # of a unit: its ticks fail, and it is tried again
    OTHERS = "others"  # of a unit: another party is unhealthy or asked for a pause
    PREFLIGHT = "preflight"  # of a unit: a check has failed, at the start or before its next try
    RETIRED = "retired"  # of a unit: the app no longer plans it
    NO_SLICE = "no_slice"  # of a slice: its calendar has none there
    FUTURE = "future"  # of a slice: its time has not come
    FRESH = "fresh"  # of a slice: it is committed, and up to date
    STALE = "stale"  # of a slice: it is committed, and would be built anew
    NOT_BUILT = "not_built"  # of a slice: no open plan builds it
    PLANNING = "planning"  # of a slice: its plan is being made
    LEVEL = "level"  # of a slice: a level has to be committed, its own or the one below
    PLAN_LEFT = "plan_left"  # of a slice: its plan was abandoned by its run
    LOCKED = "locked"  # of a slice: another build has the lock of its dataset


class Limit(msgspec.Struct, frozen=True):
    """A limit key with its cap, its holders and the source of the cap."""

    held: HeldKey
    cap: int | None
    source: str  # of the cap

    @property
    def is_full(self) -> bool:
        return self.cap is not None and self.held.count >= self.cap


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job, unit or slice is where it is: the sentence, what unblocks it, and details."""

    key: str
    state: JobState | None  # None: a unit that was never armed, a slice without a job
    gate: Gate
    sentence: str
    unblocks: str | None = None  # what lets it continue
    when: int | None = None  # at which time, if that is known
    command: str | None = None  # the command that unblocks it at once
    details: tuple[str, ...] = ()
    waits_for: tuple[Dependency, ...] = ()
    chain: tuple[str, ...] = ()  # from this job to the one that holds it up
    limits: tuple[Limit, ...] = ()  # that are full
    worker: WorkerId | None = None
    as_of: int | None = None  # the time of the worker's report that this rests on


class KnownCaps(msgspec.Struct, frozen=True):
    """The caps of limit keys, by operators and by settings."""

    overrides: Mapping[str, int] = {}  # by operators
    configured: Mapping[str, int] = {}  # by the settings of this folder

    def of(self, held: HeldKey, workers: Mapping[WorkerId, Mapping[str, int]]) -> Limit:
        """The cap that holds for a key: the highest of those that workers are configured with.

        The settings of this folder count where no worker has reported its own.
        """
        said = [
            self._said(held, caps, f"as configured for worker {worker!r}")
            for worker, caps in workers.items()
        ] or [self._said(held, self.configured, "from the settings of this folder")]
        return max(said, key=lambda limit: (limit.cap is None, limit.cap))

    def _said(self, held: HeldKey, configured: Mapping[str, int], source: str) -> Limit:
        for key in (held.limit_key, dimension_key(held.limit_key)):
            default = "" if key == held.limit_key else f", for all {key!r}"
            if key in self.overrides:
                return Limit(held, self.overrides[key], f"set by 'penstock queue limit'{default}")
            if key in configured:
                return Limit(held, configured[key], f"{source}{default}")
        return Limit(held, None, "no limit is known")


class WorkerAnswer(msgspec.Struct, frozen=True):
    """The answer of a worker that was asked about a job."""

    worker: WorkerId
    standing: LeaseReport


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that the explanation of a job is derived from."""

    this: JobContext
    now: int  # by the store's clock, when these facts were read
    chain: tuple[JobContext, ...] = ()  # the dependencies that hold it up, link by link
    stats: Stats
    workers: tuple[WorkerView, ...] = ()
    silent: Mapping[WorkerId, UnresponsiveWorker] = {}  # workers that no longer answer
    caps: KnownCaps = KnownCaps()
    answers: tuple[WorkerAnswer, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()  # those of this folder's settings, and of live workers
    stops: tuple[BudgetStop, ...] = ()  # that ended the last run, if no worker is alive
    closed_accounts: tuple[ClosedAccount, ...] = ()  # that did
    again: str | None = None  # of a job of a build: the command that builds again

    @property
    def alive(self) -> list[WorkerView]:
        """Workers that are alive, without those that no longer answer."""
        return [one for one in self.workers if one.alive and one.id not in self.silent]

    @property
    def statuses(self) -> dict[WorkerId, WorkerStatus]:
        """The last status of each live worker, with its time by the store's clock."""
        found = {}
        for worker in self.alive:
            status = read_status(worker.status)
            if status is not None and worker.status_at is not None:
                found[worker.id] = msgspec.structs.replace(status, captured_at=worker.status_at)
        for answer in self.answers:
            found[answer.worker] = answer.standing.status
        return found

# SPDX-License-Identifier: Apache-2.0
"""The contract that every store keeps.

Small protocols over one writer. Every call takes a batch, is one transaction (or a bounded slice
of a long operation), and answers with a `Reply` when it is durable. docs/design/seam.md tells
the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.errors import UsageError
from penstock.model.dataset import SliceMarks, version_of
from penstock.model.job import (
    Attempt,
    AttemptError,
    ErrorCategory,
    Job,
    JobId,
    JobState,
    NewJob,
    WorkerId,
)
from penstock.model.journal import (
    Answer,
    CallFigures,
    CallKey,
    CallRecord,
    CallRef,
    Intent,
    IntentVerdict,
    NewestCall,
)
from penstock.model.lease import (
    JobEnd,
    JobFailure,
    JobRef,
    LeaseBatch,
    LeaseRequest,
    Verdict,
    WorkerInfo,
)
from penstock.model.plan import LevelStates, LocksTaken, LockView, PlanRow
from penstock.model.provider import CooldownKey, ProviderModelKey
from penstock.model.run import RUN_BYTES_MAX, RunPart
from penstock.model.schedule import ArmReport, PreflightResult, UnitPlan, UnitView
from penstock.model.spending import Account, Balance, Budget
from penstock.model.views import (
    AppView,
    EndMark,
    EnqueueReport,
    JobContext,
    Moved,
    Outlook,
    Progress,
    PutBack,
    ResultPage,
    RetryCounts,
    Settled,
    Stats,
    StoredCooldown,
    StoredLimit,
    UpstreamRow,
    WorkerView,
)
from penstock.model.worker import Inbox
from penstock.stores.store_future import Reply


class SliceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One slice that is remembered."""

    dataset: str
    at: int
    built: str  # by which version, into which root
    basis: int
    seq: int | None  # None: staged, invisible
    plan_id: str
    level: int
    job_id: int
    document: str  # JSON of a SliceOutput

    @property
    def version(self) -> str:
        """Of the dataset's function."""
        return version_of(self.built)


class SlicePage(msgspec.Struct, frozen=True, kw_only=True):
    """Committed slices and the store's commit number, in one snapshot."""

    seq: int
    rows: list[SliceRow]


class SliceRange(msgspec.Struct, frozen=True, gc=False):
    """Slices of one dataset from `first` to `last`, both included."""

    dataset: str
    first: int
    last: int


class DatasetView(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset that has committed slices."""

    name: str
    slices: int
    first_at: int
    last_at: int
    seq: int  # of its newest commit


class ManifestStore(Protocol):
    """Slices that were built; written by effects only."""

    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> Reply[SliceMarks]:
        """What is committed in [start, end), in numbers; one read, however many."""
        ...

    def manifests(self, dataset: str, start: int, end: int, limit: int) -> Reply[SlicePage]:
        """Committed slices in [start, end), by time, at most `limit`."""
        ...

    def slices(self, ranges: Sequence[SliceRange]) -> Reply[SlicePage]:
        """Committed slices of all these ranges, by dataset and time; one snapshot."""
        ...

    def staged(self, plan_id: str) -> Reply[list[SliceRow]]:
        """What a plan has built that is not visible yet."""
        ...

    def named_paths(self, dataset: str, after: int, limit: int) -> Reply[list[tuple[int, str]]]:
        """(row id, document) of every row of a dataset, whichever app's, by id; for sweeping."""
        ...

    def datasets(self) -> Reply[list[DatasetView]]: ...

    def own_name(self, proposed: str) -> Reply[str]:
        """What the roots of its slices know this store by; backups keep it. The first one stays."""
        ...

    def tidy_manifests(self, limit: int) -> Reply[Progress]:
        """Write the numbers of committed levels into rows, forget what was superseded or left."""
        ...


class PlanStore(Protocol):
    """Plans: which jobs belong together, and how far they are."""

    def add_plan(self, plan: PlanRow) -> Reply[bool]:
        """Keep a draft; False if its id is known already."""
        ...

    def begin_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        """All its jobs are there: they may run. False if it is no draft of this run."""
        ...

    def adopt_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        """A plan that was left goes on under another run."""
        ...

    def end_plan(self, plan_id: str) -> Reply[None]:
        """All its jobs have ended: it is over, and the locks of its run are free."""
        ...

    def abandon_plan(self, plan_id: str) -> Reply[None]:
        """It changes nothing more. Cancel its jobs with cancel_plan."""
        ...

    def cancel_plan(self, plan_id: str) -> Reply[Progress]:
        """Cancel open jobs of a plan, a slice; repeat while it says `more`."""
        ...

    def plan(self, plan_id: str) -> Reply[PlanRow | None]: ...

    def open_plans(self, digest: str | None = None) -> Reply[list[PlanRow]]:
        """Drafts, running and left ones; the newest first."""
        ...

    def plan_states(self, plan_id: str) -> Reply[list[LevelStates]]: ...

    def plan_jobs(
        self, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
    ) -> Reply[list[Job]]:
        """Jobs of a plan in one of these states, by id; read by an index on unhappy ones."""
        ...


class LockStore(Protocol):
    """Locks of datasets; a lock is a run's, and lives by its beats."""

    def take_locks(
        self, names: Sequence[str], run_id: str, mark: str, ttl_seconds: float, gone: Sequence[str]
    ) -> Reply[LocksTaken]:
        """Take all of them, or none.

        Free: nobody's, ours, not renewed in time, or of a process in `gone` (marks that are
        certainly dead). Open plans of whoever loses one become `left`, in the same transaction.
        """
        ...

    def beat_locks(self, run_id: str, ttl_seconds: float) -> Reply[bool]:
        """Renew all locks of a run; False if it has none any more, or lost one."""
        ...

    def release_locks(self, run_id: str, names: Sequence[str]) -> Reply[None]: ...

    def locks(self) -> Reply[list[LockView]]: ...


CALLS_SLICE = 500  # jobs whose calls one slice of prune_calls looks at
CALLS_DROPPED = 5_000  # calls that one slice of purge or prune_calls forgets at most
DAYS_KEPT = 400  # of UTC, whose accounts are kept; prune_calls forgets older ones at its end
#: The newest; older ones that are over are forgotten with the next that is saved, with accounts.
RUNS_KEPT = 200


def check_run(part: RunPart) -> None:
    """Refuse a document that is too large to be kept."""
    size = len(part.document.encode())
    if size > RUN_BYTES_MAX:
        raise UsageError(
            f"The record of the run {part.run_id!r} has {size:,} bytes, more than the "
            f"{RUN_BYTES_MAX:,} that are kept; leave out what is not needed."
        )


class JournalStore(Protocol):
    """Calls that cost money: what was begun, what was answered, what it cost."""

    def intend(
        self, intents: Sequence[Intent], budgets: Sequence[Budget]
    ) -> Reply[list[IntentVerdict]]:
        """Write down that calls are about to be sent, and reserve their estimates.

        One verdict for each, in order; the first ones may use up what later ones need. A budget is
        exceeded when what is spent, reserved and asked for is more than it allows; then nothing of
        that intent is written. A call that exists already is open again under the new token, and
        what it had reserved is replaced, and an answer that it had is forgotten; one of a greater
        token is stale, and so is one of a job that nobody knows. How often it was sent again grows
        to what the intent says, so one that is told twice counts once.
        """
        ...

    def answered(self, answers: Sequence[Answer]) -> Reply[None]:
        """Keep answers, and settle what they cost; not fenced, since they are paid for.

        An answer to a call that has one already is not kept, but counted and paid; nor is one to
        a call that a later lease has begun. One without a body, or larger than BODY_BYTES_MAX, is
        paid and spoiled at once. One that was told before, under the same token, changes nothing.
        A call that is forgotten has no accounts any more: nothing is done.
        """
        ...

    def closed(self, calls: Sequence[CallRef]) -> Reply[None]:
        """Calls ended without an answer and nothing was bought; their reserve is given back.

        Said under the token of the lease that made them: nothing is done to one that a later lease
        has begun, nor to one that is not open or held.
        """
        ...

    def held(self, calls: Sequence[CallRef]) -> Reply[None]:
        """Hold open calls in doubt for a person to look at; under the token of the caller."""
        ...

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account]) -> Reply[None]:
        """Answers were taken from the journal: count it, in the calls and in the accounts.

        An account counts as often as it is named: name those of every call.
        """
        ...

    def calls(self, job: JobId) -> Reply[list[CallRecord]]:
        """Every call of a job, in the order of their beginning, without answers.

        One that was begun again stands where it was begun last.
        """
        ...

    def newest_calls(self, limit: int) -> Reply[list[NewestCall]]:
        """The calls that were first written down last, the newest first, without answers."""
        ...

    def answer_of(self, key: CallKey) -> Reply[Answer | None]:
        """The answer of a call in state `answered`; how it was settled is not told again."""
        ...

    def call_figures(self, job: JobId | None) -> Reply[CallFigures]:
        """Sums over the calls of a job, or of all that are kept; from counters, never a scan.

        In doubt are open and held calls whose lease is not the job's present one, and earlier sends
        of calls that were sent again in doubt.
        """
        ...

    def balances(self, spans: Sequence[str]) -> Reply[list[Balance]]:
        """All accounts of some runs and days, or of `total`, of every app.

        Reserved is what calls in hand have reserved; what others have is in doubt, beside what was
        sent again since.
        """
        ...

    def reset_totals(self, app: str, scope: str | None) -> Reply[list[Balance]]:
        """Let the totals of an app, or one of them, begin at zero; what they held before.

        What calls in hand have reserved stays. What is in doubt is forgiven in these accounts only.
        """
        ...

    def prune_calls(self, before: int, after: JobId) -> Reply[tuple[Progress, JobId]]:
        """Forget the calls of one slice of jobs that ended before a time; where the next starts.

        Of jobs that nobody knows as well. Counts calls; repeat while it says `more`. What was spent
        on days long ago is forgotten in the end, but for what a call still has reserved then.
        """
        ...


class RunStore(Protocol):
    """What runs tell of themselves when they are over, and now and again before."""

    def save_run(self, part: RunPart) -> Reply[None]:
        """Keep what one worker of a run says; its last word counts.

        A document larger than RUN_BYTES_MAX is refused with UsageError, and nothing is changed.
        """
        ...

    def run_parts(self, run_id: str | None) -> Reply[list[RunPart]]:
        """Of a run, or of the one that has begun last: whose first word came last."""
        ...

    def runs(self, limit: int) -> Reply[list[str]]:
        """Run ids, the one that has begun last first."""
        ...


LOSSES_BEFORE_SUSPECT = 3  # leases of one job lost with a worker in a row, unseen in a slot
EXPIRIES_BEFORE_SUSPECT = 2  # the same where nobody saw the death: its supervisor died as well
CELLS_PER_LEASE = 64  # cells of suspects that one lease call looks at
SUSPECTS_PER_LEASE = 1_024  # and how many suspects in all
GROUPS_PER_LEASE = 8  # groups visited by one lease call; each costs some pages of log
LANES_PER_LEASE = 64  # lanes visited by one lease call, at least one per group
LEASE_BYTES_MAX = 32 * 1024 * 1024  # of payloads, unless single jobs of many lanes are more
PROMOTE_SLICE = 1_000  # delayed jobs that one lease call makes ready
SWEEP_SLICE = 1_000  # jobs of expired workers that one lease call takes back
SETTLE_SLICE = 500  # dependants that one transaction tells about an end
CHORE_SLICE = 500  # jobs that one slice of cancel, retry_failed or purge touches
PURGE_EDGES = 2_000  # edges that a slice of purge forgets, unless one job has more
GROUPS_IN_STATS = 1_000
QUESTION_SECONDS = 60.0  # a question to a worker is kept for so long, answered or not,
QUESTIONS_KEPT = 1_000  # or until so many were asked after it
LEARNED_SECONDS = 7 * 86_400.0  # what was learned of a limit is kept for so long,
LEARNED_READ = 1_000  # and so many of them are read, the newest first
PROBE_SECONDS = 30.0  # who may probe a cool-down that is over, and does not tell, has this long
RESULT_PAGE_BYTES = 4 * 1024 * 1024  # of results that one page reads, and one more
DEPENDENCIES_SHOWN = 20  # of one job
HOLDERS_SHOWN = 10  # of one limit key
DELAYED_IN_STATS = 10_000  # delayed jobs that are counted; more are not told apart


def lease_voided() -> AttemptError:
    """What the history says of a lease that a restore has voided."""
    return AttemptError(
        ErrorCategory.CRASHED, "lost", "the store was restored from a backup meanwhile"
    )


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are to be listed or changed."""

    state: JobState | None = None
    task: str | None = None
    app: str | None = None


class JobStore(Protocol):
    """Jobs, their leases and their ends."""

    def enqueue(self, jobs: Sequence[NewJob]) -> Reply[EnqueueReport]:
        """Accept jobs, all or nothing, idempotent by key.

        The first job of a key wins, in the store and inside the batch. Refused as a whole with
        EnqueueRefused: an edge to a key that neither exists nor stands earlier in the batch, an
        edge to itself, more than BATCH_JOBS_MAX jobs. Edges of a job that exists already are
        ignored. A dependency that has ended already counts as such: a `success` edge to a job
        that ended otherwise makes the new job `skipped`.
        """
        ...

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> EnqueueReport:
        """The same in a transaction of the user's connection; blocks.

        Whoever has the transaction commits it, or rolls it back with the jobs. UsageError where
        the connection cannot be used, or the store is not on a server.
        """
        ...

    async def enqueue_within_async(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> EnqueueReport:
        """The same on an event loop, on an async connection."""
        ...

    def register(self, worker: WorkerInfo, ttl_seconds: float) -> Reply[None]:
        """Make a worker known and alive for `ttl_seconds`; unpark every lane."""
        ...

    def beat(
        self, worker_ids: Sequence[WorkerId], ttl_seconds: float
    ) -> Reply[frozenset[WorkerId]]:
        """Heartbeat: renew the leases of workers still alive, and name those. None is revived."""
        ...

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        """Hand out ready jobs fairly; LeaseLost if the worker itself is not alive."""
        ...

    def ack(self, worker: WorkerId, ends: Sequence[JobEnd]) -> Reply[list[Verdict]]:
        """End jobs, each under its token, with their effects; one verdict for each.

        An end whose effects cannot be applied (an edge to an unknown key) is not applied at all:
        the call is refused with EnqueueRefused and nothing of the *call* is written.
        """
        ...

    def fail_and_retry(
        self, worker: WorkerId, failures: Sequence[JobFailure]
    ) -> Reply[list[Verdict]]:
        """Put jobs back with a delay, or end them in `error` where a failure `ends` them.

        A charged failure adds to `attempts` and forgets the deferral; an uncharged one sets
        `deferred_since` if it was not set; one that `crashed` adds to `crashes` instead. With
        `detached` the lease is over but its limit keys stay held, see `inbox`. What a charged one
        `spoils` is bought anew.
        """
        ...

    def release(self, worker: WorkerId, refs: Sequence[JobRef]) -> Reply[int]:
        """Give unstarted jobs back at once, uncharged and without history; how many were held.

        Of a lease that is detached: its body has ended, so its limit keys are free.
        """
        ...

    def reap(
        self,
        worker: WorkerId,
        started: Sequence[JobRef],
        cause: str,
        max_crashes: int,
        overdue: Sequence[JobFailure] = (),
    ) -> Reply[Progress]:
        """End a worker whose death was seen: unstarted jobs are ready again, started ones suspect.

        `overdue` are attempts because of which it was killed: they fail as they say.

        Suspects of one death are a cell and run again together; if they were one before, they are
        two from now on, the lower half of the ids and the upper one.

        A started job that ran alone is charged a crash; with `max_crashes` of them it ends in
        `error`, category `crashed`, naming the cause. Bounded: repeat while the answer says `more`.
        """
        ...

    def retire(self, worker: WorkerId) -> Reply[Progress]:
        """End a worker that stops cleanly: what it still holds is ready again. Bounded as reap."""
        ...

    def expire(self, worker_ids: Sequence[WorkerId]) -> Reply[int]:
        """End the leases of workers that are certainly gone, unseen; how many were alive.

        The next lease call takes back what they held, as if their time had run out.
        """
        ...

    def revoke(self, ref: JobRef, error: str) -> Reply[Verdict]:
        """End one attempt from outside (an operator): the job is ready again, its holder fenced.

        The body may still run: the lease is detached.
        """
        ...

    def cancel(self, keys: Sequence[str], app: str | None = None) -> Reply[frozenset[str]]:
        """Cancel jobs that have not ended; the answer names those that were cancelled.

        Refused with KeyOfSeveralApps where that is not clear.

        Of a job that runs the lease is detached until its holder has stopped the body.
        """
        ...

    def leases(self, worker: WorkerId) -> Reply[list[JobRef]]:
        """What a worker holds now, by id; nothing if nobody knows it."""
        ...

    def settle(self) -> Reply[Settled]:
        """Go on with what retries have asked for and ended jobs have still to tell, a slice.

        Lease calls do the same; this is for whoever wants to see the end of it without a worker.
        """
        ...

    def retry_failed(self, task: str | None, max_attempts: int | None) -> Reply[Settled]:
        """Put failed jobs back, and what was skipped because of them; begins with a slice.

        Means jobs in `error` of no plan, of `task`, with at most `max_attempts` charged attempts.
        Their dependants follow once all of them are back, so that one with a `finished` edge waits
        for a second end. The wish is durable: if it says `more`, `settle` goes on with it, and so
        do lease calls of anybody.
        """
        ...

    def would_retry(self, task: str | None, max_attempts: int | None) -> Reply[RetryCounts]:
        """What retry_failed would put back if nothing else happened; changes nothing."""
        ...

    def retry(self, keys: Sequence[str], app: str | None = None) -> Reply[PutBack]:
        """Put the failed jobs of these keys back, with what was skipped because of them.

        Takes at most CHORE_SLICE keys; those of plans and those in other states are left alone.
        Repeat while it says `more`. Refused with KeyOfSeveralApps where that is not clear.
        """
        ...

    def rerun(
        self, keys: Sequence[str], app: str | None = None, *, fresh: bool = False
    ) -> Reply[PutBack]:
        """Let the done jobs of these keys run again, from their first attempt.

        Takes at most CHORE_SLICE keys; what is no plain job and what is not done is left alone.
        Their results stay until they are done again, their dependants stay told. Fresh: the calls
        that they have journaled are forgotten in the transaction that puts them back. Repeat while
        it says `more`. Refused with KeyOfSeveralApps where that is not clear.
        """
        ...

    def purge_jobs(self, ends: Sequence[EndMark]) -> Reply[Progress]:
        """Forget these jobs, each named by its end, as `purge` does; repeat while it says `more`.

        Takes at most CHORE_SLICE of them. What has run again since is not touched.
        """
        ...

    def would_purge_jobs(self, ends: Sequence[EndMark]) -> Reply[int]:
        """How many of these purge_jobs would forget now; changes nothing."""
        ...

    def purge(self, before: int, after: EndMark) -> Reply[tuple[Progress, EndMark]]:
        """Forget one slice of jobs that ended before a time (microseconds), with their history.

        A job that an unfinished job still waits for is kept, and so are those of open plans. Walks
        by end from a mark; answers what it did and where the next slice starts. The last slice
        forgets old plans that have no job any more. A skipped dependant of a failed job that is
        forgotten stays skipped for good: nobody can put that one back.
        """
        ...

    def would_purge(self, before: int) -> Reply[int]:
        """How many jobs purge would forget now; changes nothing."""
        ...

    def void_leases(self, above: int) -> Reply[int]:
        """Void every lease, as after a restore; returns how many were voided.

        What was in progress is ready again (a suspect stays one), uncharged; every worker has
        ended. Every token from now on is greater than `above` and than any this store has handed
        out. One transaction, however many jobs: for a store that nobody uses.
        """
        ...

    def stats(self) -> Reply[Stats]: ...

    def job(self, key: str, app: str | None = None) -> Reply[Job | None]:
        """A job of an app; KeyOfSeveralApps where several have one, and none is named."""
        ...

    def attempts(self, key: str, app: str | None = None) -> Reply[list[Attempt]]: ...

    def job_context(self, key: str, app: str | None = None) -> Reply[JobContext | None]:
        """A job with what it waits for, as far as this store knows."""
        ...

    def jobs(self, wanted: JobFilter, after_id: JobId, limit: int) -> Reply[list[Job]]:
        """One page of jobs with an id above `after_id`, by id."""
        ...

    def results(
        self, task: str, after: EndMark, limit: int, app: str | None = None
    ) -> Reply[ResultPage]:
        """What done jobs of a task returned, those that ended after a mark, in the order of ends.

        A page has at most `limit` rows, and at most RESULT_PAGE_BYTES of results and one more. It
        may have none and `more` all the same: it looks at a bounded number of ends, whosever they
        are.
        """
        ...

    def upstream(self, job: JobId) -> Reply[list[UpstreamRow]]:
        """What a job was enqueued after, in that order; without what was purged."""
        ...

    def outlook(self, worker: WorkerId, run_id: str) -> Reply[Outlook]: ...

    def check_ready(self) -> Reply[None]:
        """Compare what could be leased with the indexes by which leases find it.

        StoreCorrupt if they differ: a worker would wait for ever. It reads the state of every job,
        in one snapshot and outside of the writer's turn; a server answers for its own indexes.
        """
        ...

    def check(self) -> Reply[list[str]]:
        """Every broken invariant of seam.md, as sentences. Scans everything: for tests."""
        ...


class AppStore(Protocol):
    """Apps that share a store: each has jobs, keys, units, cursors and datasets of its own.

    A store that has signed on as an app, or looks as one, is about that app; any other is about
    all of them, and what it enqueues has no owner.
    """

    @property
    def app(self) -> str | None: ...

    def sign_on(self, app: str, tasks: Sequence[str] | None, after_id: JobId) -> Reply[Moved]:
        """Be about this app from now on; what has no owner and is its own moves to it, a slice.

        That is jobs of `tasks` (None: take nothing), if the store names no other app, and units
        and jobs of plans that name this one. It is done at once if nothing else has no owner.
        Repeat from where it stopped while it says `more`.
        """
        ...

    def look_as(self, app: str | None) -> Reply[None]:
        """Be about this app without a trace, as in a store that may not be written.

        None: about all of them.
        """
        ...

    def adopt_jobs(self, app: str, tasks: Sequence[str] | None, after_id: JobId) -> Reply[Moved]:
        """Give an app a slice of what has no owner: jobs of some tasks, or everything.

        Jobs whose key the app has already stay. UsageError if nobody knows the app.
        """
        ...

    def rename_app(self, old: str, new: str, after_id: JobId) -> Reply[Moved]:
        """Give an app another name; in slices if an app has that name, which gets all of it.

        UsageError if a worker of it is alive, or if both have a job of the same key.
        """
        ...

    def apps(self) -> Reply[list[AppView]]:
        """Every app, by name; without one: what has no owner, if there is any."""
        ...


class LimitStore(Protocol):
    """Caps that an operator changed while running."""

    def caps(self) -> Reply[dict[str, int]]: ...

    def holders(self, limit: int) -> Reply[dict[str, int]]:
        """How many jobs hold each limit key now; at most `limit` keys, by name."""
        ...

    def set_cap(self, limit_key: str, cap: int | None) -> Reply[None]:
        """Override a cap, or with None forget the override; wakes who waited for it.

        `dimension:*` is the default of a dimension, for keys that nothing else is said of.
        """
        ...


class StatusStore(Protocol):
    """What workers say of themselves, and what operators say to all of them."""

    def publish(self, worker: WorkerId, document: str) -> Reply[None]: ...

    def workers(self) -> Reply[list[WorkerView]]: ...

    def set_paused(self, paused: bool) -> Reply[None]:
        """While paused, no lease call hands out a job."""
        ...


class ControlStore(Protocol):
    """What is said to one running worker, and what it answers. Nobody is woken by it."""

    def inbox(self, worker: WorkerId) -> Reply[Inbox]:
        """Leases of a worker that are detached, and the questions it has not answered yet.

        A lease is detached that was cancelled or revoked from outside, or detached by the worker
        itself, while its body may still run. Each holds its limit keys until the worker releases
        or acknowledges it, or is gone itself.
        """
        ...

    def ask(self, worker: WorkerId, ref: JobRef) -> Reply[int]:
        """Ask a worker how a lease stands; the number of the question.

        Questions are forgotten after QUESTION_SECONDS, or when QUESTIONS_KEPT were asked since.
        """
        ...

    def answer(self, question: int, document: str) -> Reply[bool]:
        """Answer a question; False if nobody waits for it any more."""
        ...

    def answer_to(self, question: int) -> Reply[str | None]:
        """The answer to a question, if there is one by now."""
        ...


class LearnedLimitStore(Protocol):
    """What runs have learned about the limits of providers. Nobody is woken by it."""

    def save_learned(self, limits: Mapping[ProviderModelKey, str]) -> Reply[None]:
        """Keep a document for each model; the last word counts. What is old is forgotten."""
        ...

    def learned(self) -> Reply[list[StoredLimit]]:
        """What is kept, the newest first; at most LEARNED_READ."""
        ...


class CooldownStore(Protocol):
    """Long cool-downs of providers, for every process and run. Nobody is woken by them."""

    def begin_cooldown(self, key: CooldownKey, seconds: float, document: str) -> Reply[None]:
        """Let nothing be sent for so long from now, by the clock of the store.

        One that is known and ends later stays as it is; else nobody has the right to probe it any
        more. Those that were over LEARNED_SECONDS ago are forgotten.
        """
        ...

    def take_probe(self, key: CooldownKey, *, at_once: bool = False) -> Reply[bool]:
        """Take the right to probe for PROBE_SECONDS, if the cool-down is over and nobody has it.

        With `at_once` also before its end. False as well if there is no cool-down.
        """
        ...

    def end_cooldown(self, key: CooldownKey) -> Reply[None]:
        """A probe was answered: forget it."""
        ...

    def cooldowns(self) -> Reply[list[StoredCooldown]]:
        """What is kept, over or not, the newest first; at most LEARNED_READ."""
        ...


class ScheduleStore(Protocol):
    """Units of schedules, each one job for ever, and what was checked before they may tick.

    `Rearm` counts a tick of a unit, a failure of a job of kind `tick` a failed try; of its history
    the newest FAILED_TICKS_KEPT rows are kept.
    """

    def arm(self, app: str, units: Sequence[UnitPlan]) -> Reply[ArmReport]:
        """Let units be as they are planned, all or nothing, idempotent; the first of a key counts.

        A new one is due at `first_at`. One that is known with the same timing stays as it is, but
        payload, group and limit keys follow the plan; so it does, but is due at `first_at`, with
        another timing. Of one that runs only app and timing are noted, and a suspect keeps its
        turn. One that has ended or was retired is queued again at `first_at`, its attempts
        forgotten, its counters kept; a retired one of the same timing for the occurrence that it
        had waited for. No occurrence that ended well comes again: then it is due
        right after that. Refused with EnqueueRefused: more than ARM_UNITS_MAX, or a key of a job
        that is no unit.
        """
        ...

    def retire_units(self, keys: Sequence[str]) -> Reply[int]:
        """Let units tick no more; how many did, or might have. The cursor stays.

        As `cancel`, and one that had failed for good is cancelled, too, so that no retry puts it
        back. At most ARM_UNITS_MAX.
        """
        ...

    def tick_units(self, keys: Sequence[str]) -> Reply[frozenset[str]]:
        """Let units that wait tick now; the keys of those. At most ARM_UNITS_MAX.

        One that waits for another try of a failed tick has it now; of others the next occurrence
        is now, or right after the last one that ended well.
        """
        ...

    def pause_units(self, name: str) -> Reply[bool]:
        """Let a unit, or all of a schedule, not tick until it is resumed; False if it was paused.

        The name is a unit's key or its task, known or not; nothing but `resume_units` ends its
        pause. A tick that is leased goes on. What falls due is `waiting` from the next lease call
        on.
        """
        ...

    def resume_units(self, name: str) -> Reply[bool]:
        """End the pause of this name; False if there is none.

        A unit that fell due meanwhile is ready, for the occurrence that it had waited for.
        """
        ...

    def forget_cursors(self, names: Sequence[str]) -> Reply[int]:
        """Let cursors begin anew; how many were set. At most ARM_UNITS_MAX."""
        ...

    def units(self, app: str | None, after_key: str, limit: int) -> Reply[list[UnitView]]:
        """One page of units of an app, or of all, with a key above `after_key`, by key."""
        ...

    def unit(self, key: str) -> Reply[UnitView | None]: ...

    def cursor(self, name: str) -> Reply[str | None]: ...

    def cursors(self, names: Sequence[str]) -> Reply[dict[str, str]]:
        """Those of these cursors that are set."""
        ...

    def keep_preflights(self, app: str, results: Sequence[PreflightResult]) -> Reply[None]:
        """Keep what checks came to, the last word on each; at most ARM_UNITS_MAX."""
        ...

    def preflights(self, app: str, after_unit: str, limit: int) -> Reply[list[PreflightResult]]:
        """One page of what is kept for an app above a unit, by unit."""
        ...

    def checked(self, app: str, units: Sequence[str]) -> Reply[list[PreflightResult]]:
        """What is kept of these units of preflights, as far as anything is; in any order."""
        ...

    def forget_preflights(self, app: str, before: int) -> Reply[int]:
        """Forget what was checked before a time (microseconds); how many."""
        ...


class Store(
    JobStore,
    AppStore,
    LimitStore,
    StatusStore,
    ControlStore,
    LearnedLimitStore,
    CooldownStore,
    JournalStore,
    RunStore,
    ScheduleStore,
    ManifestStore,
    PlanStore,
    LockStore,
    Protocol,
):
    """The sum of the above over one writer, and its life."""

    bulk_jobs: int  # of one call, where many are to be enqueued

    @property
    def url(self) -> str: ...

    async def wait_for_work(self, timeout: float | None) -> None:
        """Return when there may be something new to lease, or after `timeout` seconds. A hint."""
        ...

    def close(self) -> None:
        """Finish what was claimed, refuse the rest, free everything; idempotent."""
        ...

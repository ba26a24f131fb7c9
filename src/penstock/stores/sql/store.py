# SPDX-License-Identifier: Apache-2.0
"""The store on a database, whichever database it is: each call as a transaction or a read."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from penstock import failpoints
from penstock.clock import BootTime
from penstock.errors import UsageError
from penstock.model.dataset import SliceMarks
from penstock.model.job import Attempt, Job, JobId, JobState, NewJob, WorkerId
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
from penstock.model.run import RunPart
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
from penstock.stores.protocol import (
    DatasetView,
    JobFilter,
    SlicePage,
    SliceRange,
    SliceRow,
    check_run,
)
from penstock.stores.sql import (
    ack,
    apps,
    cooldowns,
    dead_workers,
    enqueue,
    journal,
    operator,
    plans,
    retention,
    schedules,
    slices,
    views,
    workers,
)
from penstock.stores.sql.transaction import UNOWNED, Transaction, scoped
from penstock.stores.sql.views import SqlReader
from penstock.stores.store_future import Reply

T = TypeVar("T")

NOBODY = 0  # the number of no app


class Writer(Protocol):
    """Runs operations in transactions, or refuses them."""

    def submit(
        self,
        run: Callable[[Transaction], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]: ...


class Waiters:
    """Owns the wake-ups of one store in one process. Does not know what there is to lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._wakes: set[Callable[[], None]] = set()
        self._version = 0
        self._seen = 0  # the version that the last one who waited went away with

    @property
    def has_news(self) -> bool:
        """Whether anything was made that may be leased since somebody last went to look."""
        return self._version != self._seen

    @property
    def are_waiting(self) -> bool:
        """Whether anybody waits for news."""
        return bool(self._wakes)

    def saw(self) -> None:
        """Somebody goes to look."""
        with self._lock:
            self._seen = self._version

    def tell(self) -> None:
        """There may be something to lease; wake all."""
        with self._lock:
            self._version += 1
        self.wake()

    def wake(self) -> None:
        """Wake all waiters; each checks for itself whether there is work."""
        with self._lock:
            for wake in self._wakes:
                with suppress(RuntimeError):  # its loop is closed
                    wake()

    @contextmanager
    def joined(self) -> Iterator[asyncio.Event]:
        """What is set when this loop is woken, as long as it waits."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._lock:
            self._wakes.add(wake)
        try:
            yield woken
        finally:
            with self._lock:
                self._wakes.discard(wake)


class SqlStore(ABC):
    """Owns the wake-ups of this process; says which step does what is asked for, and on which side.

    How to write, to read and to wait is the backend's.
    """

    bulk_jobs = 1_000  # the others of a file wait meanwhile

    _writer: Writer
    _reader: SqlReader

    def __init__(self) -> None:
        self._waiters = Waiters()
        self.app: str | None = None  # whose jobs this is about; None: everybody's
        self._no = UNOWNED  # its number

    @property
    def _own(self) -> int | None:
        """The app whose jobs are seen; None: all are."""
        return None if self.app is None else self._no

    def _submit(
        self,
        run: Callable[[Transaction], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]:
        """Let the writer run an operation of our app."""

        def of_app(tx: Transaction) -> T:
            tx.app = self._no
            return run(tx)

        return self._writer.submit(of_app, urgent=urgent, atomic=atomic, lazy=lazy, opening=opening)

    def sign_on(self, app: str, tasks: Sequence[str] | None, after_id: JobId) -> Reply[Moved]:
        def signed_on(found: apps.SignedOn) -> Moved:
            self.app, self._no = app, found.no
            return found.moved

        return self._submit(lambda tx: signed_on(apps.sign_on(tx, app, tasks, after_id)))

    def look_as(self, app: str | None) -> Reply[None]:
        def look() -> None:
            number = UNOWNED if app is None else self._reader.first("read_app", app)
            if number is None:  # it would take over what has no owner, if nobody else could
                number = NOBODY if self._reader.value("is_app_named", app) else UNOWNED
            self.app, self._no = app, number

        return self._read(look)

    def adopt_jobs(self, app: str, tasks: Sequence[str] | None, after_id: JobId) -> Reply[Moved]:
        return self._submit(lambda tx: apps.adopt(tx, app, tasks, after_id))

    def rename_app(self, old: str, new: str, after_id: JobId) -> Reply[Moved]:
        return self._submit(lambda tx: apps.rename(tx, old, new, after_id))

    def apps(self) -> Reply[list[AppView]]:
        return self._read(lambda: apps.apps_of(self._reader, self._times()[1]))

    def _app_of(self, name: str | None) -> int | None:
        """The number of an app that is asked about; ours, or everybody, if none is."""
        if name is None:
            return self._own
        number = self._reader.first("read_app", name)
        return NOBODY if number is None else int(number)

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def close(self) -> None: ...

    def beat(
        self, worker_ids: Sequence[WorkerId], ttl_seconds: float
    ) -> Reply[frozenset[WorkerId]]:
        return self._submit(lambda tx: workers.beat(tx, worker_ids, ttl_seconds), urgent=True)

    @abstractmethod
    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]: ...

    @abstractmethod
    def _read(self, question: Callable[[], T]) -> Reply[T]:
        """Answer a question, made of calls to the reader."""

    @abstractmethod
    def _times(self) -> tuple[int, BootTime]:
        """The time for people and the time that leases live by; part of a question."""

    @abstractmethod
    async def _wait(self, timeout: float | None, woken: asyncio.Event) -> None:
        """Return when there may be something new to lease."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def enqueue(self, jobs: Sequence[NewJob]) -> Reply[EnqueueReport]:
        failpoints.hit("enqueue.begin")
        # Only edges and the size of a batch can be refused, and the size before anything is
        # written.
        atomic = any(job.after for job in jobs)
        return self._submit(
            lambda tx: enqueue.enqueue(tx, jobs),
            atomic=atomic,
            lazy=len(jobs) == 1,
            opening=self._opening(jobs),
        )

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> EnqueueReport:
        raise self._not_within()

    async def enqueue_within_async(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> EnqueueReport:
        raise self._not_within()

    def _not_within(self) -> UsageError:
        return UsageError(
            f"connection= enqueues in a transaction of PostgreSQL, and the store is {self.url}: "
            "commit yours first and enqueue without it, or keep the store in that database with "
            'store = "postgresql://…".'
        )

    def _opening(self, jobs: Sequence[NewJob]) -> Callable[[], None] | None:
        """What lets the session accept these jobs with its begin; None where that gains nothing."""
        return None

    def register(self, worker: WorkerInfo, ttl_seconds: float) -> Reply[None]:
        return self._submit(lambda tx: workers.register(tx, worker, ttl_seconds), atomic=True)

    def ack(self, worker: WorkerId, ends: Sequence[JobEnd]) -> Reply[list[Verdict]]:
        return self._submit(lambda tx: ack.ack(tx, worker, ends), atomic=True)

    def fail_and_retry(
        self, worker: WorkerId, failures: Sequence[JobFailure]
    ) -> Reply[list[Verdict]]:
        return self._submit(lambda tx: ack.fail_and_retry(tx, worker, failures))

    def release(self, worker: WorkerId, refs: Sequence[JobRef]) -> Reply[int]:
        return self._submit(lambda tx: ack.release(tx, worker, refs))

    def reap(
        self,
        worker: WorkerId,
        started: Sequence[JobRef],
        cause: str,
        max_crashes: int,
        overdue: Sequence[JobFailure] = (),
    ) -> Reply[Progress]:
        return self._submit(
            lambda tx: dead_workers.reap(tx, worker, started, cause, max_crashes, overdue),
            urgent=True,
        )

    def retire(self, worker: WorkerId) -> Reply[Progress]:
        return self._submit(lambda tx: dead_workers.retire(tx, worker))

    def expire(self, worker_ids: Sequence[WorkerId]) -> Reply[int]:
        return self._writer.submit(lambda tx: workers.expire(tx, worker_ids))

    def revoke(self, ref: JobRef, error: str) -> Reply[Verdict]:
        return self._submit(lambda tx: operator.revoke(tx, ref, error))

    def cancel(self, keys: Sequence[str], app: str | None = None) -> Reply[frozenset[str]]:
        return self._submit(lambda tx: operator.cancel(tx, keys, self._named(tx, app)))

    def _named(self, tx: Transaction, app: str | None) -> int | None:
        """The number of an app whose jobs are to be changed; ours, or everybody, if none is."""
        own = self._own if app is None else tx.first("read_app", app)
        return NOBODY if app and own is None else own

    def leases(self, worker: WorkerId) -> Reply[list[JobRef]]:
        return self._read(lambda: self._reader.leases(worker))

    def settle(self) -> Reply[Settled]:
        return self._submit(operator.go_on)

    def retry_failed(self, task: str | None, max_attempts: int | None) -> Reply[Settled]:
        return self._submit(lambda tx: operator.retry_failed(tx, task, max_attempts, self._own))

    def would_retry(self, task: str | None, max_attempts: int | None) -> Reply[RetryCounts]:
        return self._read(lambda: views.would_retry(self._reader, task, max_attempts, self._own))

    def retry(self, keys: Sequence[str], app: str | None = None) -> Reply[PutBack]:
        return self._submit(lambda tx: operator.retry(tx, keys, self._named(tx, app)))

    def rerun(
        self, keys: Sequence[str], app: str | None = None, *, fresh: bool = False
    ) -> Reply[PutBack]:
        return self._submit(lambda tx: operator.rerun(tx, keys, self._named(tx, app), fresh=fresh))

    def purge_jobs(self, ends: Sequence[EndMark]) -> Reply[Progress]:
        return self._submit(lambda tx: retention.purge_jobs(tx, ends, self._own))

    def would_purge_jobs(self, ends: Sequence[EndMark]) -> Reply[int]:
        return self._read(lambda: views.would_purge_jobs(self._reader, ends, self._own))

    def purge(self, before: int, after: EndMark) -> Reply[tuple[Progress, EndMark]]:
        return self._submit(lambda tx: retention.purge(tx, before, after, self._own))

    def would_purge(self, before: int) -> Reply[int]:
        return self._read(lambda: views.would_purge(self._reader, before, self._own))

    def void_leases(self, above: int) -> Reply[int]:
        return self._submit(lambda tx: workers.void_leases(tx, above))

    def stats(self) -> Reply[Stats]:
        return self._read(lambda: self._reader.stats(*self._times(), self._own))

    def job(self, key: str, app: str | None = None) -> Reply[Job | None]:
        return self._read(lambda: self._reader.job(key, self._app_of(app)))

    def attempts(self, key: str, app: str | None = None) -> Reply[list[Attempt]]:
        return self._read(lambda: self._reader.attempts(key, self._app_of(app)))

    def job_context(self, key: str, app: str | None = None) -> Reply[JobContext | None]:
        return self._read(
            lambda: self._reader.job_context(key, self._times()[0], self._app_of(app))
        )

    def jobs(self, wanted: JobFilter, after_id: JobId, limit: int) -> Reply[list[Job]]:
        return self._read(
            lambda: self._reader.jobs(wanted, after_id, limit, self._app_of(wanted.app))
        )

    def results(
        self, task: str, after: EndMark, limit: int, app: str | None = None
    ) -> Reply[ResultPage]:
        return self._read(lambda: self._reader.results(task, after, limit, self._app_of(app)))

    def upstream(self, job: JobId) -> Reply[list[UpstreamRow]]:
        return self._read(lambda: self._reader.upstream(job))

    def outlook(self, worker: WorkerId, run_id: str) -> Reply[Outlook]:
        return self._read(lambda: self._reader.outlook(worker, run_id, self._times()[1], self._own))

    def check_ready(self) -> Reply[None]:
        return self._read(self._reader.check_ready)

    def check(self) -> Reply[list[str]]:
        return self._read(self._reader.check)

    def cursor(self, name: str) -> Reply[str | None]:
        return self._read(lambda: self._reader.first("read_cursor", scoped(self._no, name)))

    def caps(self) -> Reply[dict[str, int]]:
        return self._read(self._reader.caps)

    def holders(self, limit: int) -> Reply[dict[str, int]]:
        return self._read(lambda: dict(self._reader.rows("list_holders", limit)))

    def set_cap(self, limit_key: str, cap: int | None) -> Reply[None]:
        return self._submit(lambda tx: workers.set_cap(tx, limit_key, cap))

    def publish(self, worker: WorkerId, document: str) -> Reply[None]:
        return self._submit(lambda tx: workers.publish(tx, worker, document))

    def workers(self) -> Reply[list[WorkerView]]:
        return self._read(lambda: self._reader.workers(self._times()[1]))

    def set_paused(self, paused: bool) -> Reply[None]:
        return self._submit(lambda tx: workers.set_paused(tx, paused))

    def save_learned(self, limits: Mapping[ProviderModelKey, str]) -> Reply[None]:
        return self._submit(lambda tx: workers.save_learned(tx, limits))

    def learned(self) -> Reply[list[StoredLimit]]:
        return self._read(self._reader.learned)

    def begin_cooldown(self, key: CooldownKey, seconds: float, document: str) -> Reply[None]:
        return self._submit(lambda tx: cooldowns.begin_cooldown(tx, key, seconds, document))

    def take_probe(self, key: CooldownKey, *, at_once: bool = False) -> Reply[bool]:
        return self._submit(lambda tx: cooldowns.take_probe(tx, key, at_once))

    def end_cooldown(self, key: CooldownKey) -> Reply[None]:
        return self._submit(lambda tx: cooldowns.end_cooldown(tx, key))

    def cooldowns(self) -> Reply[list[StoredCooldown]]:
        return self._read(lambda: cooldowns.cooldowns(self._reader, self._times()[0]))

    def inbox(self, worker: WorkerId) -> Reply[Inbox]:
        return self._read(lambda: self._reader.inbox(worker))

    def ask(self, worker: WorkerId, ref: JobRef) -> Reply[int]:
        return self._submit(lambda tx: workers.ask(tx, worker, ref))

    def answer(self, question: int, document: str) -> Reply[bool]:
        return self._submit(lambda tx: workers.answer(tx, question, document))

    def answer_to(self, question: int) -> Reply[str | None]:
        return self._read(lambda: self._reader.first("read_answer", question))

    def intend(
        self, intents: Sequence[Intent], budgets: Sequence[Budget]
    ) -> Reply[list[IntentVerdict]]:
        return self._submit(lambda tx: journal.intend(tx, intents, budgets))

    def answered(self, answers: Sequence[Answer]) -> Reply[None]:
        return self._submit(lambda tx: journal.answered(tx, answers))

    def closed(self, calls: Sequence[CallRef]) -> Reply[None]:
        return self._submit(lambda tx: journal.closed(tx, calls))

    def held(self, calls: Sequence[CallRef]) -> Reply[None]:
        return self._submit(lambda tx: journal.held(tx, calls))

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account]) -> Reply[None]:
        return self._submit(lambda tx: journal.reused(tx, keys, accounts))

    def calls(self, job: JobId) -> Reply[list[CallRecord]]:
        return self._read(lambda: journal.calls_of(self._reader, job))

    def newest_calls(self, limit: int) -> Reply[list[NewestCall]]:
        return self._read(lambda: journal.newest_calls(self._reader, limit))

    def answer_of(self, key: CallKey) -> Reply[Answer | None]:
        return self._read(lambda: journal.answer_of(self._reader, key))

    def call_figures(self, job: JobId | None) -> Reply[CallFigures]:
        return self._read(lambda: journal.figures_of(self._reader, job))

    def balances(self, spans: Sequence[str]) -> Reply[list[Balance]]:
        return self._read(lambda: journal.balances_of(self._reader, spans))

    def reset_totals(self, app: str, scope: str | None) -> Reply[list[Balance]]:
        return self._writer.submit(lambda tx: journal.reset_totals(tx, app, scope))

    def prune_calls(self, before: int, after: JobId) -> Reply[tuple[Progress, JobId]]:
        return self._submit(lambda tx: journal.prune_calls(tx, before, after, self._own))

    def save_run(self, part: RunPart) -> Reply[None]:
        check_run(part)
        return self._submit(lambda tx: journal.save_run(tx, part))

    def run_parts(self, run_id: str | None) -> Reply[list[RunPart]]:
        return self._read(lambda: journal.parts_of(self._reader, run_id))

    def runs(self, limit: int) -> Reply[list[str]]:
        return self._read(lambda: journal.newest_runs(self._reader, limit))

    def arm(self, app: str, units: Sequence[UnitPlan]) -> Reply[ArmReport]:
        return self._submit(lambda tx: schedules.arm(tx, app, units), atomic=True)

    def retire_units(self, keys: Sequence[str]) -> Reply[int]:
        return self._submit(lambda tx: schedules.retire_units(tx, keys))

    def tick_units(self, keys: Sequence[str]) -> Reply[frozenset[str]]:
        return self._submit(lambda tx: schedules.tick_units(tx, keys))

    def pause_units(self, name: str) -> Reply[bool]:
        return self._submit(lambda tx: schedules.pause_units(tx, name))

    def resume_units(self, name: str) -> Reply[bool]:
        return self._submit(lambda tx: schedules.resume_units(tx, name))

    def forget_cursors(self, names: Sequence[str]) -> Reply[int]:
        return self._submit(lambda tx: schedules.forget_cursors(tx, names, self._no))

    def units(self, app: str | None, after_key: str, limit: int) -> Reply[list[UnitView]]:
        return self._read(lambda: schedules.units_of(self._reader, app, after_key, limit))

    def unit(self, key: str) -> Reply[UnitView | None]:
        return self._read(lambda: schedules.unit_of(self._reader, key, self._own))

    def cursors(self, names: Sequence[str]) -> Reply[dict[str, str]]:
        return self._read(lambda: schedules.cursors_of(self._reader, names, self._no))

    def keep_preflights(self, app: str, results: Sequence[PreflightResult]) -> Reply[None]:
        return self._submit(lambda tx: schedules.keep_preflights(tx, app, results))

    def preflights(self, app: str, after_unit: str, limit: int) -> Reply[list[PreflightResult]]:
        return self._read(lambda: schedules.preflights_of(self._reader, app, after_unit, limit))

    def checked(self, app: str, units: Sequence[str]) -> Reply[list[PreflightResult]]:
        return self._read(lambda: schedules.checked_of(self._reader, app, units))

    def forget_preflights(self, app: str, before: int) -> Reply[int]:
        return self._submit(lambda tx: tx.run("forget_preflights", app, before))

    async def wait_for_work(self, timeout: float | None) -> None:
        """Return when there may be something new to lease: our own doing, or another process's."""
        with self._waiters.joined() as woken:
            await self._wait(timeout, woken)
            self._waiters.saw()

    def _committed(self, tx: Transaction) -> None:
        """Called by a writer's thread after each commit."""
        for point in tx.passed:
            failpoints.hit(point)
        if tx.made_work:
            self._waiters.tell()

    def beat_locks(self, run_id: str, ttl_seconds: float) -> Reply[bool]:
        return self._submit(lambda tx: plans.beat_locks(tx, run_id, ttl_seconds), urgent=True)

    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> Reply[SliceMarks]:
        return self._read(
            lambda: self._reader.slice_marks(scoped(self._no, dataset), start, end, version)
        )

    def manifests(self, dataset: str, start: int, end: int, limit: int) -> Reply[SlicePage]:
        return self._read(
            lambda: slices.page_of(self._reader, self._no, dataset, start, end, limit)
        )

    def slices(self, ranges: Sequence[SliceRange]) -> Reply[SlicePage]:
        return self._read(lambda: slices.ranges_of(self._reader, self._no, ranges))

    def staged(self, plan_id: str) -> Reply[list[SliceRow]]:
        return self._read(lambda: slices.staged_of(self._reader, plan_id))

    def named_paths(self, dataset: str, after: int, limit: int) -> Reply[list[tuple[int, str]]]:
        return self._read(lambda: slices.paths_of(self._reader, dataset, after, limit))

    def datasets(self) -> Reply[list[DatasetView]]:
        return self._read(lambda: slices.datasets_of(self._reader, self._own))

    def own_name(self, proposed: str) -> Reply[str]:
        return self._submit(lambda tx: slices.own_name(tx, proposed))

    def tidy_manifests(self, limit: int) -> Reply[Progress]:
        return self._submit(lambda tx: slices.tidy(tx, limit))

    def add_plan(self, plan: PlanRow) -> Reply[bool]:
        return self._submit(lambda tx: plans.add_plan(tx, plan))

    def begin_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        return self._submit(lambda tx: plans.begin_plan(tx, plan_id, run_id))

    def adopt_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        return self._submit(lambda tx: plans.adopt_plan(tx, plan_id, run_id))

    def end_plan(self, plan_id: str) -> Reply[None]:
        return self._submit(lambda tx: plans.end_plan(tx, plan_id))

    def abandon_plan(self, plan_id: str) -> Reply[None]:
        return self._submit(lambda tx: plans.abandon_plan(tx, plan_id))

    def cancel_plan(self, plan_id: str) -> Reply[Progress]:
        return self._submit(lambda tx: plans.cancel_plan(tx, plan_id))

    def plan(self, plan_id: str) -> Reply[PlanRow | None]:
        return self._read(lambda: slices.plan_of(self._reader, plan_id))

    def open_plans(self, digest: str | None = None) -> Reply[list[PlanRow]]:
        return self._read(lambda: slices.open_plans_of(self._reader, digest, self.app))

    def plan_states(self, plan_id: str) -> Reply[list[LevelStates]]:
        return self._read(lambda: slices.states_of(self._reader, plan_id))

    def plan_jobs(
        self, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
    ) -> Reply[list[Job]]:
        return self._read(
            lambda: slices.plan_jobs_of(self._reader, plan_id, states, after_id, limit)
        )

    def take_locks(
        self, names: Sequence[str], run_id: str, mark: str, ttl_seconds: float, gone: Sequence[str]
    ) -> Reply[LocksTaken]:
        return self._submit(lambda tx: plans.take_locks(tx, names, run_id, mark, ttl_seconds, gone))

    def release_locks(self, run_id: str, names: Sequence[str]) -> Reply[None]:
        return self._submit(lambda tx: plans.release_locks(tx, run_id, names))

    def locks(self) -> Reply[list[LockView]]:
        return self._read(lambda: plans.locks_of(self._reader, self._times()[1]))

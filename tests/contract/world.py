# SPDX-License-Identifier: Apache-2.0
"""In which words do the rules of the contract speak to a store?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TypeVar

from penstock.model.job import (
    Attempt,
    AttemptError,
    Edge,
    ErrorCategory,
    Job,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
    kind_of_name,
)
from penstock.model.lease import (
    ConfiguredCaps,
    Effect,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseBatch,
    LeaseRequest,
    Verdict,
    WorkerInfo,
)
from penstock.model.views import FIRST_END, EnqueueReport
from penstock.retry.policy import is_last
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.testing.clocks import ManualClock

T = TypeVar("T")

TTL_SECONDS = 30.0
CALLS_MAX = 1_000  # lease calls after which a store that still promises more is wrong
TROUBLE = AttemptError(ErrorCategory.OWN, "ValueError", "trouble")


class StoreWorld:
    """Owns a store, its clock and the workers of one test. Does not judge."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        *,
        leases_by_wall_clock: bool = False,
        chain_max: int = 5_000,
    ) -> None:
        self.leases_by_wall_clock = leases_by_wall_clock
        self.chain_max = chain_max  # each link costs a server some round trips
        self.store = store
        self.clock = clock
        self.caps: dict[str, int] = {}
        self._tasks: dict[WorkerId, tuple[str, ...]] = {}
        self._numbers = count(1)

    # Producers

    def job(
        self,
        key: str,
        *,
        task: str = "work",
        group: str = "main",
        limit_keys: Sequence[str] = (),
        priority: int = 0,
        delay: float = 0.0,
        after: Sequence[Edge] = (),
        payload: str = "{}",
        partition: str | None = None,
        plan_id: str | None = None,
        level: int | None = None,
    ) -> NewJob:
        return NewJob(
            key=key,
            task=task,
            kind=kind_of_name(task),
            payload=payload,
            group=group,
            limit_keys=tuple(sorted(limit_keys)),
            partition=partition,
            priority=priority,
            delay_seconds=delay,
            after=tuple(after),
            plan_id=plan_id,
            level=level,
        )

    def add(self, *jobs: NewJob | str) -> EnqueueReport:
        """Enqueue jobs, or plain ones by key, in one batch."""
        batch = [self.job(job) if isinstance(job, str) else job for job in jobs]
        return self.store.enqueue(batch).result()

    # Workers

    def new_worker(
        self,
        tasks: Sequence[str] = ("work",),
        ttl: float = TTL_SECONDS,
        run_id: str = "run-1",
        max_crashes: int = 3,
    ) -> WorkerId:
        worker = WorkerId(f"worker-{next(self._numbers)}")
        info = WorkerInfo(
            id=worker,
            run_id=run_id,
            tasks=tuple(tasks),
            host="here",
            pid=42,
            max_crashes=max_crashes,
        )
        self.store.register(info, ttl).result()
        self._tasks[worker] = tuple(tasks)
        return worker

    def request(
        self,
        worker: WorkerId,
        limit: int = 10,
        *,
        tasks: Sequence[str] | None = None,
        caps: Mapping[str, int] | None = None,
        quarantine: bool = False,
        cell: int = 0,
        weights: Mapping[str, int] | None = None,
    ) -> LeaseRequest:
        return LeaseRequest(
            worker=worker,
            tasks=self._tasks.get(worker, ("work",)) if tasks is None else tuple(tasks),
            limit=limit,
            caps=ConfiguredCaps(self.caps if caps is None else caps),
            quarantine=quarantine,
            cell=cell,
            weights=weights or {},
        )

    def lease(
        self,
        worker: WorkerId,
        limit: int = 10,
        *,
        tasks: Sequence[str] | None = None,
        caps: Mapping[str, int] | None = None,
        quarantine: bool = False,
        cell: int = 0,
        weights: Mapping[str, int] | None = None,
    ) -> LeaseBatch:
        request = self.request(
            worker,
            limit,
            tasks=tasks,
            caps=caps,
            quarantine=quarantine,
            cell=cell,
            weights=weights,
        )
        return self.store.lease(request).result()

    def take(self, worker: WorkerId, limit: int = 10) -> dict[str, LeasedJob]:
        """What one lease call hands out, by key, in its order."""
        return {job.key: job for job in self.lease(worker, limit).jobs}

    def take_one(self, worker: WorkerId, *, quarantine: bool = False) -> LeasedJob:
        (job,) = self.lease(worker, 1, quarantine=quarantine).jobs
        return job

    def take_all(self, worker: WorkerId, limit: int = 100) -> dict[str, LeasedJob]:
        """What lease calls hand out until they promise no more."""
        found: dict[str, LeasedJob] = {}
        for _ in range(CALLS_MAX):
            batch = self.lease(worker, limit)
            found.update((job.key, job) for job in batch.jobs)
            if not batch.jobs and not batch.more:
                return found
        raise AssertionError(f"{CALLS_MAX} lease calls, and the store still promises more")

    def settle(self) -> None:
        """Let lease calls go on with what is left to do, without taking a job."""
        usher = self.new_worker(tasks=())
        self.take_all(usher)
        self.store.retire(usher).result()

    # Ends

    def end(
        self,
        job: LeasedJob,
        state: JobState = JobState.DONE,
        *,
        result: str | None = None,
        error: AttemptError | None = None,
        effects: Sequence[Effect] = (),
    ) -> JobEnd:
        now = self.clock.now_micros
        return JobEnd(
            job=job,
            state=state,
            started_at=now - 1,
            ended_at=now,
            result=result,
            error=error,
            effects=tuple(effects),
        )

    def ack(
        self,
        worker: WorkerId,
        job: LeasedJob,
        state: JobState = JobState.DONE,
        *,
        result: str | None = None,
        error: AttemptError | None = None,
        effects: Sequence[Effect] = (),
    ) -> Verdict:
        end = self.end(job, state, result=result, error=error, effects=effects)
        (verdict,) = self.store.ack(worker, [end]).result()
        return verdict

    def failure(
        self,
        job: LeasedJob,
        *,
        delay: float = 0.0,
        charge: bool = True,
        max_attempts: int = 3,
        give_up: bool = False,
        error: AttemptError = TROUBLE,
        max_crashes: int | None = None,
        detached: bool = False,
    ) -> JobFailure:
        """A failure as a worker tells it, which asks the retry policy whether it was the last."""
        now = self.clock.now_micros
        return JobFailure(
            ref=JobRef(job.id, job.token),
            key=job.key,
            task=job.task,
            error=error,
            started_at=now - 1,
            ended_at=now,
            delay_seconds=delay,
            charge=charge,
            ends=give_up
            or (charge and is_last(job.attempts, max_attempts))
            or (max_crashes is not None and is_last(job.crashes, max_crashes)),
            crashed=max_crashes is not None,
            detached=detached,
        )

    def fail(
        self,
        worker: WorkerId,
        job: LeasedJob,
        *,
        delay: float = 0.0,
        charge: bool = True,
        max_attempts: int = 3,
        give_up: bool = False,
    ) -> Verdict:
        failure = self.failure(
            job, delay=delay, charge=charge, max_attempts=max_attempts, give_up=give_up
        )
        (verdict,) = self.store.fail_and_retry(worker, [failure]).result()
        return verdict

    def run(self, worker: WorkerId, key: str, state: JobState = JobState.DONE) -> None:
        """Lease whatever is ready, end the job of this key, and give the rest back."""
        taken = self.take_all(worker)
        job = taken.pop(key)
        self.give_back(worker, taken.values())
        verdict = self.ack(worker, job, state, error=TROUBLE if state is JobState.ERROR else None)
        assert verdict is Verdict.ACCEPTED

    def give_back(self, worker: WorkerId, jobs: Iterable[LeasedJob]) -> int:
        return self.store.release(worker, [ref(job) for job in jobs]).result()

    def reap(
        self,
        worker: WorkerId,
        started: Sequence[LeasedJob] = (),
        *,
        cause: str = "killed by signal 9",
        max_crashes: int = 3,
    ) -> int:
        total = 0
        for _ in range(CALLS_MAX):
            refs = [ref(job) for job in started]
            progress = self.store.reap(worker, refs, cause, max_crashes).result()
            total += progress.count
            if not progress.more:
                return total
        raise AssertionError("a dead worker that is never reaped")

    def expire(self) -> None:
        """Let every worker's lease run out and be swept."""
        self.clock.advance(TTL_SECONDS)
        self.settle()

    # Operators

    def cancel(self, *keys: str) -> frozenset[str]:
        return self.store.cancel(keys).result()

    def retry_failed(self, task: str | None = None, max_attempts: int | None = None) -> int:
        """Retry to the end; how many jobs were put back, dependants included."""
        while (settled := self.store.settle().result()).more:
            continue
        before = settled.failed_total + settled.dependants_total
        settled = self.store.retry_failed(task, max_attempts).result()
        for _ in range(CALLS_MAX):
            if not settled.more:
                return settled.failed_total + settled.dependants_total - before
            settled = self.store.settle().result()
        raise AssertionError("a retry that never ends")

    def purge(self, before: int) -> int:
        total, mark = 0, FIRST_END
        for _ in range(CALLS_MAX):
            progress, mark = self.store.purge(before, mark).result()
            total += progress.count
            if not progress.more:
                return total
        raise AssertionError("a purge that never ends")

    # Readers

    def view(self, key: str) -> Job:
        job = self.store.job(key).result()
        assert job is not None, f"no job {key!r}"
        return job

    def state(self, key: str) -> JobState:
        return self.view(key).state

    def states(self, *keys: str) -> list[JobState]:
        return [self.state(key) for key in keys]

    def history(self, key: str) -> list[Attempt]:
        return self.store.attempts(key).result()

    def outcomes(self, key: str) -> list[str]:
        return [attempt.outcome for attempt in self.history(key)]

    def why(self, key: str) -> str:
        """The message of a job's last error."""
        error = self.view(key).last_error
        assert error is not None, f"job {key!r} has no error"
        return error.message

    def suspects(self) -> int:
        return self.store.stats().result().suspects


def ref(job: LeasedJob) -> JobRef:
    return JobRef(job.id, job.token)


def refusal(reply: Reply[T], kind: type[Exception]) -> Exception:
    """The error that a call must be refused with."""
    try:
        value = reply.result()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {value!r}")

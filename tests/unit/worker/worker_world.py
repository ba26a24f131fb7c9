# SPDX-License-Identifier: Apache-2.0
"""A worker in virtual time, with a store that can be made to fail and a beat that can be cut."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from penstock import Penstock
from penstock.app import wiring
from penstock.app.daemon import plan_of_now
from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.definitions.request import JobRequest, to_new_job
from penstock.errors import TRANSIENT
from penstock.events.sink import SchedulerEvents
from penstock.ids import SeededIds
from penstock.model.job import Attempt, Job, JobId, JobState, NewJob, WorkerId
from penstock.model.lease import JobEnd, JobFailure, JobRef, LeaseBatch, LeaseRequest, Verdict
from penstock.model.lease import WorkerInfo as Info
from penstock.planning.units import DaemonPlan
from penstock.stores.protocol import JobFilter, Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing import RecordingSink, VirtualClock, run_virtual
from penstock.worker.heartbeat import LOST_MONOTONIC, margin
from penstock.worker.parts import Totals
from penstock.worker.slot_table import SlotTable
from penstock.worker.thread_executor import InlineRunner, ThreadRunner
from penstock.worker.worker import Worker

T = TypeVar("T")

Runner = Callable[[asyncio.AbstractEventLoop], ThreadRunner]


class FlakyStore(InProcessStore):
    """Raises what a test has laid out for a call, then works."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.trouble: dict[str, deque[BaseException]] = {}
        self.asked_for: list[str] = []
        self.registered: list[Info] = []
        self.holds_leases = False  # leases are made, and their answers held back
        self._held: list[tuple[Reply[LeaseBatch], LeaseBatch]] = []

    def fails(self, call: str, error: BaseException, times: int = 1) -> None:
        self.trouble.setdefault(call, deque()).extend([error] * times)

    def heals(self) -> None:
        self.trouble.clear()

    def _error(self, call: str) -> BaseException | None:
        self.asked_for.append(call)
        waiting = self.trouble.get(call)
        return waiting.popleft() if waiting else None

    def register(self, worker: Info, ttl_seconds: float) -> Reply[None]:
        error = self._error("register")
        if error is not None:
            return Reply.failed(error)
        self.registered.append(worker)
        return super().register(worker, ttl_seconds)

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        error = self._error("lease")
        if error is not None:
            return Reply.failed(error)
        reply = super().lease(request)
        if not self.holds_leases:
            return reply
        held: Reply[LeaseBatch] = Reply()
        self._held.append((held, reply.result()))
        return held

    def answer_leases(self) -> None:
        """Give the answers that were held back."""
        self.holds_leases = False
        for held, batch in self._held:
            held.resolve(batch)
        self._held.clear()

    def ack(self, worker: WorkerId, ends: Sequence[JobEnd]) -> Reply[list[Verdict]]:
        error = self._error("ack")
        return Reply.failed(error) if error is not None else super().ack(worker, ends)

    def fail_and_retry(
        self, worker: WorkerId, failures: Sequence[JobFailure]
    ) -> Reply[list[Verdict]]:
        error = self._error("fail_and_retry")
        return (
            Reply.failed(error) if error is not None else super().fail_and_retry(worker, failures)
        )

    def publish(self, worker: WorkerId, document: str) -> Reply[None]:
        error = self._error("publish")
        return Reply.failed(error) if error is not None else super().publish(worker, document)

    def release(self, worker: WorkerId, refs: Sequence[JobRef]) -> Reply[int]:
        error = self._error("release")
        return Reply.failed(error) if error is not None else super().release(worker, refs)


class Beat:
    """Renews the leases of one worker on the loop; a test may cut it."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._ttl = settings.runtime.lease_ttl_seconds
        self._seconds = settings.runtime.beat_seconds
        self._worker: WorkerId | None = None
        self._until = float("inf")
        self.cut = False

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        self._worker = worker
        self._until = until_monotonic - margin(self._ttl)

    def believed_until(self) -> float:
        return self._until

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._seconds)
            if self._worker is None or self.cut:
                continue
            sent = self._clock.monotonic()
            worker = self._worker
            try:
                alive = worker in await self._store.beat([worker], self._ttl)
            except TRANSIENT:
                continue
            if worker == self._worker:
                self._until = sent + self._ttl - margin(self._ttl) if alive else LOST_MONOTONIC


class World:
    """One store, its clock, and the workers of a test."""

    def __init__(self, app: Penstock, settings: Mapping[str, Any]) -> None:
        self.app = app
        self.settings = Settings.model_validate(dict(settings))
        self.ids = SeededIds(0)
        self.clock = VirtualClock()
        self.store = FlakyStore(self.clock)
        self.sink = RecordingSink()
        self._tables: list[SlotTable] = []
        self._beating: list[asyncio.Task[None]] = []
        self.beats: list[Beat] = []

    def enqueue(
        self,
        task: str,
        key: str,
        *,
        after: Sequence[str] | None = None,
        delay: float | None = None,
        priority: int | None = None,
        group: str | None = None,
        **arguments: Any,
    ) -> None:
        request: JobRequest[Any] = self.app.tasks[task].job(**arguments)
        options = request.with_options(
            key=key, after=after, delay=delay, priority=priority, group=group
        )
        self.put(to_new_job(options))

    def put(self, *jobs: NewJob) -> None:
        self.store.enqueue(jobs).result()

    def worker(
        self,
        *,
        drain: bool = True,
        solo: bool = False,
        supervised: bool = False,
        app: Penstock | None = None,
        threads: Runner = InlineRunner,
        server: Store | None = None,
        schedules: bool = False,
        plan: DaemonPlan | None = None,
    ) -> Worker:
        """A worker of this store, or of one that stands before it."""
        table = SlotTable.create(wiring.slot_count(self.settings))
        store = server or self.store
        beat = Beat(store, self.clock, self.settings)
        self._tables.append(table)
        self.beats.append(beat)
        self._beating.append(asyncio.get_running_loop().create_task(beat.run()))
        of = app or self.app
        return wiring.build_worker(
            wiring.RunOptions(
                run_id=self.ids.new_id("run"),
                app=of.name,
                drain=drain,
                solo=solo,
                supervisor_pid=os.getpid() if supervised else 0,
            ),
            {**of.tasks, **of.schedules} if schedules else of.tasks,
            self.settings,
            store,
            beat,
            table,
            clock=self.clock,
            ids=self.ids,
            threads=threads,
            events=SchedulerEvents(self.clock, (self.sink,)),
            providers=of.providers,
            plan=plan_of_now(plan, of.schedules, self.clock),
        )

    def start(self, worker: Worker) -> asyncio.Task[Totals]:
        return asyncio.get_running_loop().create_task(worker.run())

    async def drain(self, **options: Any) -> Worker:
        worker = self.worker(**options)
        await worker.run()
        return worker

    @property
    def table(self) -> SlotTable:
        """The slot table of the first worker."""
        return self._tables[0]

    def job(self, key: str) -> Job:
        found = self.store.job(key).result()
        assert found is not None, key
        return found

    def attempts(self, key: str) -> list[Attempt]:
        return self.store.attempts(key).result()

    def outcomes(self, key: str) -> list[str]:
        return [attempt.outcome for attempt in self.attempts(key)]

    def states(self) -> dict[str, JobState]:
        jobs = self.store.jobs(JobFilter(), JobId(0), 100_000).result()
        return {job.key: job.state for job in jobs}

    def close(self) -> None:
        for beating in self._beating:
            beating.cancel()


def simulate(
    app: Penstock,
    main: Callable[[World], Awaitable[T]],
    *,
    seed: int | None = 0,
    sound: bool = True,
    **settings: Any,
) -> T:
    """Run a test in virtual time; at its end the store keeps all its invariants."""

    async def run() -> T:
        world = World(app, settings)
        try:
            value = await main(world)
        finally:
            world.close()
        if sound:
            assert world.store.check().result() == []
        return value

    return run_virtual(run(), seed)

# SPDX-License-Identifier: Apache-2.0
"""Runs attempts in slots, on the loop, in threads or processes, and enforces their deadlines."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from penstock import failpoints
from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.clock import MICROSECONDS
from penstock.definitions.provider import runs_elsewhere
from penstock.definitions.task import PROCESS
from penstock.errors import InternalError
from penstock.events import kinds
from penstock.events.kinds import Correlation
from penstock.model.dataset import task_name
from penstock.model.job import LeasedJob
from penstock.model.lease import JobFailure, JobRef
from penstock.model.strict_json import NotPlain
from penstock.redaction.content_guard import LOG_ATTRIBUTE
from penstock.requests import attempt_context
from penstock.requests.attempt_context import AttemptContext
from penstock.worker.attempt import (
    NEVER,
    Attempt,
    AttemptEnd,
    Stop,
    failed,
    give_up_error,
    judge,
    tell,
    time_limit_error,
)
from penstock.worker.kind import Kind, ServedTask
from penstock.worker.parts import WorkerParts
from penstock.worker.process_executor import RemoteValue, not_started
from penstock.worker.scheduler import AsyncTaskScheduler
from penstock.worker.slot_lending import SlotLending
from penstock.worker.task_protocol import RunJob

DETACH_SECONDS = 5.0  # an attempt that does not end this long after it was told to is detached

START_SECONDS = 60.0  # for a process that has to import the app first
ROW_GROUP_SLOTS = 64  # row groups of tables at once; they wait for their cells, and hold no slot
LENT_PLACES = 2  # in the table, for each slot that may be lent: for who lends and who borrows

log = logging.getLogger("penstock.worker")


class RequestContexts(Protocol):
    """Whoever admits the requests of attempts, and wants to know which there are."""

    def began(self, attempt: Attempt, deadline: float | None) -> AttemptContext: ...

    def waits_longer(self, attempt: Attempt, seconds: float) -> bool: ...

    def gives_up(self, attempt: Attempt) -> bool: ...

    def ended(self, attempt: Attempt) -> None: ...


class JobExecutor:
    """Owns the running attempts of one worker. Belongs to one loop."""

    def __init__(
        self,
        tasks: Mapping[str, ServedTask],
        counts: Mapping[str, int],
        slots_in_all: int,
        parts: WorkerParts,
        scheduler: AsyncTaskScheduler,
        ended: Callable[[Attempt, AttemptEnd], None],
        lending: SlotLending | None = None,
    ) -> None:
        """No attempt runs.

        Args:
            tasks: that may run here.
            counts: slots by kind.
            slots_in_all: how many attempts may run at once, of whatever kinds.
            parts: of the worker.
            scheduler: hears when the resources of an attempt are free.
            ended: hears of each end; None instead of one: it is not the store's business any more.
            lending: counts slots that are lent; None: nobody waits for providers.
        """
        self._tasks = tasks
        self._counts = counts
        self._slots_in_all = slots_in_all
        self._request_contexts: RequestContexts | None = parts.providers
        self._lending = lending
        places = 1 if lending is None else LENT_PLACES
        self._slot_kinds = [one for one, count in counts.items() for _ in range(places * count)]
        self._free: dict[str, list[int]] = {one: [] for one in counts}  # places in the table
        for slot, slot_kind in enumerate(self._slot_kinds):
            self._free[slot_kind].append(slot)
        self._table = parts.table
        self._threads = parts.threads
        self._processes = parts.processes
        self._clock = parts.clock
        self._rand = parts.ids.random
        self._scheduler = scheduler
        self._observers = parts.observers
        self._ended = ended
        self._pid = os.getpid()
        self._create_task = asyncio.get_running_loop().create_task
        # By job and token: a lost lease may still run beside its successor.
        self.running: dict[tuple[int, int], Attempt] = {}
        self.occupied = 0  # detached bodies included
        #: Bodies that still run though their attempts have ended: since when.
        self.detached: dict[Attempt, float] = {}

    def count(self, slot_kind: str) -> int:
        """How many slots of this kind there are."""
        return self._counts.get(slot_kind, 0)

    def free(self) -> dict[str, int]:
        """Free slots by kind."""
        lending, room = self._lending, self._slots_in_all - self.occupied
        if lending is None:
            return {one: max(0, min(len(places), room)) for one, places in self._free.items()}
        # Whoever has lent a slot holds a place in the table, and no slot.
        room += lending.lent_in_all
        own = {
            one: len(places) - (LENT_PLACES - 1) * self._counts[one] + lending.lent(one)
            for one, places in self._free.items()
        }
        return {one: max(0, min(free, room)) for one, free in own.items()}

    def start(self, job: LeasedJob, lease: TaskAdmissionLease, correlation: Correlation) -> None:
        """Run a job in a free slot, which its lease stands for.

        If it raises, nothing was started and the lease is the caller's.
        """
        task, limits, kind = self._tasks[job.task]
        if not self._free[task.slot_kind]:
            raise InternalError(
                f"Job {job.key!r} was admitted without a free {task.slot_kind} slot."
            )
        started_at = round(self._clock.now() * MICROSECONDS)
        context = kind.context(job, started_at)
        slot = self._free[task.slot_kind].pop()
        attempt = Attempt(job, task, limits, slot, lease, started_at, correlation, context)
        deadline = 0.0
        remote = task.slot_kind == PROCESS and self._processes is not None
        if limits.timeout_seconds is not None:
            deadline = self._clock.monotonic() + limits.timeout_seconds
            if remote:
                deadline += START_SECONDS
            attempt.deadline_monotonic = deadline
        if self._request_contexts is not None:
            if not kind.recurs and self._request_contexts.gives_up(attempt):
                attempt.stop = Stop.GAVE_UP
            attempt.request_context = self._request_contexts.began(attempt, deadline or None)
        left = limits.max_attempts - job.attempts
        self._table.occupy(slot, job.id, job.token, deadline, left)
        self.running[attempt.ref] = attempt
        self.occupied += 1
        try:
            first = None if attempt.stop is Stop.GAVE_UP else kind.before(attempt)
            if attempt.stop is Stop.GAVE_UP:
                attempt.aio_task = self._create_task(self._end_unrun(attempt))
            elif first is not None:
                attempt.aio_task = self._create_task(self._run_after(first, attempt))
            elif remote:
                self._run_process(attempt)
            elif task.is_async:
                attempt.aio_task = self._create_task(self._run_coroutine(attempt))
            else:
                self._run_thread(attempt)
        except BaseException:
            del self.running[attempt.ref]
            self._free_slot(slot)
            if self._request_contexts is not None:
                self._request_contexts.ended(attempt)
            raise
        self._observers.started(attempt)

    async def _end_unrun(self, attempt: Attempt) -> None:
        """There is nothing to wait for any more: its body does not run."""
        self._finish(attempt, None, asyncio.CancelledError())

    async def _run_after(self, first: Coroutine[Any, Any, None], attempt: Attempt) -> None:
        """Await what must come before the body, then run that as usual."""
        error: BaseException | None = None
        try:
            _enter(attempt)
            await first
            attempt.context = self._kind(attempt).context(attempt.job, attempt.started_at)
        except BaseException as raised:
            error = raised
        if error is not None:
            self._end_body(attempt, None, error)
            return
        remote = attempt.task.slot_kind == PROCESS and self._processes is not None
        if attempt.task.is_async and not remote:
            await self._run_coroutine(attempt)
            return
        attempt.aio_task = None
        try:
            if remote:
                self._run_process(attempt)
            else:
                self._run_thread(attempt)
        except RuntimeError as problem:  # no thread is left
            self._finish(attempt, None, not_started(problem))

    def _kind(self, attempt: Attempt) -> Kind:
        return self._tasks[attempt.job.task].kind

    def _run_process(self, attempt: Attempt) -> None:
        if self._processes is None:
            raise InternalError("This run has no pool of processes.")
        context = attempt.context
        order = self._kind(attempt).remote_order(context)
        attempt.kill = self._processes.submit(
            RunJob(context.job, attempt.job.payload, context._preflight, order),
            lambda: self._began(attempt),
            lambda value, error: self._finish_remote(attempt, value, error),
        )

    def _began(self, attempt: Attempt) -> None:
        """A body's process is there: its time counts from now on, not from the wish for it."""
        seconds = attempt.limits.timeout_seconds
        if seconds is not None and attempt.stop is None:
            attempt.deadline_monotonic = self._clock.monotonic() + seconds
            self._table.set_deadline(attempt.slot, attempt.deadline_monotonic)

    async def _run_coroutine(self, attempt: Attempt) -> None:
        value, error = None, None
        try:
            _enter(attempt)
            args, kwargs = attempt.task.codec.call_arguments(attempt.job.payload)
            failpoints.hit("exec.before")
            value = await attempt.task.function(attempt.context, *args, **kwargs)
            failpoints.hit("exec.after")
        except BaseException as raised:
            error = raised
        self._end_body(attempt, value, error)

    def _end_body(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (whatever the body returned)
        error: BaseException | None,
    ) -> None:
        """A body has ended on the loop: what it left is told here if no code of users takes part.

        Else in a thread. From then on the attempt is one that cannot be stopped: if its time limit
        comes first, it is detached.
        """
        try:
            told = self._tell(attempt, value, error, at_once=True)
        except NotPlain:
            attempt.aio_task = None
            self._submit(
                attempt, partial(contextvars.copy_context().run, self._tell, attempt, value, error)
            )
        else:
            self._finish(attempt, *told)

    def _run_thread(self, attempt: Attempt) -> None:
        context = contextvars.copy_context()
        context.run(_enter, attempt)
        self._submit(attempt, partial(context.run, self._body, attempt))

    def _body(self, attempt: Attempt) -> tuple[Any, BaseException | None]:
        """Run a body in a thread, and tell what it left."""
        value, error = None, None
        try:
            args, kwargs = attempt.task.codec.call_arguments(attempt.job.payload)
            failpoints.hit("exec.before")
            value = attempt.task.function(attempt.context, *args, **kwargs)
            failpoints.hit("exec.after")
        except BaseException as raised:
            error = raised
        return self._tell(attempt, value, error)

    def _submit(
        self, attempt: Attempt, work: Callable[[], tuple[Any, BaseException | None]]
    ) -> None:
        """Let a thread do the rest of an attempt; it returns what was told of its end."""
        self._threads.submit(
            work, lambda told, error: self._finish(attempt, *(told or (None, error)))
        )

    def _tell(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (whatever the body returned)
        error: BaseException | None,
        *,
        at_once: bool = False,
    ) -> tuple[Any, BaseException | None]:
        """What a body left, in plain values; part of the attempt. NotPlain as `tell` says."""
        if os.getpid() != self._pid:
            os._exit(0)  # a forked child came back from a body: it is not this worker
        if error is not None and log.isEnabledFor(logging.DEBUG):
            if at_once:
                raise NotPlain("$", "a traceback, with whatever the error says of itself")
            _log_error(attempt, error)
        kind, now = self._kind(attempt), self._clock.now()
        return tell(attempt, kind, value, error, now, attempt.limits.policy, at_once=at_once)

    def _finish_remote(
        self, attempt: Attempt, value: RemoteValue | None, error: BaseException | None
    ) -> None:
        """The body of another process has ended; what it left was told there."""
        if error is not None and log.isEnabledFor(logging.DEBUG):
            _log_error(attempt, error)
        if value is not None:
            attempt.context._enqueued = list(value.enqueued) or None
        self._finish(attempt, None if value is None else value.encoded, error)

    def _finish(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (what the body left, as it was told)
        error: BaseException | None,
    ) -> None:
        """The body has ended, in whatever way."""
        self._vacate(attempt)
        if attempt.ended:  # detached before; somebody else may have the job by now
            self.detached.pop(attempt, None)
            if attempt.is_detached:
                self._ended(attempt, JobRef(attempt.job.id, attempt.job.token))
            return
        now_at = round(self._clock.now() * MICROSECONDS)
        kind, end = self._tasks[attempt.job.task].kind, None
        policy = attempt.limits.policy
        try:
            end = judge(attempt, kind, value, error, now_at, policy, self._rand)
        except BaseException as problem:
            said = RuntimeError(f"its end cannot be judged: {type(problem).__name__}")
            end = failed(attempt, kind, said, now_at, policy, self._rand)
        self._end(attempt, end)

    def _end(self, attempt: Attempt, end: AttemptEnd) -> None:
        attempt.ended = True
        del self.running[attempt.ref]
        self._ended(attempt, end)

    def _vacate(self, attempt: Attempt) -> None:
        self._free_slot(attempt.slot)
        if self._request_contexts is not None:
            self._request_contexts.ended(attempt)
        self._scheduler.release(attempt.lease, attempt.correlation)

    def _free_slot(self, slot: int) -> None:
        self._table.vacate(slot)
        self._free[self._slot_kinds[slot]].append(slot)
        self.occupied -= 1

    def name_of(self, aio_task: asyncio.Task[object] | None) -> str:
        """The job that an asyncio task runs, in words."""
        for attempt in list(self.running.values()):
            if aio_task is not None and attempt.aio_task is aio_task:
                return f"job {attempt.job.key!r} of task {task_name(attempt.job.task)!r}"
        return "a task that was started by other code"

    def next_deadline(self) -> float:
        """When the first of those that run is over its time; infinite if none ever is."""
        return min(
            (x.deadline_monotonic for x in self.running.values() if not x.waits_for_permit),
            default=NEVER,
        )

    def enforce_deadlines(self) -> None:
        """Stop what is over its time; detach what was told and would not."""
        self._end_unbegun()
        now = self._clock.monotonic()
        if self._request_contexts is not None:
            self._add_waits(now)
            self._give_up(self._request_contexts, now)
        late = [x for x in self.running.values() if x.deadline_monotonic <= now]
        for attempt in late:
            if attempt.stop is not None:
                self._detach(attempt)  # it was told, and had its time
                continue
            attempt.ask_to_stop(Stop.TIMEOUT)
            if attempt.can_be_stopped:
                attempt.deadline_monotonic = now + DETACH_SECONDS
            else:
                self._detach(attempt)

    def _give_up(self, contexts: RequestContexts, now: float) -> None:
        """Stop what has waited for its provider for as long as it may."""
        for attempt in list(self.running.values()):
            may_end = attempt.stop is None and not self._kind(attempt).recurs
            if may_end and contexts.gives_up(attempt):
                attempt.ask_to_stop(Stop.GAVE_UP)
                attempt.deadline_monotonic = now + DETACH_SECONDS

    def _add_waits(self, now: float) -> None:
        """The time limit of an attempt stands still while it waits for a permit."""
        for attempt in self.running.values():
            own = attempt.request_context
            if own is None or attempt.stop is not None or own.deadline == NEVER:
                continue
            deadline = own.deadline + own.waited_seconds(now)
            if deadline > attempt.deadline_monotonic:
                attempt.deadline_monotonic = deadline
                self._table.set_deadline(attempt.slot, deadline)

    def _end_unbegun(self) -> None:
        """A coroutine that is cancelled before its first step never runs, nor tells its end."""
        for attempt in [*self.running.values(), *self.detached]:
            if attempt.aio_task is not None and attempt.aio_task.done():
                self._finish(attempt, None, asyncio.CancelledError())

    def cancel(self, ref: JobRef) -> bool:
        """The job of a running attempt was cancelled: stop its body; False if it does not run."""
        attempt = self.running.get(ref)
        if attempt is not None and attempt.stop is None:
            log.info(
                "Job %r of task %r was cancelled.", attempt.job.key, task_name(attempt.job.task)
            )
            attempt.ask_to_stop(Stop.CANCELLED)
            attempt.deadline_monotonic = self._clock.monotonic() + DETACH_SECONDS
        return attempt is not None

    def _detach(self, attempt: Attempt) -> None:
        late = attempt.stop in (Stop.TIMEOUT, Stop.GAVE_UP)
        log.error(
            "Job %r of task %r %s and does not stop; it is detached and keeps its slot until it "
            "ends.",
            attempt.job.key,
            attempt.job.task,
            "runs past its time limit" if attempt.stop is Stop.TIMEOUT else "was told to stop",
        )
        end: JobFailure | None = None
        if late:
            now_at = round(self._clock.now() * MICROSECONDS)
            kind, policy = self._kind(attempt), attempt.limits.policy
            why = give_up_error(attempt, policy)
            limit = time_limit_error(attempt) if attempt.stop is Stop.TIMEOUT else why
            end = failed(attempt, kind, limit, now_at, policy, self._rand)
            end.detached = True
        attempt.is_detached = late or attempt.stop is Stop.CANCELLED
        self.detached[attempt] = self._clock.monotonic()
        self._table.set_deadline(attempt.slot, 0.0)  # nobody else need enforce it
        self._end(attempt, end)

    def forbidding(self, *, is_replaced: bool) -> Attempt | None:
        """A detached body beside which nothing may begin under a new name; None: there is none.

        Whose leases are over is counted nowhere. A worker that is replaced waits for all bodies;
        one that nobody replaces for those that hold limits.
        """
        return next((x for x in self.detached if is_replaced or x.job.limited), None)

    def stop_hopeless(self, seconds: float) -> None:
        """Ask to stop what has sent nothing yet, or cannot end in so many seconds."""
        for attempt in list(self.running.values()):
            if (
                seconds <= 0
                or attempt.waits_to_begin
                or (
                    self._request_contexts is not None
                    and self._request_contexts.waits_longer(attempt, seconds)
                )
            ):
                attempt.ask_to_stop(Stop.SHUTDOWN)

    def stop_all(self, why: Stop) -> None:
        """Ask every running attempt to stop."""
        for attempt in list(self.running.values()):
            attempt.ask_to_stop(why)

    def detach_all(self) -> list[Attempt]:
        """Detach whatever still runs; its ends will not be heard."""
        left = list(self.running.values())
        now = self._clock.monotonic()
        for attempt in left:
            self.detached[attempt] = now
            self._end(attempt, None)
        return left


def _log_error(attempt: Attempt, error: BaseException) -> None:
    log.debug(
        "Job %r of task %r raised:",
        attempt.job.key,
        attempt.job.task,
        exc_info=error,
        extra={LOG_ATTRIBUTE: attempt.unquoted},
    )


def _enter(attempt: Attempt) -> None:
    """What a body, and whatever it starts, can know of itself."""
    kinds.current.set(attempt.correlation)
    attempt_context.current.set(attempt.request_context)
    if attempt.task.slot_kind == PROCESS:  # a test runs it here
        runs_elsewhere.set(True)

# SPDX-License-Identifier: Apache-2.0
"""Runs a graph of tasks in memory to its end, beside whatever else a scheduler serves.

What follows an error is the caller's to judge: `RetryJudge` does it by the retry policy. A task
that is tried again comes back through the tracker, after its wait, while others go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any

import msgspec

from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    Until,
)
from penstock.errors import (
    AccountClosed,
    AttemptOver,
    BudgetUsedUp,
    CallInDoubt,
    ProviderNotAvailableHere,
    TooManyFailures,
    UsageError,
)
from penstock.events.kinds import Correlation
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.events.kinds import current as current_correlation
from penstock.model.task import SchedulableTask
from penstock.planning.completion import CompletionSnapshot, CompletionTracker
from penstock.retry.policy import RetryPolicy
from penstock.sentences import counted
from penstock.timers import REARM_SECONDS_MIN, Timer
from penstock.worker.scheduler import AsyncTaskScheduler, Attachment

#: Called when a task starts, it returns the work of it, which runs in the context of `run`.
Execute = Callable[[SchedulableTask], Coroutine[Any, Any, None]]


class Tries(msgspec.Struct, frozen=True, gc=False):
    """The earlier ends of a task that has failed."""

    charged: int = 0
    deferred: int = 0  # not charged, since the last one that was
    since_seconds: float | None = None  # how long ago the first of these was; None: there is none


class Again(msgspec.Struct, frozen=True, gc=False):
    """It is tried again."""

    after_seconds: float = 0.0
    charged: bool = True


class Failed(msgspec.Struct, frozen=True, gc=False):
    """It has failed for good, and with it what needs it."""

    drops: Collection[Hashable] = ()  # nodes that are not wanted any more, such as the row's


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """It has failed for good, and what needs it runs all the same."""


class Ends(msgspec.Struct, frozen=True, gc=False):
    """The whole run ends: nothing more starts, and `run` raises this."""

    error: Exception


Verdict = Again | Failed | Accepted | Ends
Judge = Callable[[SchedulableTask, Exception, Tries], Verdict]

#: These would be met by every task that follows.
_ENDS_ALL = (AccountClosed, AttemptOver, BudgetUsedUp, CallInDoubt, ProviderNotAvailableHere)
#: Errors of code: another try would meet them again.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
)


class RetryJudge:
    """Judges errors by the retry policy: refusals and failing services cost a task nothing."""

    def __init__(
        self,
        policy: RetryPolicy,
        attempts_max: int,
        now: Callable[[], float],
        rand: Callable[[], float],
    ) -> None:
        """Keeps nothing between calls.

        Args:
            policy: of the table or task.
            attempts_max: how many failures are charged before one is for good.
            now: seconds since 1970 UTC.
            rand: a number in [0, 1), for the jitter.
        """
        self._policy = policy
        self._attempts_max = attempts_max
        self._now = now
        self._rand = rand

    def __call__(self, task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
        if isinstance(error, _ENDS_ALL):
            return Ends(error)
        decision = self._policy.decide(
            error,
            attempts=tries.charged,
            max_attempts=self._attempts_max,
            deferred_since_seconds_ago=tries.since_seconds,
            now=self._now(),
            rand=self._rand(),
            deferrals=tries.deferred,
        )
        if decision.ends or (decision.charge and isinstance(error, _MISTAKES)):
            return Failed()
        return Again(decision.delay_seconds, decision.charge)


WINDOW = 50  # ends of tasks of one part, by default
SHARE = 0.5  # of these


def _kind_of(error: BaseException) -> str:
    return type(error).__name__


class EarlyStop:
    """Says when too many of the last tasks of one part failed for good. Several runs may share it.

    It needs volume: a part of which fewer have ended than fill its window stops nothing.
    """

    def __init__(
        self,
        window: int = WINDOW,
        share: float = SHARE,
        describe: Callable[[BaseException], str] = _kind_of,
    ) -> None:
        """Nothing has ended.

        Args:
            window: of how many ends of a part.
            share: of them that may fail.
            describe: what is said of the first cause; an error's own words may quote an answer.
        """
        if window < 1 or not 0 <= share < 1:
            raise UsageError(
                "Early stop needs a window of at least 1 and a share from 0 to below 1, got "
                f"{window!r} and {share!r}."
            )
        self._window = window
        self._share = share
        self._describe = describe
        self._ends: dict[str, deque[bool]] = {}  # by part: whether it failed for good
        self._failed: dict[str, int] = {}  # of these
        self._first: dict[str, BaseException] = {}  # the cause of the first failure of a part

    def ended(self, part: str, error: BaseException | None) -> TooManyFailures | None:
        """A task has ended for good; the error with which the run is to end, or None."""
        ends = self._ends.get(part)
        if ends is None:
            ends = self._ends[part] = deque(maxlen=self._window)
            self._failed[part] = 0
        if len(ends) == self._window:
            self._failed[part] -= ends[0]
        ends.append(error is not None)
        if error is None:
            return None
        self._first.setdefault(part, error)
        self._failed[part] += 1
        failed = self._failed[part]
        if len(ends) < self._window or failed <= self._share * self._window:
            return None
        return self._stopped(part, failed)

    def _stopped(self, part: str, failed: int) -> TooManyFailures:
        first = self._first[part]
        stopped = TooManyFailures(
            f"{failed} of the last {self._window} cells of column {part!r} failed for good, which "
            f"is more than {self._share:.0%} of them, so nothing more is started; the first cause "
            f"was {self._describe(first)}."
        )
        stopped.__cause__ = first
        return stopped


class _Trial:
    """What a task that failed has behind it."""

    __slots__ = ("charged", "deferred", "since_monotonic", "starts")

    def __init__(self) -> None:
        self.starts = 0
        self.charged = 0
        self.deferred = 0
        self.since_monotonic: float | None = None


class GraphRun:
    """Owns the running tasks of one graph. Belongs to one loop."""

    def __init__(
        self,
        tracker: CompletionTracker,
        execute: Execute,
        judge: Judge,
        scheduler: AsyncTaskScheduler,
        run_id: str,
        *,
        early_stop: EarlyStop | None = None,
        lends: Mapping[str, int] | None = None,
    ) -> None:
        """Nothing runs.

        Args:
            tracker: of the graph.
            execute: starts the work of a task.
            judge: says what follows an error.
            scheduler: somebody takes its turns.
            run_id: what its events are about.
            early_stop: ends the run when too many tasks fail; None: nothing but a verdict does.
            lends: see `AsyncTaskScheduler.attach`.
        """
        self._tracker = tracker
        self._execute = execute
        self._judge = judge
        self.scheduler = scheduler
        self._run_id = run_id
        self._early_stop = early_stop
        self._lends = lends or {}
        self._events = scheduler.events
        self._context: Context = copy_context()
        self._trials: dict[Hashable, _Trial] = {}  # of tasks that failed and may succeed
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._unwanted: set[Hashable] = set()  # they run, and were dropped
        self._deferred: set[Hashable] = set()  # they are tried again later
        self._later: list[tuple[float, int, SchedulableTask, Correlation]] = []  # when: a heap
        self._deferrals = 0
        self._timer = Timer(self._ring, scheduler.monotonic)
        self._wake = asyncio.Event()
        self._attachment: Attachment | None = None
        self._error: Exception | None = None  # with which it ends
        self._is_stopping = False

    def __repr__(self) -> str:
        return f"<GraphRun of {self._tracker!r}, {len(self._running)} running>"

    async def run(self, turn: Callable[[], object] | None = None) -> CompletionSnapshot:
        """Run everything that can run, or until `stop`.

        However it ends, nothing of it runs any more: a cancellation is passed on to the bodies,
        and waits for them.

        Args:
            turn: takes a turn of the scheduler; None: somebody else does, whenever it is woken.

        Raises:
            Exception: that of a verdict that ends the run, or TooManyFailures.
        """
        self._context = copy_context()
        if not self._is_stopping:
            self._attachment = self.scheduler.attach(self._tracker, self, self._lends)
        try:
            while not self._is_over():
                self._wake.clear()
                if turn is not None:
                    turn()
                if not self._is_over():
                    await self._wake.wait()
        finally:
            await self._end_all()
        if self._error is not None:
            raise self._error
        if self._tracker.is_finished:
            self._events.emit(Kind.QUEUE_DRAINED, Correlation(self._run_id))
        return self._tracker.snapshot()

    def wake(self) -> None:
        """Let `run` take its turn, if it takes them."""
        self._wake.set()

    def end(self, error: Exception) -> None:
        """Start nothing more; `run` raises this when what runs has ended."""
        self._fail(error)

    def stop(self) -> None:
        """Start nothing more; `run` returns when what runs has ended."""
        self._is_stopping = True
        self._deferred.clear()
        self._later.clear()
        self._timer.cancel()
        if self._attachment is not None:
            self.scheduler.detach(self._attachment)
        self._wake.set()

    def add(self, nodes: Mapping[Any, Collection[Hashable]]) -> None:
        """Let more nodes join the graph while it runs."""
        self._tracker.add(nodes)
        self.scheduler.wake()

    def drop(self, ids: Iterable[Hashable]) -> None:
        """Let nodes go that are not wanted, and what needs them; what runs is cancelled."""
        self._withdraw(self._tracker.drop(ids))

    # ── What the scheduler asks for ───────────────────────────────────────────────────────────

    def correlation(self, task: SchedulableTask) -> Correlation:
        trial = self._trials.get(task.task_id)
        starts = 1 if trial is None else trial.starts + 1
        return Correlation(self._run_id, str(task.task_id), None, task.group.key, None, starts)

    def start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None:
        context = self._context.copy()
        context.run(current_correlation.set, correlation)
        body = context.run(self._execute, task)
        try:
            aio_task = asyncio.get_running_loop().create_task(body, context=context)
        except BaseException:
            body.close()
            raise
        self._running[task.task_id] = aio_task

        def ended(ended_task: asyncio.Task[None]) -> None:
            # The one place where a lease comes back, however the body ended, also before it began.
            del self._running[task.task_id]
            self.scheduler.release(lease, correlation)
            self._ended(task, correlation, ended_task)
            if self._is_over():
                self._wake.set()

        aio_task.add_done_callback(ended)
        self._events.emit(Kind.WORKER_SPAWNED, correlation)

    def not_started(self, task: SchedulableTask, error: Exception) -> None:
        self._failed(task, self.correlation(task), error)

    def blocked(self) -> None:
        """Nothing of it runs, and nothing of it that is queued could ever start: say why."""
        if self._running or self._deferred or self._attachment is None:
            return
        if not any(_is_too_large(line.denied) for line in self.scheduler.queue.view().blocked()):
            return  # to look at every task would cost too much
        queued = self.scheduler.queued(self._attachment)
        denials = [self.scheduler.standing(one.task_id) for one in queued]
        never = [denied for denied in denials if denied is not None and _is_too_large(denied)]
        if never and len(never) == len(denials):
            what = "; ".join(
                f"{resource}: " + ", ".join(f"{key} {value:g}" for key, value in numbers.items())
                for resource, numbers in {one.resource: one.numbers for one in never}.items()
            )
            self._fail(
                UsageError(
                    f"{counted(len(never), 'task')} can never start ({what}). Raise the limits, or "
                    "let the tasks ask for less."
                )
            )

    # ── Ends ──────────────────────────────────────────────────────────────────────────────────

    def _ended(
        self, task: SchedulableTask, correlation: Correlation, aio_task: asyncio.Task[None]
    ) -> None:
        if aio_task.cancelled():
            self._events.emit(Kind.CANCELLED, correlation)
            self._settle(task, correlation, asyncio.CancelledError(), Failed())
        elif (error := aio_task.exception()) is not None:
            self._events.emit(Kind.TASK_COMPLETED, correlation, type(error).__name__)
            self._failed(task, correlation, error)
        else:
            self._events.emit(Kind.TASK_COMPLETED, correlation, "done")
            if self._is_wanted(task):
                self._complete(task, None)

    def _failed(
        self, task: SchedulableTask, correlation: Correlation, error: BaseException
    ) -> None:
        """Let its error be judged."""
        verdict: Verdict = Failed()
        if isinstance(error, Exception) and task.task_id not in self._unwanted:
            try:
                verdict = self._judge(task, error, self._tries(task))
            except Exception as problem:
                verdict = Ends(problem)
        self._settle(task, correlation, error, verdict)

    def _settle(
        self,
        task: SchedulableTask,
        correlation: Correlation,
        error: BaseException,
        verdict: Verdict,
    ) -> None:
        """Do what a verdict says."""
        if not self._is_wanted(task):
            return
        if isinstance(verdict, Again):
            self._put_off(task, correlation, verdict)
        elif isinstance(verdict, Accepted):
            self._complete(task, error)
        elif isinstance(verdict, Ends):
            self._trials.pop(task.task_id, None)
            self._tracker.mark_failed(task)
            self._fail(verdict.error)
        else:
            self._trials.pop(task.task_id, None)
            dropped = self._tracker.mark_failed(task) + self._tracker.drop(verdict.drops)
            numbers = {"dropped": float(len(dropped))}
            why = type(error).__name__
            self._events.emit(Kind.NON_RETRYABLE_DROPPED, correlation, why, numbers)
            self._withdraw(dropped)
            self._look_for_early_stop(task, error)

    def _complete(self, task: SchedulableTask, error: BaseException | None) -> None:
        if self._trials:
            self._trials.pop(task.task_id, None)
        self._tracker.mark_complete(task)
        self._look_for_early_stop(task, error)

    def _is_wanted(self, task: SchedulableTask) -> bool:
        """Whether its end counts; it was not dropped while it ran."""
        if task.task_id not in self._unwanted:
            return True
        self._unwanted.discard(task.task_id)
        self._trials.pop(task.task_id, None)
        return False

    def _withdraw(self, dropped: Iterable[Hashable]) -> None:
        """End what was dropped and is queued or runs."""
        for node in dropped:
            aio_task = self._running.get(node)
            if aio_task is not None:
                self._unwanted.add(node)
                aio_task.cancel()
            else:
                self.scheduler.discard(node)
                self._deferred.discard(node)
            self._trials.pop(node, None)
        if self._is_over():
            self._wake.set()

    def _look_for_early_stop(self, task: SchedulableTask, error: BaseException | None) -> None:
        if self._early_stop is not None:
            stopped = self._early_stop.ended(task.part, error)
            if stopped is not None:
                self._fail(stopped)

    def _fail(self, error: Exception) -> None:
        """End the run with this, once what runs has ended."""
        if self._error is None:
            self._error = error
        self.stop()

    # ── Tries ─────────────────────────────────────────────────────────────────────────────────

    def _tries(self, task: SchedulableTask) -> Tries:
        trial = self._trials.get(task.task_id)
        if trial is None:
            return Tries()
        since = trial.since_monotonic
        ago = None if since is None else self.scheduler.monotonic() - since
        return Tries(trial.charged, trial.deferred, ago)

    def _put_off(self, task: SchedulableTask, correlation: Correlation, again: Again) -> None:
        """Let the tracker show it again, when its time has come."""
        now = self.scheduler.monotonic()
        trial = self._trials.setdefault(task.task_id, _Trial())
        trial.starts += 1
        if again.charged:
            trial.charged, trial.deferred, trial.since_monotonic = trial.charged + 1, 0, None
        else:
            trial.deferred += 1
            if trial.since_monotonic is None:
                trial.since_monotonic = now
        if self._is_stopping:
            return  # it stays open
        if again.after_seconds <= 0:
            self._redispatch(task, correlation)
            return
        numbers = {"after_seconds": again.after_seconds}
        self._events.emit(Kind.RETRY_DEFERRED, correlation, numbers=numbers)
        self._deferrals += 1
        due = now + again.after_seconds
        self._deferred.add(task.task_id)
        heappush(self._later, (due, self._deferrals, task, correlation))
        self._timer.set(due)

    def _ring(self) -> None:
        """Bring back what is due."""
        now = self.scheduler.monotonic()
        while self._later and self._later[0][0] <= now:
            _, _, task, correlation = heappop(self._later)
            if task.task_id in self._deferred:
                self._deferred.discard(task.task_id)
                self._redispatch(task, correlation)
        if self._later:
            self._timer.set(max(self._later[0][0], now + REARM_SECONDS_MIN))

    def _redispatch(self, task: SchedulableTask, correlation: Correlation) -> None:
        self._tracker.mark_retry(task)
        self._events.emit(Kind.SALVAGE_REDISPATCHED, correlation)
        self.scheduler.wake()

    # ── The end ───────────────────────────────────────────────────────────────────────────────

    def _is_over(self) -> bool:
        return not self._running and (self._is_stopping or self._tracker.is_finished)

    async def _end_all(self) -> None:
        """Start nothing more, and end what runs; its leases come back as it ends."""
        self.stop()
        cancelled: asyncio.CancelledError | None = None
        self._cancel_bodies()
        while self._running:
            self._wake.clear()
            try:
                await self._wake.wait()
            except asyncio.CancelledError as again:
                cancelled = again
                self._cancel_bodies()
        if cancelled is not None:
            raise cancelled

    def _cancel_bodies(self) -> None:
        for aio_task in [*self._running.values()]:
            aio_task.cancel()


def _is_too_large(denied: TaskAdmissionDenied) -> bool:
    """Whether a task asks for more than there is in all."""
    return denied.until is Until.NEVER and denied.reason is DenialReason.NO_CAPACITY

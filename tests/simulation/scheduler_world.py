# SPDX-License-Identifier: Apache-2.0
"""A graph of tasks in virtual time, what its events add up to, and cancellations at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.policies import TaskAdmissionPolicy
from penstock.clock import Clock
from penstock.events.kinds import Correlation, SchedulerEvent
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.events.sink import SchedulerEvents
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from penstock.planning.completion import CompletionSnapshot, CompletionTracker
from penstock.testing import RecordingSink, VirtualClock
from penstock.worker.bottleneck import Cause
from penstock.worker.graph_run import Again, Failed, GraphRun, Tries, Verdict
from penstock.worker.scheduler import AsyncTaskScheduler

Body = Callable[[SchedulableTask], Coroutine[Any, Any, None]]


class LoggingTracker(CompletionTracker):
    """Notes when each task became ready."""

    def __init__(
        self,
        nodes: Mapping[Any, Collection[Hashable]],
        make_task: Callable[[Any], SchedulableTask],
        clock: Clock,
    ) -> None:
        super().__init__(nodes, make_task)
        self._clock = clock
        self._seen: set[Hashable] = set()
        self.ready: list[tuple[float, str]] = []  # when, and which
        self._note()

    def mark_complete(self, task: SchedulableTask) -> None:
        super().mark_complete(task)
        self._note()

    def mark_retry(self, task: SchedulableTask) -> None:
        super().mark_retry(task)
        self._seen.discard(task.task_id)
        self._note()

    def _note(self) -> None:
        for task in self.ready_frontier():
            if task.task_id not in self._seen:
                self._seen.add(task.task_id)
                self.ready.append((self._clock.monotonic(), str(task.task_id)))


class GraphWorld:
    """One graph with its run; names of tasks are `group.rest`, needs are by group."""

    def __init__(
        self,
        nodes: Mapping[str, Collection[str]],
        body: Body,
        *,
        capacity: int = 2,
        limits: Mapping[str, int] | None = None,
        needs: Mapping[str, Mapping[str, int]] | None = None,
        gates: Mapping[str, str] | None = None,
        policy: TaskAdmissionPolicy | None = None,
        attempts_max: int = 1,
        sinks: Sequence[Callable[[SchedulerEvent], None]] = (),
    ) -> None:
        self.clock = VirtualClock()
        self.sink = RecordingSink()
        self.limits = {"submission": capacity, **(limits or {})}
        self._requests = {
            group: SchedulerResourceRequest(amounts) for group, amounts in (needs or {}).items()
        }
        self._gates = gates or {}
        self.controller = TaskAdmissionController(
            TaskAdmissionConfig(capacity, limits or {}), policy, monotonic=self.clock.monotonic
        )
        self.tracker = LoggingTracker(nodes, self.task, self.clock)
        self.events = SchedulerEvents(self.clock, (*sinks, self.sink))
        self.scheduler = AsyncTaskScheduler(
            self.controller,
            self.events,
            Correlation("run-1"),
            self.clock.monotonic,
            lambda: self.run.wake(),
        )
        self._attempts_max = attempts_max
        self.errors: dict[Hashable, Exception] = {}  # of tasks that failed for good
        self.run = GraphRun(self.tracker, body, self.judge, self.scheduler, "run-1")

    async def go(self) -> CompletionSnapshot:
        """Run the graph, and take the turns of its scheduler."""
        return await self.run.run(self.turn)

    def turn(self) -> None:
        self.scheduler.turn()
        blocked = self.scheduler.queue.view().blocked()
        self.scheduler.bottleneck.turned(self.controller.leases, Cause(None), blocked)

    def judge(self, task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
        """Again at once, until its attempts are used up."""
        if tries.charged + 1 < self._attempts_max:
            return Again()
        self.errors[task.task_id] = error
        return Failed()

    def task(self, node: str) -> SchedulableTask:
        group = node.partition(".")[0]
        request = self._requests.get(group, SchedulerResourceRequest())
        return SchedulableTask(node, None, TaskGroupSpec(group), request, self._gates.get(group))

    def count(self, kind: Kind) -> int:
        return len(self.sink.of(kind))

    def gaps(self, until: float | None = None) -> float:
        end = self.clock.monotonic() if until is None else until
        needs = {name: self.task(name).resource_request.amounts for _, name in self.tracker.ready}
        return ready_idle_gap(self.sink.events, self.tracker.ready, needs, self.limits, end)

    def assert_sound(self) -> None:
        """Every lease came back once, events have no gap, and nothing is left."""
        view = self.controller.view()
        assert self.controller.leases == 0, self.controller
        assert (view.leased_resources, view.running_counts_by_group) == ({}, {})
        assert view.policy_debt_by_group_resource == {}
        assert_accounted(self.sink.events)
        assert hidden_scheduler_resource_waiters(self.sink.events) == 0


def assert_accounted(events: Sequence[SchedulerEvent]) -> None:
    """Each lease was acquired once and released once; the stream has no gap."""
    acquired = Counter(_executions(events, Kind.TASK_LEASE_ACQUIRED))
    released = Counter(_executions(events, Kind.TASK_LEASE_RELEASED))
    assert acquired == released
    assert set(acquired.values()) <= {1}, acquired.most_common(3)
    assert not [event for event in events if event.event_kind is Kind.RELEASE_DIAGNOSTIC]
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
    assert len({event.correlation.run_id for event in events}) <= 1
    alone = [*_executions(events, Kind.WORKER_SPAWNED), *_executions(events, Kind.TASK_COMPLETED)]
    assert set(alone) <= set(acquired)


def hidden_scheduler_resource_waiters(events: Sequence[SchedulerEvent]) -> int:
    """Tasks that held resources for some time and did not run, or ran and held none."""
    acquired = {e.correlation.task_execution_id: e for e in events if _is(e, "acquired")}
    spawned = {e.correlation.task_execution_id: e for e in events if _is(e, "spawned")}
    released = {e.correlation.task_execution_id: e for e in events if _is(e, "released")}
    hidden = len(spawned.keys() - acquired.keys())
    for execution, event in acquired.items():
        begun = spawned.get(execution) or released.get(execution)
        if begun is None or begun.captured_at_monotonic > event.captured_at_monotonic:
            hidden += 1
    return hidden


def _is(event: SchedulerEvent, word: str) -> bool:
    return event.event_kind in (f"task_lease_{word}", f"worker_{word}")


def ready_idle_gap(
    events: Sequence[SchedulerEvent],
    ready: Sequence[tuple[float, str]],
    needs: Mapping[str, Mapping[str, int]],
    limits: Mapping[str, int],
    until: float,
) -> float:
    """Seconds in which a ready task would have fitted and none got a lease.

    Between two moments at which anything happened nothing changes, so it is enough to look at how
    things stood after each of them.
    """
    changes: list[tuple[float, int, str]] = [(at, 0, task) for at, task in ready]
    for event in events:
        sign = {Kind.TASK_LEASE_ACQUIRED: 1, Kind.TASK_LEASE_RELEASED: -1}.get(event.event_kind)
        if sign is not None:
            changes.append((event.captured_at_monotonic, sign, event.correlation.task or ""))
    waiting: Counter[str] = Counter()
    leased: Counter[str] = Counter()
    gap = 0.0
    times = sorted({at for at, _, _ in changes if at < until} | {until})
    for now, then in pairwise(times):
        for _, sign, task in (change for change in changes if change[0] == now):
            waiting[task] += 1 if sign == 0 else -1 if sign == 1 else 0
            for resource, amount in needs[task].items():
                leased[resource] += sign * amount
        fits = any(
            all(leased[r] + n <= limits.get(r, n + leased[r]) for r, n in needs[task].items())
            for task, count in waiting.items()
            if count
        )
        gap += (then - now) * fits
    return gap


def _executions(events: Sequence[SchedulerEvent], kind: Kind) -> list[str | None]:
    return [e.correlation.task_execution_id for e in events if e.event_kind is kind]


class Steps:
    """Counts every start and every suspension of every task of a loop, and acts at one of them."""

    def __init__(self, at: int, act: Callable[[asyncio.Task[Any]], object], width: int = 1) -> None:
        self._at = range(at, at + width)
        self._act = act
        self.count = 0
        asyncio.get_running_loop().set_task_factory(self._factory)

    def _factory(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(_Stepped(coro, self), loop=loop, **options)
        self.step(task)
        return task

    def step(self, task: asyncio.Task[Any] | None) -> None:
        self.count += 1
        if task is not None and self.count in self._at:
            # Not from inside of the step: whoever cancels a task is somebody else.
            asyncio.get_running_loop().call_soon(self._act, task)


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that tells each of its suspensions."""

    def __init__(self, inner: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def send(self, value: Any, /) -> Any:
        return self._told(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._told(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        raise NotImplementedError

    def _told(self, awaited: Any) -> Any:
        self._steps.step(asyncio.current_task())
        return awaited

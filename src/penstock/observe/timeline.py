# SPDX-License-Identifier: Apache-2.0
"""The timeline of each task, joined from the scheduler's and the requests' streams of events.

For one run of one process: sequences and monotonic times of others cannot be compared. Streams are
best effort; a view says which of its figures they do not carry enough for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.events.kinds import (
    RequestEvent,
    RequestEventKind,
    SchedulerEvent,
    SchedulerEventKind,
)

Event = SchedulerEvent | RequestEvent
S, R = SchedulerEventKind, RequestEventKind

NO_STEPS = "the events of single tasks were not recorded"
NO_GROUPS = "the stream does not say which groups have tasks queued"
GAPS = "events are missing: the sequence of a stream has gaps"

#: The scheduler has said why nothing starts.
_BLOCKED = frozenset({S.ADMISSION_BLOCKED, S.GROUP_CAPPED, S.REQUEST_PRESSURE_ADVISORY_SKIPPED})
#: After these something may start that could not.
_ENABLES = frozenset({S.READY_ENQUEUED, S.TASK_LEASE_RELEASED, S.SELECTED, S.STALE_SELECTION})
_RELIEVES = frozenset(
    {R.REQUEST_LEASE_RELEASED, R.REQUEST_LEASE_ACQUIRED, R.REQUEST_WAIT_CANCELLED}
)


#: What comes after the requests of a task, if it is of the same instant.
_ENDS = frozenset(
    {
        S.TASK_LEASE_RELEASED,
        S.TASK_COMPLETED,
        S.RETRY_DEFERRED,
        S.NON_RETRYABLE_DROPPED,
        S.CANCELLED,
        S.RELEASE_DIAGNOSTIC,
    }
)


class Step(msgspec.Struct, frozen=True):
    """One event of a task."""

    at: float  # monotonic
    kind: str
    reason: str | None = None
    where: str | None = None  # the resource of a request


class TaskTimeline(msgspec.Struct, frozen=True):
    """All events of one execution of a task, in order."""

    execution: str
    task: str | None
    group: str | None
    steps: tuple[Step, ...]

    def at(self, kind: str) -> float | None:
        """When this happened first."""
        return next((step.at for step in self.steps if step.kind == kind), None)

    @property
    def request_wait_seconds(self) -> float:
        """How long its requests waited for permits, summed over them."""
        return self._between(R.REQUEST_WAIT_STARTED, R.REQUEST_LEASE_ACQUIRED)

    @property
    def call_seconds(self) -> float:
        """How long its requests were out, summed over them."""
        return self._between(R.REQUEST_LEASE_ACQUIRED, R.REQUEST_LEASE_RELEASED)

    def _between(self, first: str, last: str) -> float:
        """Summed over pairs: it does not matter which end belongs to which beginning."""
        begins = [step.at for step in self.steps if step.kind == first]
        ends = [step.at for step in self.steps if step.kind == last]
        return sum(ends) - sum(begins) if len(begins) == len(ends) else 0.0


class Figure(msgspec.Struct, frozen=True):
    """A number, or why it cannot be computed."""

    value: float | None
    missing_reason: str | None = None


class CorrelatedRuntimeView:
    """Joins the scheduler's and the requests' events of one run."""

    def __init__(
        self, scheduler: Iterable[SchedulerEvent], requests: Iterable[RequestEvent] = ()
    ) -> None:
        self._scheduler = sorted(scheduler, key=lambda event: event.sequence)
        self._requests = sorted(requests, key=lambda event: event.sequence)
        self.is_whole = not (_has_gaps(self._scheduler) or _has_gaps(self._requests))
        both: list[Event] = [*self._scheduler, *self._requests]
        both.sort(key=lambda event: event.captured_at_monotonic)  # stable: each in its order
        self.events = both
        self._tells_steps = any(e.event_kind is S.TASK_LEASE_ACQUIRED for e in self._scheduler)

    def __repr__(self) -> str:
        return f"<CorrelatedRuntimeView of {len(self.events)} events>"

    def timelines(self) -> dict[str, TaskTimeline]:
        """By the id of an execution, in the order of their first events."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            execution = event.correlation.task_execution_id
            if execution is not None:
                found.setdefault(execution, []).append(event)
        return {
            execution: TaskTimeline(
                execution,
                events[0].correlation.task,
                events[0].correlation.group,
                tuple(_step(event) for event in sorted(events, key=_order)),
            )
            for execution, events in found.items()
        }

    # ── Figures ───────────────────────────────────────────────────────────────────────────────

    @property
    def ready_queue_wait(self) -> Figure:
        """How long tasks were ready before they were selected, in seconds summed over them."""
        return self._figure(self._queued_seconds)

    @property
    def task_admission_wait(self) -> Figure:
        """Of that: while the scheduler had said that none of them may start."""
        return self._figure(lambda: self._queued_seconds(blocked_only=True))

    @property
    def ready_idle_gap(self) -> Figure:
        """Seconds in which something could have been selected and was not; must be zero.

        A selection belongs to what made it possible: more ready tasks, a lease that came back, the
        selection before. One that comes later than that comes late. Those that a provider made
        possible by itself (the end of a cool-down) are not judged.
        """
        return self._figure(self._late_seconds)

    @property
    def active_capacity_integral(self) -> Figure:
        """Task leases × seconds."""
        return self._figure(self._held_seconds)

    @property
    def hidden_scheduler_resource_waiters(self) -> Figure:
        """Executions that began without a lease, and so stood in no line; must be zero."""
        return self._figure(self._unleased)

    @property
    def root_over_admission_debt(self) -> Figure:
        """What roots held beyond their share while others were ready."""
        return Figure(None, NO_GROUPS)

    def _figure(self, find: Callable[[], float]) -> Figure:
        if not self.is_whole:
            return Figure(None, GAPS)
        if not self._tells_steps:
            return Figure(None, NO_STEPS)
        return Figure(find())

    def _queued_seconds(self, blocked_only: bool = False) -> float:
        queued, blocked, since, total = 0.0, False, 0.0, 0.0
        for event in self._scheduler:
            now, kind = event.captured_at_monotonic, event.event_kind
            if blocked or not blocked_only:
                total += queued * (now - since)
            since = now
            if kind is S.READY_ENQUEUED:
                queued += (event.numbers or {}).get("tasks", 0.0)
            elif kind is S.SELECTED:
                queued, blocked = queued - 1, False
            elif kind is S.QUEUE_EMPTY:
                queued, blocked = 0.0, False  # also of what was given back unstarted
            elif kind in _BLOCKED:
                blocked = True
                queued = (event.numbers or {}).get("queued", queued)
        return total

    def _late_seconds(self) -> float:
        enabled, total, by_provider = 0.0, 0.0, False
        for event in self.events:
            now, kind = event.captured_at_monotonic, event.event_kind
            if kind is S.SELECTED and not by_provider:
                total += now - enabled
            if kind in _ENABLES or kind in _RELIEVES:
                enabled = now
            if kind in (S.SELECTED, S.QUEUE_EMPTY):
                by_provider = False
            elif kind in _BLOCKED:
                by_provider = kind is S.REQUEST_PRESSURE_ADVISORY_SKIPPED
        return total

    def _held_seconds(self) -> float:
        held, since, total = 0, 0.0, 0.0
        for event in self._scheduler:
            now, kind = event.captured_at_monotonic, event.event_kind
            total += held * (now - since)
            since = now
            held += (kind is S.TASK_LEASE_ACQUIRED) - (kind is S.TASK_LEASE_RELEASED)
        return total

    def _unleased(self) -> float:
        leased: set[str | None] = set()
        hidden = 0
        for event in self._scheduler:
            execution = event.correlation.task_execution_id
            if event.event_kind is S.TASK_LEASE_ACQUIRED:
                leased.add(execution)
            elif event.event_kind is S.WORKER_SPAWNED and execution not in leased:
                hidden += 1
        return float(hidden)


def _order(event: Event) -> tuple[float, int]:
    """By time; in one instant a task's requests come after its start and before its end."""
    if isinstance(event, RequestEvent):
        return event.captured_at_monotonic, 1
    return event.captured_at_monotonic, 2 if event.event_kind in _ENDS else 0


def _step(event: Event) -> Step:
    where = "/".join(event.resource) if isinstance(event, RequestEvent) else None
    return Step(event.captured_at_monotonic, event.event_kind.value, event.reason, where)


def _has_gaps(events: Sequence[Event]) -> bool:
    """Whether events are missing between the first and the last."""
    return bool(events) and events[-1].sequence - events[0].sequence + 1 != len(events)

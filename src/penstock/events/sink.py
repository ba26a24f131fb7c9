# SPDX-License-Identifier: Apache-2.0
"""Event streams and their sinks: a sink that raises is switched off, the run goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from penstock.clock import Clock
from penstock.events.kinds import (
    Correlation,
    RequestEvent,
    RequestEventKind,
    SchedulerEvent,
    SchedulerEventKind,
)
from penstock.model.provider import RequestResourceKey

log = logging.getLogger("penstock.events")

RECENT_EVENTS_MAX = 1_000

E = TypeVar("E", SchedulerEvent, RequestEvent)


class LogEvents:
    """Writes every event as a debug line: kind, what it is about, reason and numbers."""

    def __call__(self, event: SchedulerEvent | RequestEvent, /) -> None:
        about = event.correlation.task_execution_id or event.correlation.run_id
        if isinstance(event, RequestEvent):
            about = f"{about} {'/'.join(event.resource)}"
        log.debug(
            "#%d %s %s %s %s",
            event.sequence,
            event.event_kind.value,
            about,
            event.reason or "",
            event.numbers or "",
        )


def is_logged() -> bool:
    """Whether the log shows debug lines of events."""
    return log.isEnabledFor(logging.DEBUG)


Event = SchedulerEvent | RequestEvent


class RecentEvents:
    """Keeps the last events in memory: the default listener."""

    def __init__(self, limit: int = RECENT_EVENTS_MAX) -> None:
        self.events: deque[Event] = deque(maxlen=limit)

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)


class EventStream(Generic[E]):
    """One stream of one process: hands its events to the listeners.

    Owns the sequence. Does not decide anything: with no listener nothing is built. Every listener
    hears the events in their order, also if one of them causes another. A listener must be quick;
    whatever it raises switches it off, and nothing else.
    """

    def __init__(self, clock: Clock, sinks: Iterable[Callable[[E], None]]) -> None:
        self._monotonic = clock.monotonic
        self._sinks: list[Callable[[E], None]] = list(sinks)
        self._calls: list[Callable[[E], None]] = [_call_of(sink) for sink in self._sinks]
        self._held: deque[E] = deque()
        self._is_holding = False
        self.sequence = 0
        #: Whether a sink wants every step of every task; what is kept in memory does not.
        self.wants_steps = any(not isinstance(sink, RecentEvents) for sink in self._sinks)
        #: The only listener, if it keeps in memory: it calls nobody back, nothing is held for it.
        self._keep: Callable[[E], None] | None = None
        if len(self._calls) == 1 and not self.wants_steps:
            self._keep = self._calls[0]

    @property
    def has_sinks(self) -> bool:
        """Whether anybody listens."""
        return bool(self._calls)

    def hold(self) -> bool:
        """Keep what is emitted until `flush`; False if somebody does already, and flushes."""
        if self._is_holding:
            return False
        self._is_holding = True
        return True

    def flush(self) -> None:
        """Deliver what was kept."""
        held = self._held
        self._is_holding = True  # what a listener causes comes after what it heard
        try:
            while held:
                event = held.popleft()
                for call in self._calls:
                    try:
                        call(event)
                    except (KeyboardInterrupt, SystemExit):
                        raise
                    except BaseException as error:  # a listener's CancelledError is not ours
                        self._switch_off(call, error)
        finally:
            self._is_holding = False

    def _deliver(self, event: E) -> None:
        if self._keep is not None:
            self._keep(event)
            return
        self._held.append(event)
        if not self._is_holding:
            self.flush()

    def _switch_off(self, call: Callable[[E], None], error: BaseException) -> None:
        index = next((n for n, known in enumerate(self._calls) if known is call), None)
        if index is None:
            return  # it is off: it had emitted something itself, and raised then
        sink = self._sinks[index]
        self._sinks = self._sinks[:index] + self._sinks[index + 1 :]
        self._calls = self._calls[:index] + self._calls[index + 1 :]
        log.error(
            "The event listener %s raised %s and is switched off; the run goes on.",
            _shown(sink),
            _shown(error),
        )


class SchedulerEvents(EventStream[SchedulerEvent]):
    """The scheduler's stream of one process: numbers events and hands them on."""

    def emit(
        self,
        kind: SchedulerEventKind,
        correlation: Correlation,
        reason: str | None = None,
        numbers: dict[str, float] | None = None,
    ) -> None:
        if not self._calls:
            return
        self.sequence = sequence = self.sequence + 1
        event = SchedulerEvent(kind, self._monotonic(), sequence, correlation, reason, numbers)
        if self._keep is not None:  # here, too: a call less for every step of every job
            self._keep(event)
        else:
            self._deliver(event)


class RequestEvents(EventStream[RequestEvent]):
    """The stream of outbound requests of one process: numbers events and hands them on."""

    def emit(
        self,
        kind: RequestEventKind,
        correlation: Correlation,
        resource: RequestResourceKey,
        reason: str | None = None,
        numbers: dict[str, float] | None = None,
        lease_id: int | None = None,
    ) -> None:
        if not self._calls:
            return
        self.sequence = sequence = self.sequence + 1
        at = self._monotonic()
        self._deliver(
            RequestEvent(kind, at, sequence, correlation, resource, reason, numbers, lease_id)
        )


def _shown(thing: object) -> str:
    try:
        return repr(thing)
    except Exception:  # its own code
        return type(thing).__name__


def _call_of(sink: Callable[[E], None]) -> Callable[[E], None]:
    # The bound append of a deque costs a third of a Python call.
    return sink.events.append if isinstance(sink, RecentEvents) else sink


def default_sinks() -> tuple[RecentEvents | LogEvents, ...]:
    """The last events in memory; with debug logging, all of them in the log. For either stream."""
    return (RecentEvents(), LogEvents()) if is_logged() else (RecentEvents(),)

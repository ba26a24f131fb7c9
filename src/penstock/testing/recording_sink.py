# SPDX-License-Identifier: Apache-2.0
"""A sink that records every event, and lets a test wait for one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import overload

from penstock.events.kinds import (
    RequestEvent,
    RequestEventKind,
    SchedulerEvent,
    SchedulerEventKind,
)

Kind = SchedulerEventKind | RequestEventKind

WAIT_SECONDS = 10.0  # by the loop's clock: virtual on a virtual loop


class RecordingSink:
    """Keeps every event and wakes who waits for one. Belongs to one loop."""

    def __init__(self) -> None:
        self.events: list[SchedulerEvent] = []
        self.requests: list[RequestEvent] = []  # the events of the other stream
        self._taken: Counter[Kind] = Counter()
        self._waiting: list[tuple[Kind, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        count = len(self.events) + len(self.requests)
        return f"<RecordingSink {count} events, {len(self._waiting)} waited for>"

    def __call__(self, event: SchedulerEvent | RequestEvent, /) -> None:
        if isinstance(event, RequestEvent):
            self.requests.append(event)
        else:
            self.events.append(event)
        for kind, future in self._waiting:
            if kind is event.event_kind and not future.done():
                future.set_result(None)

    @overload
    def of(self, kind: SchedulerEventKind) -> list[SchedulerEvent]: ...

    @overload
    def of(self, kind: RequestEventKind) -> list[RequestEvent]: ...

    def of(self, kind: Kind) -> Sequence[SchedulerEvent | RequestEvent]:
        """The events of one kind, in order."""
        return [event for event in self._all() if event.event_kind is kind]

    @overload
    async def wait_for(
        self, kind: SchedulerEventKind, timeout: float = WAIT_SECONDS
    ) -> SchedulerEvent: ...

    @overload
    async def wait_for(
        self, kind: RequestEventKind, timeout: float = WAIT_SECONDS
    ) -> RequestEvent: ...

    async def wait_for(
        self, kind: Kind, timeout: float = WAIT_SECONDS
    ) -> SchedulerEvent | RequestEvent:
        """The next event of this kind: each is given once, also if it happened before the call.

        Raises:
            TimeoutError: none came; the message counts what did.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while (event := self._take(kind)) is None:
            await self._arrival(kind, deadline, timeout)
        return event

    def _all(self) -> list[SchedulerEvent | RequestEvent]:
        return [*self.events, *self.requests]

    def _take(self, kind: Kind) -> SchedulerEvent | RequestEvent | None:
        found = [event for event in self._all() if event.event_kind is kind]
        if len(found) <= self._taken[kind]:
            return None
        self._taken[kind] += 1
        return found[self._taken[kind] - 1]

    async def _arrival(self, kind: Kind, deadline: float, timeout: float) -> None:
        waiter = (kind, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter[1]
        except TimeoutError:
            counted = Counter(event.event_kind.value for event in self._all())
            seen = ", ".join(f"{n} {name}" for name, n in counted.items()) or "nothing"
            raise TimeoutError(
                f"No further event {kind.value!r} within {timeout:g} s; there was: {seen}."
            ) from None
        finally:
            self._waiting.remove(waiter)

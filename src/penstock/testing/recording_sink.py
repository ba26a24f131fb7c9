# SPDX-License-Identifier: Apache-2.0
"""What did the engine say, and when will it say that?"""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock.events.kinds import SchedulerEvent, SchedulerEventKind

WAIT_SECONDS = 10.0  # by the loop's clock: virtual on a virtual loop


class RecordingSink:
    """Keeps every event and wakes who waits for one. Belongs to one loop."""

    def __init__(self) -> None:
        self.events: list[SchedulerEvent] = []
        self._taken: Counter[SchedulerEventKind] = Counter()
        self._waiting: list[tuple[SchedulerEventKind, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<RecordingSink {len(self.events)} events, {len(self._waiting)} waited for>"

    def __call__(self, event: SchedulerEvent, /) -> None:
        self.events.append(event)
        for kind, future in self._waiting:
            if kind is event.event_kind and not future.done():
                future.set_result(None)

    def of(self, kind: SchedulerEventKind) -> list[SchedulerEvent]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.event_kind is kind]

    async def wait_for(
        self, kind: SchedulerEventKind, timeout: float = WAIT_SECONDS
    ) -> SchedulerEvent:
        """The next event of this kind: each is given once, also if it happened before the call.

        Raises:
            TimeoutError: none came; the message counts what did.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while (event := self._take(kind)) is None:
            await self._arrival(kind, deadline, timeout)
        return event

    def _take(self, kind: SchedulerEventKind) -> SchedulerEvent | None:
        found = self.of(kind)
        if len(found) <= self._taken[kind]:
            return None
        self._taken[kind] += 1
        return found[self._taken[kind] - 1]

    async def _arrival(self, kind: SchedulerEventKind, deadline: float, timeout: float) -> None:
        waiter = (kind, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter[1]
        except TimeoutError:
            counted = Counter(event.event_kind.value for event in self.events)
            seen = ", ".join(f"{n} {name}" for name, n in counted.items()) or "nothing"
            raise TimeoutError(
                f"No further event {kind.value!r} within {timeout:g} s; there was: {seen}."
            ) from None
        finally:
            self._waiting.remove(waiter)

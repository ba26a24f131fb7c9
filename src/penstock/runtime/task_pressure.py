# SPDX-License-Identifier: Apache-2.0
"""How loaded is a provider, as far as a job that has not begun is concerned?

Request admission knows who waits there. A job that has just begun has not asked yet, though it soon
will: if nobody counted it, a free worker would fill all its slots with jobs of one provider before
the first request is seen. So it counts as one that waits, until it asks, ends, or has shown for a
moment that it has something else to do first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

from penstock.model.pressure import PressureSnapshot, RequestPressure

FRESH_SECONDS = 0.1  # a job that has not asked its provider by then does something else first


class TaskPressure:
    """Owns the jobs that have just begun. Belongs to one loop."""

    def __init__(
        self,
        requests: RequestPressure,
        monotonic: Callable[[], float],
        changed: Callable[[Hashable], None],
    ) -> None:
        self._requests = requests
        self._monotonic = monotonic
        self._changed = changed
        self._fresh: OrderedDict[Hashable, tuple[Hashable, float]] = OrderedDict()  # oldest first
        self._counts: dict[Hashable, int] = {}  # by gate
        self._timer: asyncio.TimerHandle | None = None

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """The load, with those that are about to ask as waiters."""
        found = self._requests.snapshot(key)
        fresh = self._counts.get(key, 0)
        if found is None or not fresh:
            return found
        room = max(0, found.limit - found.in_flight - found.waiters)
        return msgspec.structs.replace(found, waiters=found.waiters + max(0, fresh - room))

    def began(self, job: Hashable, gate: Hashable) -> None:
        """A job that calls this provider runs."""
        self._fresh[job] = (gate, self._monotonic() + FRESH_SECONDS)
        self._counts[gate] = self._counts.get(gate, 0) + 1
        if self._timer is None:
            self._set_timer()

    def asked(self, job: Hashable) -> None:
        """A job has asked its provider, or has ended; safe to repeat."""
        found = self._fresh.pop(job, None)
        if found is not None:
            self._drop(found[0])

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self, gate: Hashable) -> None:
        left = self._counts[gate] - 1
        if left:
            self._counts[gate] = left
        else:
            del self._counts[gate]
        self._changed(gate)

    def _set_timer(self) -> None:
        first = next(iter(self._fresh.values()), None)
        if first is not None:
            delay = max(0.0, first[1] - self._monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._rang)

    def _rang(self) -> None:
        self._timer = None
        now = self._monotonic()
        while self._fresh:
            job, (_, until) = next(iter(self._fresh.items()))
            if until > now:
                break
            self.asked(job)
        self._set_timer()

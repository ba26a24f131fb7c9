# SPDX-License-Identifier: Apache-2.0
"""The pressure on providers (backpressure), as a job that has not begun must see it.

Request admission knows who waits there. A job that has just begun has not asked yet, though it soon
will: if nobody counted it, a free worker would fill all its slots with jobs of one provider before
the first request is seen. So it counts as one that waits, until it asks, ends, or has shown for a
moment that it has something else to do first.

A task of several providers needs room at each of them: the fullest one speaks for all. Where that
is only what its attempts have called so far, one of its jobs may start all the same, now and then:
it may call somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from math import inf

import msgspec

from penstock.admission.tasks.policies import is_pressed
from penstock.model.job import LeasedJob
from penstock.model.provider import ANY, RequestResourceKey, SeveralResources
from penstock.model.request import PressureSnapshot, RequestPressure
from penstock.model.task import SchedulableTask
from penstock.timers import Deadlines
from penstock.worker.give_up import GiveUp

FRESH_SECONDS = 0.1  # a job that has not asked its provider by then does something else first
TRIAL_SECONDS = 1.0  # between two jobs that start though what they called so far has no room
FIRST_LIMIT = 8  # requests at once of a provider that nobody has asked for anything yet

#: Called when tasks that waited for this may start.
Changed = Callable[[Hashable], None]


class ProviderPressure:
    """Owns the jobs that have just begun, and which gates are closed. Belongs to one loop."""

    def __init__(
        self,
        requests: RequestPressure,
        counted_as: Callable[[str], str],
        cap_of: Callable[[str, str], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._cap_of = cap_of  # a provider's, or its model's: requests at once
        self._requests = requests
        self._counted_as = counted_as  # providers with one base URL are one
        self._loop = asyncio.get_running_loop()
        self._changed: Changed | None = None
        self._give_up: GiveUp | None = None
        self._fresh: Deadlines[Hashable, Hashable] = Deadlines(  # job → its gate
            FRESH_SECONDS, self._is_fresh_no_more, monotonic
        )
        self._counts: dict[Hashable, int] = {}  # of the fresh ones, by resource
        self._closed: dict[Hashable, asyncio.TimerHandle | None] = {}  # gates; when they open
        self._monotonic = monotonic
        self._trials: dict[Hashable, tuple[Hashable, float]] = {}  # learned gate → job, since when

    def connect(self, changed: Changed, give_up: GiveUp | None = None) -> None:
        self._changed = changed
        self._give_up = give_up

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """The load, with those that are about to ask as waiters."""
        loads = [load for one in _parts(key) if (load := self._load(one)) is not None]
        found = max(loads, key=_fullness, default=None)
        if found is not None and is_pressed(found):
            self._close(key, found.cooldown_seconds)
        return found

    def _load(self, key: Hashable) -> PressureSnapshot | None:
        found = self._requests.snapshot(self._asked_as(key))
        fresh = self._counts.get(key, 0)
        if fresh:
            found = found or self._unknown(key)
            room = max(0, found.limit - found.in_flight - found.waiters)
            waiters = found.waiters + max(0, fresh - room)
            found = msgspec.structs.replace(found, waiters=waiters)
        return found

    def passes(self, task: SchedulableTask) -> bool:
        """Whether a job may start though its gate is closed."""
        gate = task.request_resource_key
        job = task.payload  # or that of a task in memory, whose job has begun
        if (
            self._give_up is not None
            and isinstance(job, LeasedJob)
            and self._give_up.is_over(job, gate)
        ):
            return True  # to its end
        return self._may_try(gate)

    def wants(self, gate: Hashable) -> bool:
        """Whether some job of a closed gate may start all the same."""
        return (self._give_up is not None and self._give_up.is_due(gate)) or self._may_try(gate)

    def _may_try(self, gate: Hashable) -> bool:
        if not (isinstance(gate, SeveralResources) and gate.learned):
            return False
        _, since = self._trials.get(gate, (None, -inf))
        return self._monotonic() - since >= TRIAL_SECONDS

    def ticked(self) -> None:
        """Let gates be tried again of which some job may start."""
        for gate in [gate for gate in self._closed if self.wants(gate)]:
            self._open(gate)

    def began(self, job: Hashable, gate: Hashable) -> None:
        """A job that calls what this gate stands for runs."""
        if gate in self._closed and self._may_try(gate):
            self._trials[gate] = (job, inf)  # the next one only when it has ended
        for one in _parts(gate):
            self._counts[one] = self._counts.get(one, 0) + 1
        self._fresh.add(job, gate)

    def asked(self, job: Hashable) -> None:
        """A job has asked its provider, or has ended; safe to repeat."""
        gate = self._fresh.drop(job)
        if gate is not None:
            self._is_fresh_no_more(job, gate)

    def ended(self, job: Hashable) -> None:
        """A job has ended."""
        self.asked(job)
        for gate, (tried, _) in self._trials.items():
            if tried == job:
                self._trials[gate] = (None, self._monotonic())

    def _is_fresh_no_more(self, _job: Hashable, gate: Hashable) -> None:
        parts = _parts(gate)
        for one in parts:
            left = self._counts[one] - 1
            if left:
                self._counts[one] = left
            else:
                del self._counts[one]
        for closed in [one for one in self._closed if not set(parts).isdisjoint(_parts(one))]:
            self._open(closed)

    def relieved(self, resource: RequestResourceKey) -> None:
        """Fewer wait for a resource, or its cool-down has ended."""
        provider, model, _ = resource
        alike = (RequestResourceKey(provider, ANY, ANY), RequestResourceKey(provider, model, ANY))
        for gate in list(self._closed):
            if any(self._asked_as(one) in alike for one in _parts(gate)):
                self._open(gate)

    def close(self) -> None:
        """The run ends."""
        self._changed = None
        self._fresh.clear()
        for timer in self._closed.values():
            if timer is not None:
                timer.cancel()
        self._closed.clear()

    def _close(self, gate: Hashable, cooldown_seconds: float) -> None:
        if gate in self._closed and (cooldown_seconds <= 0 or self._closed[gate] is not None):
            return
        timer = None
        if cooldown_seconds > 0:  # perhaps nobody waits there whose turn would tell us
            timer = self._loop.call_later(cooldown_seconds, self._open, gate)
        self._closed[gate] = timer

    def _open(self, gate: Hashable) -> None:
        if gate not in self._closed:
            return
        timer = self._closed.pop(gate)
        if timer is not None:
            timer.cancel()
        if self._changed is not None:
            self._changed(gate)

    def _unknown(self, key: Hashable) -> PressureSnapshot:
        """A provider that nobody has asked for anything yet."""
        if not isinstance(key, RequestResourceKey):
            return PressureSnapshot(FIRST_LIMIT)
        cap = self._cap_of(self._counted_as(key.provider), key.model)
        return PressureSnapshot(min(FIRST_LIMIT, cap), resource=key)

    def _asked_as(self, key: Hashable) -> Hashable:
        """What request admission calls the gate of a task."""
        if not isinstance(key, RequestResourceKey):
            return key
        return key._replace(provider=self._counted_as(key.provider))


def _parts(gate: Hashable) -> tuple[Hashable, ...]:
    """The resources that a gate stands for."""
    return gate.resources if isinstance(gate, SeveralResources) else (gate,)


def _fullness(load: PressureSnapshot) -> tuple[float, int]:
    """Sort key of providers that keep a task waiting: longest cool-down, then longest line."""
    return load.cooldown_seconds, load.waiters - max(1, load.limit)

# SPDX-License-Identifier: Apache-2.0
"""Waits for permits of request admission on an event loop.

Waiting wraps trying: the core decides, this wakes whoever got an answer. One timer stands for
everything that time alone will change. A waiter that is cancelled vanishes; if it had been granted
in the same turn of the loop, its lease is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import (
    RequestAdmissionDecision,
    RequestAdmissionDenied,
    RequestAdmissionLease,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.admission.requests.pressure import RequestPressureReader
from penstock.clock import Clock
from penstock.errors import InternalError, RequestAdmissionError
from penstock.events.sink import RequestEvents
from penstock.model.lease import ReleaseResult
from penstock.model.provider import RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome
from penstock.requests.request_events import RequestEventEmitter
from penstock.timers import Timer

#: The outcome of a request that was admitted and never sent.
NEVER_SENT = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED, tokens_used=0, was_sent=False)


class RequestAdmissionController:
    """Request admission on one loop; threads come here through a `ThreadBridge`."""

    def __init__(
        self,
        core: AdaptiveRequestAdmissionController,
        clock: Clock,
        events: RequestEvents | None = None,
        run_id: str = "",
    ) -> None:
        self.core = core
        self.pressure = RequestPressureReader(core, clock.monotonic)
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        self.events = RequestEventEmitter(core, events or RequestEvents(clock, ()), run_id)
        self._futures: dict[RequestWaiter, asyncio.Future[None]] = {}
        self._timer = Timer(self._pump, clock.monotonic, self._loop)
        self._pump_is_due = False
        self._on_pressure_change: Callable[[RequestResourceKey], None] | None = None

    def __repr__(self) -> str:
        return f"<RequestAdmissionController {self.core!r}>"

    def on_pressure_change(self, listener: Callable[[RequestResourceKey], None]) -> None:
        """Call this whenever a resource has fewer waiters, other caps, or ends its cool-down."""
        self._on_pressure_change = listener
        self.core.tracks_pressure = True

    # ── Acquiring ─────────────────────────────────────────────────────────────────────────────

    def try_acquire(self, item: RequestAdmissionItem) -> RequestAdmissionDecision:
        """Return a lease or a denial; never waits, never overtakes."""
        decision = self.core.try_acquire(item, self._monotonic())
        if self.events.is_on:
            self.events.decided(decision)
        return decision

    def acquire_or_enqueue(
        self, item: RequestAdmissionItem
    ) -> RequestAdmissionLease | RequestWaiter:
        """Return a lease if it may leave at once, else a waiter; then `wait` must follow.

        Raises:
            RequestAdmissionError: there will be none.
        """
        answer = self.core.acquire_or_enqueue(item, self._monotonic())
        if isinstance(answer, RequestAdmissionLease):
            if self.events.is_on:
                self.events.acquired_at_once(answer)
            return answer
        if answer.denied is not None:
            self.events.decided(answer.denied)
            raise _error(answer.denied)
        if self.events.is_on:
            self.events.wait_started(answer)
        self._pump_soon()
        return answer

    async def wait(self, waiter: RequestWaiter) -> RequestAdmissionLease:
        """Wait until it is a waiter's turn; RequestAdmissionError if that will never be."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures[waiter] = future
        try:
            await future
        except GeneratorExit:
            # Nobody runs it any more. This may be the garbage collector, in the midst of anything.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._give_up, waiter)
            raise
        except BaseException:
            self._give_up(waiter)
            raise
        return self._answer_of(waiter)

    async def acquire_async(self, item: RequestAdmissionItem) -> RequestAdmissionLease:
        """Wait for a lease; RequestAdmissionError if there will be none."""
        answer = self.acquire_or_enqueue(item)
        return answer if isinstance(answer, RequestAdmissionLease) else await self.wait(answer)

    # ── Releasing ─────────────────────────────────────────────────────────────────────────────

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome
    ) -> ReleaseResult:
        """A request has ended; never raises for a lease that is not held."""
        core = self.core
        result = core.release(lease, outcome, self._monotonic())
        if self.events.is_on:
            self.events.released(lease, outcome, result)
        if core.needs_pump or core.tracks_pressure:
            self._pump_soon()
        return result

    # ── Changing ──────────────────────────────────────────────────────────────────────────────

    def set_policy(self, policy: ProviderPolicy) -> None:
        """Other caps or another algorithm for a provider, from now on."""
        self.core.set_policy(policy, self._monotonic())
        self._pump()

    def set_share(self, share: ProcessShare) -> None:
        """Another part of every cap is this process's, from now on."""
        self.core.set_share(share, self._monotonic())
        self._pump()

    def shut(self) -> None:
        """Let nothing leave from now on, and deny whoever waits."""
        self._answer(self.core.shut())
        self._timer.cancel()

    # ── Waking ────────────────────────────────────────────────────────────────────────────────

    def _give_up(self, waiter: RequestWaiter) -> None:
        self._futures.pop(waiter, None)
        lease = self.core.withdraw(waiter)
        if self.events.is_on:
            self.events.wait_cancelled(waiter)
        if lease is not None:
            self.release(lease, NEVER_SENT)
        else:
            self._pump_soon()

    def _answer_of(self, waiter: RequestWaiter) -> RequestAdmissionLease:
        if waiter.lease is not None:
            return waiter.lease
        if waiter.denied is None:
            raise InternalError("A request was woken without an answer.")
        raise _error(waiter.denied)

    def _pump_soon(self) -> None:
        """At the end of this turn of the loop, once for all that happens in it."""
        if not self._pump_is_due and not self._loop.is_closed():
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        core = self.core
        self._answer(core.pump(self._monotonic()))
        self._timer.set(core.next_due())
        if self._on_pressure_change is not None:
            for resource in core.take_pressure_changes():
                self._on_pressure_change(resource)

    def _answer(self, answered: list[RequestWaiter]) -> None:
        events = self.events
        if events.is_on:
            events.flush()
        for waiter in answered:
            if events.is_on:
                events.answered(waiter)
            future = self._futures.pop(waiter, None)
            if future is not None and not future.done():
                future.set_result(None)


def _error(denied: RequestAdmissionDenied) -> RequestAdmissionError:
    resource = "/".join(denied.item.resource)
    return RequestAdmissionError(
        f"A request to {resource} was not sent: {denied.reason}.",
        denied.reason,
        denied.retry_after_seconds,
    )

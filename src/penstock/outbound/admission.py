# SPDX-License-Identifier: Apache-2.0
"""How is a permit waited for?

Waiting wraps trying: the core decides, this wakes whoever got an answer. One timer stands for
everything that time alone will change. A waiter that is cancelled vanishes; if it had been granted
in the same turn of the loop, its lease is given back.
"""

from __future__ import annotations

import asyncio

from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import (
    RequestAdmissionDecision,
    RequestAdmissionDenied,
    RequestAdmissionLease,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.clock import Clock
from penstock.errors import InternalError, RequestAdmissionError
from penstock.model.release import ReleaseResult
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome

_CANCELLED = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED)


class RequestAdmissionController:
    """The whole contract of request admission. Belongs to one loop, which threads hand over to."""

    def __init__(self, core: AdaptiveRequestAdmissionController, clock: Clock) -> None:
        self.core = core
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._futures: dict[RequestWaiter, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None

    def __repr__(self) -> str:
        return f"<RequestAdmissionController {self.core!r}>"

    def try_acquire(self, item: RequestAdmissionItem) -> RequestAdmissionDecision:
        """A lease, or why not; never waits, never overtakes."""
        return self.core.try_acquire(item, self._monotonic())

    async def acquire_async(self, item: RequestAdmissionItem) -> RequestAdmissionLease:
        """Wait for a lease; RequestAdmissionError if there will be none."""
        decision = self.try_acquire(item)
        if isinstance(decision, RequestAdmissionLease):
            return decision
        waiter = self.core.enqueue(item, self._monotonic())
        if waiter.denied is not None:
            raise _error(waiter.denied)
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures[waiter] = future
        try:
            self._pump()
            await future
        except BaseException:
            self._give_up(waiter)
            raise
        if waiter.denied is not None:
            raise _error(waiter.denied)
        if waiter.lease is None:
            raise InternalError("A request was woken without an answer.")
        return waiter.lease

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome
    ) -> ReleaseResult:
        """A request has ended; never raises for a lease that is not held."""
        result = self.core.release(lease, outcome, self._monotonic())
        self._pump()
        return result

    def shut(self) -> None:
        """From now on nothing leaves; whoever waits is told."""
        self._answer(self.core.shut())
        self._set_timer(None)

    def _give_up(self, waiter: RequestWaiter) -> None:
        self._futures.pop(waiter, None)
        lease = self.core.withdraw(waiter, self._monotonic())
        if lease is not None:
            self.release(lease, _CANCELLED)
        else:
            self._pump()

    def _pump(self) -> None:
        self._answer(self.core.pump(self._monotonic()))
        self._set_timer(self.core.next_due())

    def _answer(self, answered: list[RequestWaiter]) -> None:
        for waiter in answered:
            future = self._futures.pop(waiter, None)
            if future is not None and not future.done():
                future.set_result(None)

    def _set_timer(self, due: float | None) -> None:
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due is not None:
            delay = max(0.0, due - self._monotonic())
            self._timer = self._loop.call_later(delay, self._rang)

    def _rang(self) -> None:
        self._timer = self._timer_due = None
        self._pump()


def _error(denied: RequestAdmissionDenied) -> RequestAdmissionError:
    resource = "/".join(denied.item.resource)
    return RequestAdmissionError(
        f"A request to {resource} did not leave: {denied.reason}.",
        denied.reason,
        denied.retry_after_seconds,
    )

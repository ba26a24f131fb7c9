# SPDX-License-Identifier: Apache-2.0
"""Waits for permits of request admission on an event loop.

Waiting wraps trying: the core decides, this wakes whoever got an answer. One timer stands for
everything that time alone will change. A waiter that is cancelled vanishes; if it had been granted
in the same turn of the loop, its lease is given back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import (
    RequestAdmissionDecision,
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.admission.requests.pressure import RequestPressureReader
from penstock.clock import Clock
from penstock.errors import InternalError, RequestAdmissionError, UsageError
from penstock.events.sink import RequestEvents
from penstock.model.lease import ReleaseResult
from penstock.model.provider import RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome
from penstock.requests.request_events import RequestEventEmitter
from penstock.timers import Timer

#: What became of a request that was admitted and never left.
NEVER_SENT = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED, tokens_used=0, was_sent=False)


class _Ticket:
    """A thread that waits for a lease, as the loop sees it."""

    __slots__ = ("answer", "is_abandoned", "item", "waiter")

    def __init__(self, item: RequestAdmissionItem) -> None:
        self.item = item
        self.answer: Future[RequestAdmissionLease] = Future()
        self.waiter: RequestWaiter | None = None
        self.is_abandoned = False


class RequestAdmissionController:
    """The whole contract of request admission. Belongs to one loop, which threads hand over to."""

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
        self._thread = threading.get_ident()
        #: What the stream of events hears of requests.
        self.events = RequestEventEmitter(core, events or RequestEvents(clock, ()), run_id)
        self._answers: dict[RequestWaiter, asyncio.Future[None] | _Ticket] = {}
        self._timer = Timer(self._pump, clock.monotonic, self._loop)
        self._pump_is_due = False
        self._on_relief: Callable[[RequestResourceKey], None] | None = None
        self._lock = threading.Lock()  # of the two below
        self._tickets: set[_Ticket] = set()  # of threads that have no answer yet
        self._is_shut = False

    def __repr__(self) -> str:
        return f"<RequestAdmissionController {self.core!r}>"

    def on_relief(self, listener: Callable[[RequestResourceKey], None]) -> None:
        """Tell whenever a resource has fewer waiters, other caps, or ends its cool-down."""
        self._on_relief = listener
        self.core.tells_relief = True

    # ── Acquiring ─────────────────────────────────────────────────────────────────────────────

    def try_acquire(self, item: RequestAdmissionItem) -> RequestAdmissionDecision:
        """A lease, or why not; never waits, never overtakes."""
        decision = self.core.try_acquire(item, self._monotonic())
        if self.events.is_on:
            self.events.decided(decision)
        return decision

    def ask(self, item: RequestAdmissionItem) -> RequestAdmissionLease | RequestWaiter:
        """A lease if it may leave at once, else a place in the line; then `wait` must follow.

        Raises:
            RequestAdmissionError: there will be none.
        """
        answer = self.core.ask(item, self._monotonic())
        if isinstance(answer, RequestAdmissionLease):
            if self.events.is_on:
                self.events.acquired_at_once(answer)
            return answer
        self._begin_to_wait(answer)
        return answer

    async def wait(self, waiter: RequestWaiter) -> RequestAdmissionLease:
        """Wait until it is a waiter's turn; RequestAdmissionError if that will never be."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._answers[waiter] = future
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
        answer = self.ask(item)
        return answer if isinstance(answer, RequestAdmissionLease) else await self.wait(answer)

    def acquire_sync(self, item: RequestAdmissionItem) -> RequestAdmissionLease:
        """The same for a thread: the request is handed to the loop, the thread waits.

        Raises:
            UsageError: this thread runs a loop, which would stand still meanwhile.
        """
        self._check_thread()
        ticket = _Ticket(item)
        with self._lock:
            if self._is_shut:
                raise _error(RequestAdmissionDenied(item, RequestDenialReason.SHUTDOWN))
            self._tickets.add(ticket)
        try:
            self._hand_over(self._begin, ticket)
            return ticket.answer.result()
        except RequestAdmissionError:
            raise
        except BaseException:  # the thread dies, or is interrupted: nobody will use the lease
            ticket.is_abandoned = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._abandon, ticket)
            raise

    # ── Releasing ─────────────────────────────────────────────────────────────────────────────

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome
    ) -> ReleaseResult:
        """A request has ended; never raises for a lease that is not held."""
        core = self.core
        result = core.release(lease, outcome, self._monotonic())
        if self.events.is_on:
            self.events.released(lease, outcome, result)
        if core.is_stirred or core.tells_relief:
            self._pump_soon()
        return result

    def release_sync(self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome) -> None:
        """The same for a thread, which does not wait for it."""
        with suppress(RuntimeError):  # the loop is closed: there is nothing to give back to
            self._loop.call_soon_threadsafe(self.release, lease, outcome)

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
        """From now on nothing leaves; whoever waits is told."""
        with self._lock:
            self._is_shut = True
            tickets = [*self._tickets]
        self._answer(self.core.shut())
        for ticket in tickets:  # handed over, and not seen by the loop yet
            if ticket.waiter is None:
                self._refuse(ticket, RequestDenialReason.SHUTDOWN)
        self._timer.cancel()

    # ── Waking ────────────────────────────────────────────────────────────────────────────────

    def _begin_to_wait(self, waiter: RequestWaiter) -> None:
        if waiter.denied is not None:
            self.events.decided(waiter.denied)
            raise _error(waiter.denied)
        if self.events.is_on:
            self.events.wait_started(waiter)
        self._pump_soon()

    def _give_up(self, waiter: RequestWaiter) -> None:
        self._answers.pop(waiter, None)
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
        if self._on_relief is not None:
            for resource in core.take_relieved():
                self._on_relief(resource)

    def _answer(self, answered: list[RequestWaiter]) -> None:
        events = self.events
        if events.is_on:
            events.told()
        for waiter in answered:
            if events.is_on:
                events.answered(waiter)
            answer = self._answers.pop(waiter, None)
            if isinstance(answer, _Ticket):
                self._answer_thread(answer, waiter)
            elif answer is not None and not answer.done():
                answer.set_result(None)

    # ── Threads ───────────────────────────────────────────────────────────────────────────────

    def _check_thread(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if threading.get_ident() != self._thread:
                return
        raise UsageError(
            "A request cannot be waited for in a thread whose loop would stand still meanwhile; "
            "use the async client here."
        )

    def _hand_over(self, call: Callable[[_Ticket], None], ticket: _Ticket) -> None:
        try:
            self._loop.call_soon_threadsafe(call, ticket)
        except RuntimeError:  # the loop is closed
            denied = RequestAdmissionDenied(ticket.item, RequestDenialReason.SHUTDOWN)
            raise _error(denied) from None

    def _begin(self, ticket: _Ticket) -> None:
        """On the loop: let a thread's request wait."""
        if ticket.is_abandoned or ticket.answer.done():
            self._drop(ticket)
            return
        now = self._monotonic()
        answer = self.core.ask(ticket.item, now)
        if isinstance(answer, RequestAdmissionLease):
            if self.events.is_on:
                self.events.acquired_at_once(answer)
            ticket.waiter = RequestWaiter(ticket.item, now, None)
            ticket.waiter.lease = answer
            self._answer_thread(ticket, ticket.waiter)
            return
        ticket.waiter = answer
        try:
            self._begin_to_wait(answer)
        except RequestAdmissionError as error:
            self._drop(ticket)
            ticket.answer.set_exception(error)
            return
        self._answers[answer] = ticket

    def _answer_thread(self, ticket: _Ticket, waiter: RequestWaiter) -> None:
        self._drop(ticket)
        if waiter.lease is None:
            self._refuse(ticket, waiter.denied.reason if waiter.denied else None)
        else:
            ticket.answer.set_result(waiter.lease)

    def _abandon(self, ticket: _Ticket) -> None:
        """On the loop: the thread that waited is gone, whatever it was given."""
        self._drop(ticket)
        if ticket.waiter is not None:
            self._give_up(ticket.waiter)

    def _refuse(self, ticket: _Ticket, reason: RequestDenialReason | None) -> None:
        self._drop(ticket)
        if not ticket.answer.done():
            denied = RequestAdmissionDenied(ticket.item, reason or RequestDenialReason.SHUTDOWN)
            ticket.answer.set_exception(_error(denied))

    def _drop(self, ticket: _Ticket) -> None:
        with self._lock:
            self._tickets.discard(ticket)


def _error(denied: RequestAdmissionDenied) -> RequestAdmissionError:
    resource = "/".join(denied.item.resource)
    return RequestAdmissionError(
        f"A request to {resource} did not leave: {denied.reason}.",
        denied.reason,
        denied.retry_after_seconds,
    )

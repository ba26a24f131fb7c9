# SPDX-License-Identifier: Apache-2.0
"""Waits for permits of request admission on an event loop, and emits the request events.

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
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.admission.requests.pressure import RequestPressureReader
from penstock.clock import Clock
from penstock.errors import AccountClosed, InternalError, RequestAdmissionError
from penstock.events.kinds import Correlation
from penstock.events.kinds import RequestEventKind as Kind
from penstock.events.sink import RequestEvents
from penstock.model.lease import ReleaseResult
from penstock.model.provider import AccountNote, RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome
from penstock.timers import Timer

#: The outcome of a request that was admitted and never sent.
NEVER_SENT = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED, tokens_used=0, was_sent=False)


class RequestEventEmitter:
    """Emits events about permits, and those that the core has pending."""

    def __init__(
        self, core: AdaptiveRequestAdmissionController, events: RequestEvents, run_id: str
    ) -> None:
        self._pending = core.pending_events
        self._events = events
        self._run = Correlation(run_id)
        self.is_on = core.pending_events.is_on = events.has_sinks

    def decided(self, decision: RequestAdmissionDecision) -> None:
        """Emit the decision on a request that does not wait."""
        self.flush()
        if isinstance(decision, RequestAdmissionLease):
            self._acquired(decision)
        else:
            numbers = dict(decision.numbers) if decision.numbers else {}
            if decision.retry_after_seconds is not None:
                numbers["retry_after_seconds"] = decision.retry_after_seconds
            self._emit(
                Kind.REQUEST_ACQUIRE_DENIED, decision.item, decision.reason.value, numbers or None
            )

    def acquired_at_once(self, lease: RequestAdmissionLease) -> None:
        """Emit a permit that was granted without waiting."""
        self.flush()
        if self._events.wants_steps:
            self._emit(Kind.REQUEST_WAIT_STARTED, lease.item)
            self._emit(Kind.REQUEST_WAIT_COMPLETED, lease.item, None, {"seconds": 0.0})
            self._acquired(lease)

    def wait_started(self, waiter: RequestWaiter) -> None:
        self.flush()
        self._emit(Kind.REQUEST_WAIT_STARTED, waiter.item)

    def wait_cancelled(self, waiter: RequestWaiter) -> None:
        self.flush()
        if waiter.lease is None and waiter.denied is None:
            reason = RequestDenialReason.CANCELLATION.value
            self._emit(Kind.REQUEST_WAIT_CANCELLED, waiter.item, reason)

    def answered(self, waiter: RequestWaiter) -> None:
        """Emit the answer to a waiter."""
        lease, denied = waiter.lease, waiter.denied
        if lease is not None:
            seconds = lease.acquired_at - waiter.since
            self._emit(Kind.REQUEST_WAIT_COMPLETED, waiter.item, None, {"seconds": seconds})
            self._acquired(lease)
        elif denied is not None:
            is_late = denied.reason is RequestDenialReason.QUEUE_TIMEOUT
            kind = Kind.REQUEST_WAIT_TIMEOUT if is_late else Kind.REQUEST_ACQUIRE_DENIED
            self._emit(kind, waiter.item, denied.reason.value)

    def sent(self, lease: RequestAdmissionLease) -> None:
        """Emit that a request with a lease is sent."""
        if self._events.wants_steps:
            self._emit(Kind.MODEL_REQUEST_STARTED, lease.item, None, None, lease.lease_id)

    def ended(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, facts: dict[str, float]
    ) -> None:
        """Emit the end of a request; to be called before its lease is released."""
        if self._events.wants_steps:
            if outcome.tokens_used is not None:
                facts["tokens"] = float(outcome.tokens_used)
            if outcome.retry_after_seconds is not None:
                facts["retry_after_seconds"] = outcome.retry_after_seconds
            self._emit(
                Kind.MODEL_REQUEST_COMPLETED,
                lease.item,
                outcome.outcome.value,
                facts,
                lease.lease_id,
            )

    def released(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, result: ReleaseResult
    ) -> None:
        self.flush()
        if result.released and self._events.wants_steps:
            self._emit(
                Kind.REQUEST_LEASE_RELEASED,
                lease.item,
                outcome.outcome.value,
                None,
                lease.lease_id,
            )

    def flush(self) -> None:
        """Emit what the core has pending."""
        if self._pending.pending:
            for event in self._pending.take():
                self._events.emit(
                    event.kind,
                    event.context or self._run,
                    event.resource,
                    event.reason,
                    event.numbers,
                    event.lease_id,
                )

    def _acquired(self, lease: RequestAdmissionLease) -> None:
        if self._events.wants_steps:
            numbers = {
                "limit": float(lease.current_adaptive_limit),
                "effective_max": float(lease.effective_max),
            }
            self._emit(Kind.REQUEST_LEASE_ACQUIRED, lease.item, None, numbers, lease.lease_id)

    def _emit(
        self,
        kind: Kind,
        item: RequestAdmissionItem,
        reason: str | None = None,
        numbers: dict[str, float] | None = None,
        lease_id: int | None = None,
    ) -> None:
        self._events.emit(
            kind, item.event_context or self._run, item.resource, reason, numbers, lease_id
        )


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
            raise self._error(answer.denied)
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

    def pause(self, resource: RequestResourceKey, seconds: float) -> None:
        """Let nothing leave for so long: another process was told so."""
        self.core.pause(resource, seconds, self._monotonic())
        self._pump_soon()

    def close_account(self, provider: str, said: str) -> AccountClosed:
        """Shut the account of a provider whose key cannot be read; return what to raise."""
        self.core.close_account(provider, said, self._monotonic())
        self._pump_soon()
        return self._closed(provider)

    def probe_account(self, provider: str) -> None:
        """Let the next request probe a closed account at once."""
        self.core.probe_account(provider, self._monotonic())
        self._pump_soon()

    def close_account_elsewhere(
        self, provider: str, note: AccountNote, closed_at: float, probe_at: float
    ) -> None:
        """Shut the account of a provider as another process has."""
        self.core.close_account_elsewhere(provider, note, closed_at, probe_at, self._monotonic())
        self._pump_soon()

    def open_account(self, provider: str) -> None:
        """Open the account of a provider: another process has found it open."""
        self.core.open_account(provider, self._monotonic())
        self._pump_soon()

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
        raise self._error(waiter.denied)

    def _error(self, denied: RequestAdmissionDenied) -> RequestAdmissionError | AccountClosed:
        if denied.reason is RequestDenialReason.ACCOUNT_CLOSED:
            return self._closed(denied.item.resource.provider)
        resource = "/".join(denied.item.resource)
        return RequestAdmissionError(
            f"A request to {resource} was not sent: {denied.reason}.",
            denied.reason,
            denied.retry_after_seconds,
        )

    def _closed(self, provider: str) -> AccountClosed:
        now = self._monotonic()
        account = self.core.tree.provider(provider, now).account
        return AccountClosed(
            f"A request to {provider!r} was not sent: its account is closed ({account.reason}).",
            account.status,
            max(account.probe_at - now, 0.0) if account.is_closed else 0.0,
        )

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

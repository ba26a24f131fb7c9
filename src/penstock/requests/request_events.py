# SPDX-License-Identifier: Apache-2.0
"""Emits the request events: permits asked for, granted, denied and released."""

from __future__ import annotations

from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import (
    RequestAdmissionDecision,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.events.kinds import Correlation
from penstock.events.kinds import RequestEventKind as Kind
from penstock.events.sink import RequestEvents
from penstock.model.lease import ReleaseResult
from penstock.model.request import RequestAdmissionItem, RequestReleaseOutcome


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
        if waiter.lease is None:
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

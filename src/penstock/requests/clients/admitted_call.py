# SPDX-License-Identifier: Apache-2.0
"""How is a call admitted that is not HTTP?"""

from __future__ import annotations

from types import TracebackType

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.clock import Duration, to_seconds
from penstock.errors import UsageError
from penstock.model.request import (
    RequestAdmissionItem,
    RequestOutcome,
    RequestReleaseOutcome,
)
from penstock.requests.executor import ModelRequestExecutor
from penstock.requests.outcomes import outcome_of_error
from penstock.requests.thread_bridge import Handover
from penstock.requests.usage import check_tokens
from penstock.retry.classify import FailureClass, classify
from penstock.retry.retry_after import clamp


class AdmittedCall:
    """One call while it is in flight; whoever makes it may say how it ended."""

    __slots__ = ("_outcome", "_retry_after_seconds", "_tokens_used")

    def __init__(self) -> None:
        self._outcome: RequestOutcome | None = None
        self._retry_after_seconds: float | None = None
        self._tokens_used: int | None = None

    def rate_limited(self, retry_after: Duration | None = None) -> None:
        """The service refused, and asks for so many seconds."""
        self._outcome = RequestOutcome.RATE_LIMITED
        self._retry_after_seconds = None if retry_after is None else clamp(to_seconds(retry_after))

    def failed(self) -> None:
        """The service is ill."""
        self._outcome = RequestOutcome.PROVIDER_FAILURE

    def used(self, tokens: int | None) -> None:
        """So many tokens were really used; None: nobody has told."""
        if tokens is not None:
            check_tokens("used(...)", tokens)
        self._tokens_used = tokens

    def ending(self, error: BaseException | None, now: float) -> RequestReleaseOutcome:
        """What was said, or else what the error of the call says."""
        outcome, wait_seconds = self._outcome, self._retry_after_seconds
        if outcome is None:
            outcome = RequestOutcome.SUCCESS
            if error is not None:
                outcome = outcome_of_error(error, now)
                classified = classify(error, now=now)
                if classified.category is FailureClass.SERVICE and _is_refusal(error, classified):
                    outcome, wait_seconds = RequestOutcome.RATE_LIMITED, classified.wait_seconds
        return RequestReleaseOutcome(outcome, wait_seconds, (), self._tokens_used)


def _is_refusal(error: BaseException, classified: object) -> bool:
    if getattr(classified, "wait_seconds", None) is not None:
        return True
    status = getattr(error, "status_code", None)
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status == 429


class Admission:
    """`async with` or, in a thread, `with`: a permit for the time inside."""

    __slots__ = ("_call", "_executor", "_handover", "_is_used", "_item", "_lease")

    def __init__(
        self, executor: ModelRequestExecutor, handover: Handover, item: RequestAdmissionItem
    ) -> None:
        self._executor = executor
        self._handover = handover
        self._item = item
        self._call = AdmittedCall()
        self._lease: RequestAdmissionLease | None = None
        self._is_used = False

    async def __aenter__(self) -> AdmittedCall:
        self._check_first()
        await self._begin()
        return self._call

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release(error)

    def __enter__(self) -> AdmittedCall:
        self._check_first()
        self._executor.note_given(self._handover.call(self._begin))
        return self._call

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handover.tell(lambda: self._release(error))

    def _check_first(self) -> None:
        if self._is_used:
            raise UsageError(
                "A permit of ctx.admit(...) is for one call; write ctx.admit(...) again for each."
            )
        self._is_used = True

    async def _begin(self) -> RequestAdmissionLease:
        self._lease = lease = await self._executor.acquire(self._item)
        self._executor.admission.telling.sent(lease)
        return lease

    def _release(self, error: BaseException | None) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            executor = self._executor
            ending = self._call.ending(error, executor.clock.now())
            seconds = executor.clock.monotonic() - lease.acquired_at
            executor.admission.telling.ended(lease, ending, {"seconds": seconds})
            executor.admission.release(lease, ending)

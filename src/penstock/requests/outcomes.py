# SPDX-License-Identifier: Apache-2.0
"""How did an attempt end: for the limit, not for the job?"""

from __future__ import annotations

import asyncio

from penstock.errors import AttemptOver, ReplyOverdue, ReplyRefused
from penstock.model.request import RequestOutcome
from penstock.requests.decoding import CannotDecode
from penstock.requests.headers import HeadReading
from penstock.retry.classify import FailureClass, classify

PEEK_BYTES = 65_536  # of a body, for a classifier

_ILL = frozenset({408, 425})


def outcome_of_status(status: int, head: HeadReading) -> RequestOutcome:
    """What a reply's status says; other 4xx are answers like any other."""
    if status < 400:
        return RequestOutcome.SUCCESS
    if status == 429 or (status == 503 and head.retry_after_seconds is not None):
        return RequestOutcome.RATE_LIMITED
    # GitHub refuses with 403: either it says how long, or a bucket is empty.
    if status == 403 and (
        head.retry_after_seconds is not None
        or any(reading.remaining == 0 for reading in head.readings)
    ):
        return RequestOutcome.RATE_LIMITED
    if status >= 500 or status in _ILL:
        return RequestOutcome.PROVIDER_FAILURE
    return RequestOutcome.SUCCESS


def outcome_of_error(error: BaseException, now: float) -> RequestOutcome:
    """What an error while sending or reading says; `now` is seconds since 1970 UTC."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit | AttemptOver):
        return RequestOutcome.LOCAL_CANCELLED
    if isinstance(error, CannotDecode | ReplyRefused):
        return RequestOutcome.PROVIDER_FAILURE
    name = type(error).__name__
    if name == "PoolTimeout":
        return RequestOutcome.LOCAL_TIMEOUT
    if isinstance(error, TimeoutError | ReplyOverdue) or "Timeout" in name:
        return RequestOutcome.PROVIDER_TIMEOUT
    if classify(error, now=now).category is FailureClass.UNKNOWN:
        return RequestOutcome.UNEXPECTED_EXCEPTION
    return RequestOutcome.PROVIDER_FAILURE

# SPDX-License-Identifier: Apache-2.0
"""What our own clients raise, as the retry baseline sees it."""

from __future__ import annotations

import importlib

import httpx2
import pytest

from penstock.errors import (
    AttemptOver,
    ProviderThrottled,
    ProviderUnavailable,
    ReplyOverdue,
    ReplyRefused,
    RequestAdmissionError,
)
from penstock.retry.classify import Classified, FailureClass, classify

NODE, SERVICE, UNKNOWN = FailureClass.NODE, FailureClass.SERVICE, FailureClass.UNKNOWN
REQUEST = httpx2.Request("GET", "http://127.0.0.1/")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProviderThrottled("no", 429, 40.0), Classified(SERVICE, 40.0)),
        (ProviderThrottled("no", 429), Classified(SERVICE)),
        (ProviderThrottled("no", 403, 100.0), Classified(SERVICE, 100.0)),
        (ProviderUnavailable("ill", 502), Classified(SERVICE)),
        (ProviderUnavailable("ill", 200), Classified(SERVICE)),  # a classifier said so
        (ProviderUnavailable("ill", 500, 7.0), Classified(SERVICE, 7.0)),
        (RequestAdmissionError("waited", "queue_timeout"), Classified(SERVICE)),
        (RequestAdmissionError("waited", "cooldown", 3.0), Classified(SERVICE, 3.0)),
        (ReplyOverdue("late"), Classified(NODE)),
        (ReplyRefused("too large"), Classified(UNKNOWN)),  # it would be so again
        (AttemptOver("cancelled"), Classified(UNKNOWN)),
    ],
)
def test_what_our_clients_raise_is_charged_only_if_trying_again_cannot_help(
    error: Exception, expected: Classified
) -> None:
    assert classify(error, now=0.0) == expected


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_an_error_of_ours_is_recognised_under_that_of_an_sdk(sdk: str) -> None:
    wrapped = importlib.import_module(sdk).APIConnectionError(request=REQUEST)
    assert classify(wrapped, now=0.0) == Classified(NODE)

    wrapped.__cause__ = ReplyRefused("too large")
    assert classify(wrapped, now=0.0) == Classified(UNKNOWN)

    wrapped.__cause__ = RequestAdmissionError("waited", "cooldown", 3.0)
    assert classify(wrapped, now=0.0) == Classified(SERVICE, 3.0)

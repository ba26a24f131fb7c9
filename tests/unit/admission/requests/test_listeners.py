# SPDX-License-Identifier: Apache-2.0
"""Listeners hear every change once and in order; counts keep a minute, the run and maxima."""

from __future__ import annotations

import pytest

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.requests.listeners import ModelCounts, RequestCounts
from penstock.admission.requests.provider_tree import MODELS_KEPT
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome
from penstock.model.run import LimitKind
from tests.requests import SUCCESS, Core, item, policy


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    counts = ModelCounts()
    counts.add(0.2, 5)
    counts.add(0.9, 5)
    counts.add(30.0, 1)

    assert counts.last_minute(59.9) == (3, 11)
    assert counts.last_minute(60.1) == (1, 1)
    assert counts.last_minute(1000.0) == (0, 0)


def test_it_holds_no_more_than_a_minute_however_long_it_counts() -> None:
    counts = ModelCounts()
    for second in range(10_000):
        counts.add(float(second), 1)

    assert len(counts._seconds) <= 61
    assert counts.last_minute(9_999.0) == (60, 60)


def test_failures_are_in_a_row_until_a_reply_is_better_and_our_own_doing_is_no_reply() -> None:
    counts = ModelCounts()
    counts.ended(RequestOutcome.PROVIDER_FAILURE, 0.0)
    counts.ended(RequestOutcome.LOCAL_CANCELLED, 0.0)
    counts.ended(RequestOutcome.PROVIDER_TIMEOUT, 0.0)

    assert (counts.failed, counts.failed_in_row, counts.refused) == (2, 2, 0)

    counts.ended(RequestOutcome.RATE_LIMITED, 0.0)

    assert (counts.failed, counts.failed_in_row, counts.refused) == (2, 0, 1)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RequestReleaseOutcome(RequestOutcome.SUCCESS), 100),
        (RequestReleaseOutcome(RequestOutcome.SUCCESS, tokens_used=7), 7),
        (RequestReleaseOutcome(RequestOutcome.SUCCESS, is_error=True), 0),  # such as 400
        (RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, is_error=True), 0),
        (RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE), 0),
        (RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE, tokens_used=5), 5),
    ],
)
def test_what_was_not_answered_has_used_no_tokens(
    outcome: RequestReleaseOutcome, expected: int
) -> None:
    assert outcome.tokens_served(100) == expected
    assert outcome.tokens_served(None) in (0, outcome.tokens_used)


class Heard(list[str]):
    """A listener that notes what it is told."""

    def queued(self, item: RequestAdmissionItem) -> None:
        self.append("queued")

    def dequeued(self, item: RequestAdmissionItem) -> None:
        self.append("dequeued")

    def granted(self, lease: RequestAdmissionLease) -> None:
        self.append("granted")

    def released(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> None:
        self.append("released")

    def held_back(self, model: ProviderModelKey, kind: LimitKind, level: float | None) -> None:
        self.append(f"held back by {kind} {level}")


def test_a_listener_hears_every_change_once_and_in_order() -> None:
    core, heard = Core(policy(1)), Heard()
    counts = RequestCounts(core.tree.models)
    core.listen(heard)
    core.listen(counts)

    first = core.try_acquire(item(), 0.0)
    assert isinstance(first, RequestAdmissionLease)
    waiter = core.enqueue(item(), 0.0)
    core.pump(0.0)
    core.release(first, SUCCESS, 1.0)
    core.release(first, SUCCESS, 1.0)  # a second time is not heard of
    core.pump(1.0)

    assert waiter.lease is not None
    assert heard == [
        "granted",
        "queued",
        "held back by max_parallel 1.0",
        "released",
        "dequeued",
        "granted",
    ]
    found = counts.of(item().resource.provider_model)
    assert (found.requests, found.in_flight, found.in_flight_max) == (1, 1, 1)
    assert (found.waiting, found.waiting_max, counts.in_flight_max) == (0, 1, 1)


def test_models_that_admission_has_forgotten_are_forgotten_and_no_others() -> None:
    known = {ProviderModelKey("p", f"m{n}") for n in range(10)}
    counts = RequestCounts(known)
    for n in range(MODELS_KEPT + 1):
        counts.queued(item(RequestResourceKey("p", f"m{n}", "chat")))

    assert len(counts._models) == len(known) + 1
    assert counts.of(ProviderModelKey("p", "m9")).waiting == 1
    assert counts.of(ProviderModelKey("p", "m10")).waiting == 0

# SPDX-License-Identifier: Apache-2.0
"""Who no longer answers, though its lease goes on; and whose limits add up?"""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.provider import ProviderModelKey
from penstock.model.views import WorkerView
from penstock.model.worker import (
    ProviderUse,
    WorkerStatus,
    find_unresponsive,
    reported_uses,
    responsive_workers,
    unresponsive_workers,
)
from tests.live_sample import NOW, worker

STATUS = WorkerStatus(
    captured_at=NOW,
    process="mark",
    lease_ttl_seconds=30.0,
    beat_seconds=10.0,
    running=3,
    waiting=2,
)


def view(left: float, status: WorkerStatus | None = STATUS) -> WorkerView:
    return msgspec.structs.replace(worker(status), alive=left > 0, lease_seconds=left)


def nobody_is_gone(mark: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("left", "silent"),
    [(30.0, False), (20.0, False), (15.1, False), (14.9, True), (0.1, True), (0.0, False)],
)
def test_a_renewal_that_is_half_a_beat_late_is_silence(left: float, silent: bool) -> None:
    found = find_unresponsive(view(left), nobody_is_gone)

    assert (found is not None) is silent
    if found is not None:
        assert (found.lease_seconds, found.is_gone, found.jobs) == (left, False, 5)


def test_a_process_that_is_gone_is_silent_at_once() -> None:
    found = unresponsive_workers([view(29.0)], lambda mark: mark == "mark")

    assert [one.is_gone for one in found.values()] == [True]
    assert responsive_workers([view(29.0)], lambda mark: True) == []


@pytest.mark.parametrize("status", [None, WorkerStatus(captured_at=NOW)])
def test_of_a_worker_that_tells_no_times_nothing_is_said(status: WorkerStatus | None) -> None:
    assert find_unresponsive(view(1.0, status), lambda mark: True) is None


def using(
    limit: int, place: int | None, pid: int, *, solo: bool = False, stopping: bool = False
) -> WorkerView:
    use = ProviderUse(provider="ai", model="m", limit=limit, limit_max=256, in_flight=1)
    said = WorkerStatus(
        captured_at=NOW, place=place, providers=(use,), solo=solo, stopping=stopping
    )
    return msgspec.structs.replace(worker(said, pid=pid), started_at=pid)


def limits(*views: WorkerView) -> list[int]:
    told = reported_uses(views)[ProviderModelKey("ai", "m")]
    assert len(told) == len(views)
    return [one.use.limit for one in told if one.is_own_part]


def test_each_place_of_a_run_has_one_part_of_a_limit() -> None:
    assert limits(using(8, 0, 1), using(9, 1, 2)) == [8, 9]
    assert limits(using(8, 0, 1), using(9, 0, 2)) == [9]  # who came later has the place
    assert limits(using(8, 0, 1), using(1, 0, 2, solo=True)) == [8]
    assert limits(using(8, 0, 1, stopping=True), using(9, 0, 2)) == [9]
    assert limits(using(8, 0, 2, stopping=True), using(9, 0, 1)) == [9]
    assert limits(using(1, 0, 2, solo=True)) == [1]
    assert limits(using(8, None, 1), using(9, None, 2)) == [8, 9]  # nobody knows

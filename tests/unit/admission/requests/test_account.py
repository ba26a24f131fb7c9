# SPDX-License-Identifier: Apache-2.0
"""The account gate lets single requests probe, and only their replies open it."""

from __future__ import annotations

import pytest

from penstock.admission.requests.account import AccountGate
from penstock.admission.requests.decisions import (
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.pressure import RequestPressureReader
from penstock.model.provider import ANY, RequestResourceKey
from penstock.model.request import RequestOutcome, RequestReleaseOutcome
from tests.requests import CANCELLED, CHAT, EMBEDDING, SUCCESS, Core, item, policy

CLOSED = RequestReleaseOutcome(RequestOutcome.ACCOUNT_CLOSED, status=401, said="no such key")
FAILED = RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE)
UNSENT = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED, was_sent=False)


def leased(core: Core, now: float) -> RequestAdmissionLease:
    found = core.try_acquire(item(), now)
    assert isinstance(found, RequestAdmissionLease)
    return found


def test_intervals_double_up_to_ten_minutes() -> None:
    gate, now, waits = AccountGate(), 0.0, []
    gate.granted(1)
    assert gate.ended(1, CLOSED, now)
    for lease in range(2, 9):
        waits.append(gate.probe_at - now)
        now = gate.probe_at
        assert not gate.refuses(now)
        gate.granted(lease)
        assert gate.is_probing
        gate.ended(lease, CLOSED, now)
    assert waits == [30, 60, 120, 240, 480, 600, 600]


def test_nothing_leaves_while_it_is_shut_and_who_waits_is_denied() -> None:
    core = Core(policy(1))
    first = leased(core, 0.0)
    waiters = [core.enqueue(item(resource), 0.0) for resource in (CHAT, EMBEDDING)]
    core.release(first, CLOSED, 1.0)
    answered = core.pump(1.0)
    assert {one.denied and one.denied.reason for one in answered} == {
        RequestDenialReason.ACCOUNT_CLOSED
    }
    assert set(answered) == set(waiters)
    denied = core.try_acquire(item(), 2.0)
    assert isinstance(denied, RequestAdmissionDenied)
    assert (denied.reason, denied.retry_after_seconds) == ("account_closed", 29.0)
    assert core.limit().consecutive_refusals == 0  # it is no refusal


def test_one_request_probes_and_the_others_wait_for_its_end() -> None:
    core = Core(policy(8))
    core.release(leased(core, 0.0), CLOSED, 0.0)
    probe = core.acquire_or_enqueue(item(), 30.0)
    assert isinstance(probe, RequestAdmissionLease)
    waiter = core.enqueue(item(), 30.0)
    assert isinstance(core.try_acquire(item(), 30.0), RequestAdmissionDenied)
    assert core.pump(31.0) == []
    core.release(probe, SUCCESS, 32.0)
    assert core.pump(32.0) == [waiter]
    assert waiter.lease is not None
    assert isinstance(core.try_acquire(item(), 32.0), RequestAdmissionLease)


@pytest.mark.parametrize(("ending", "probe_at"), [(FAILED, 61.0), (UNSENT, 30.0)])
def test_a_probe_that_says_nothing_leaves_it_shut(
    ending: RequestReleaseOutcome, probe_at: float
) -> None:
    core = Core(policy(8))
    core.release(leased(core, 0.0), CLOSED, 0.0)
    core.release(leased(core, 30.0), ending, 31.0)
    account = core.tree.providers["p"].account
    assert account.is_closed
    assert account.probe_at == probe_at


def test_what_left_before_neither_opens_it_nor_lengthens_its_pause() -> None:
    core = Core(policy(8))
    early = [leased(core, 0.0) for _ in range(4)]
    account = core.tree.providers["p"].account
    for lease, ending in zip(early, (CLOSED, SUCCESS, CLOSED, CANCELLED), strict=True):
        core.release(lease, ending, 1.0)
    assert account.is_closed
    assert account.probe_at == 31.0


def test_pressure_shows_a_pause_and_then_room_for_one() -> None:
    core, now = Core(policy(8)), [0.0]
    core.release(leased(core, 0.0), CLOSED, 0.0)
    reader = RequestPressureReader(core, lambda: now[0])
    for key in (CHAT, CHAT._replace(domain=ANY), RequestResourceKey("p", ANY, ANY)):
        now[0] = 10.0
        shut = reader.snapshot(key)
        now[0] = 30.0
        due = reader.snapshot(key)
        assert shut is not None
        assert due is not None
        assert (shut.cooldown_seconds, due.cooldown_seconds, due.limit) == (20.0, 0.0, 1)


def test_another_key_is_probed_at_once() -> None:
    core = Core(policy(8))
    core.release(leased(core, 0.0), CLOSED, 0.0)
    core.probe_account("p", 3.0)
    core.release(leased(core, 3.0), SUCCESS, 4.0)
    assert not core.tree.providers["p"].account.is_closed

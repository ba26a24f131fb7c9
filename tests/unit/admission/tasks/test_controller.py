# SPDX-License-Identifier: Apache-2.0
"""Are the books of task admission exact, and does every answer say why?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.admission.tasks.controller import (
    TaskAdmissionConfig,
    TaskAdmissionController,
)
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    Until,
)
from penstock.admission.tasks.policies import (
    ALLOWED,
    NO_CHANGE,
    Ledger,
    PolicyDecision,
    PolicyStateDelta,
)
from penstock.admission.tasks.queue import FairTaskQueue, QueueView
from penstock.errors import InternalError, UsageError
from penstock.model.lease import ReleaseReason
from penstock.model.task import SchedulableTask, TaskGroupSpec
from tests.scheduling import task, tasks, turn


class FixedPolicy:
    """Answers what it is told to."""

    def __init__(self, decision: PolicyDecision = ALLOWED) -> None:
        self.decision = decision
        self.start = self.end = NO_CHANGE

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        return self.decision

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        return self.start

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        return self.end


class Desk:
    """A queue, a controller and a clock."""

    def __init__(self, policy: FixedPolicy | None = None, submissions: int = 9, **limits: int):
        self.now = 0.0
        self.queue = FairTaskQueue()
        self.controller = TaskAdmissionController(
            TaskAdmissionConfig(submissions, limits),
            policy,
            monotonic=lambda: self.now,
            generation="mine",
        )

    def acquire(self, item: SchedulableTask) -> TaskAdmissionLease:
        lease = self.controller.try_acquire(item, self.queue.view())
        assert isinstance(lease, TaskAdmissionLease)
        return lease

    def denial(self, item: SchedulableTask) -> TaskAdmissionDenied:
        denied = self.controller.try_acquire(item, self.queue.view())
        assert isinstance(denied, TaskAdmissionDenied)
        answer = self.controller.is_eligible(item, self.queue.view())
        assert answer == denied
        assert not answer
        return denied


# ── Every reason for a denial ─────────────────────────────────────────────────────────────────


def denied_no_capacity() -> TaskAdmissionDenied:
    desk = Desk(r=1)
    desk.acquire(task(1, needs={"r": 1}))
    return desk.denial(task(2, needs={"r": 1}))


def denied_group_cap() -> TaskAdmissionDenied:
    desk = Desk(r=4)
    desk.queue.enqueue(tasks(2, "peer", {"r": 1}))
    for n in range(2):
        desk.acquire(task(n, "a", {"r": 1}))
    return desk.denial(task(2, "a", {"r": 1}))


def denied_borrow_debt() -> TaskAdmissionDenied:
    desk = Desk(r=4)
    for n in range(3):
        desk.acquire(task(n, "a", {"r": 1}))
    desk.queue.enqueue(tasks(2, "peer", {"r": 1}))
    return desk.denial(task(3, "a", {"r": 1}))


def denied_shutdown() -> TaskAdmissionDenied:
    desk = Desk()
    assert desk.controller.is_eligible(task(1), desk.queue.view())
    desk.controller.shut()
    return desk.denial(task(1))


def denied_policy() -> TaskAdmissionDenied:
    return Desk(FixedPolicy(PolicyDecision(DenialReason.POLICY, Until.GATE))).denial(task(1))


DENIALS: dict[DenialReason, tuple[Callable[[], TaskAdmissionDenied], Until]] = {
    DenialReason.NO_CAPACITY: (denied_no_capacity, Until.CAPACITY),
    DenialReason.GROUP_CAP: (denied_group_cap, Until.PEERS),
    DenialReason.BORROW_DEBT: (denied_borrow_debt, Until.PEERS),
    DenialReason.SHUTDOWN: (denied_shutdown, Until.NEVER),
    DenialReason.POLICY: (denied_policy, Until.GATE),
}


@pytest.mark.parametrize("reason", DenialReason)
def test_every_denial_says_why_and_what_would_change_it(reason: DenialReason) -> None:
    provoke, until = DENIALS[reason]

    denied = provoke()

    assert (denied.reason, denied.until) == (reason, until)


def test_a_denial_for_lack_carries_the_numbers() -> None:
    denied = denied_no_capacity()

    assert denied.resource == "r"
    assert denied.numbers == {"limit": 1, "leased": 1, "asked": 1}


def test_a_request_beyond_the_limit_waits_for_nothing_but_another_limit() -> None:
    denied = Desk(r=2).denial(task(1, needs={"r": 3}))

    assert (denied.reason, denied.until) == (DenialReason.NO_CAPACITY, Until.NEVER)


# ── Every end of a release ────────────────────────────────────────────────────────────────────


def _duplicate(desk: Desk, lease: TaskAdmissionLease) -> TaskAdmissionLease:
    desk.controller.release(lease)
    return lease


RELEASES: dict[ReleaseReason, Callable[[Desk, TaskAdmissionLease], TaskAdmissionLease]] = {
    ReleaseReason.RELEASED: lambda _, lease: lease,
    ReleaseReason.DUPLICATE: _duplicate,
    ReleaseReason.STALE_LEASE: lambda _, lease: msgspec.structs.replace(lease, item=task("x")),
    ReleaseReason.WRONG_CONTROLLER_GENERATION: lambda _, lease: msgspec.structs.replace(
        lease, controller_generation="another"
    ),
    ReleaseReason.UNKNOWN_LEASE: lambda _, lease: msgspec.structs.replace(lease, lease_id=77),
}


@pytest.mark.parametrize("reason", ReleaseReason)
def test_only_the_one_lease_that_is_held_moves_a_counter(reason: ReleaseReason) -> None:
    desk = Desk(r=3)
    lease = desk.acquire(task(1, "a", {"r": 2}))
    given = RELEASES[reason](desk, lease)
    before = desk.controller.view()
    desk.controller.take_changes()

    result = desk.controller.release(given)

    assert result.reason is reason
    assert result.released is (reason is ReleaseReason.RELEASED)
    assert bool(result.diagnostics) is not result.released
    assert (desk.controller.view() == before) is not result.released
    assert (desk.controller.take_changes() is None) is not result.released


def test_a_lease_tells_what_it_holds_and_since_when() -> None:
    desk = Desk(r=3)
    desk.now = 12.5

    lease = desk.acquire(task(1, "a", {"r": 2}))

    assert lease.resources == {"submission": 1, "r": 2}
    assert (lease.acquired_at, lease.controller_generation) == (12.5, "mine")


def test_the_view_shows_the_ledger_exactly() -> None:
    desk = Desk(r=3)
    first = desk.acquire(task(1, "a", {"r": 2}))
    desk.acquire(task(2, "b", {"r": 1, "unlimited": 4}))

    view = desk.controller.view()

    assert view.resource_limits == {"submission": 9, "r": 3}
    assert view.resources_available == {"submission": 7, "r": 0}
    assert view.leased_resources == {"submission": 2, "r": 3, "unlimited": 4}
    assert view.leased_resources_by_group["a"] == {"submission": 1, "r": 2}
    assert view.running_counts_by_group == {"a": 1, "b": 1}
    assert repr(desk.controller).startswith("<TaskAdmissionController 2 leases")

    desk.controller.release(first)

    assert desk.controller.view().resources_available == {"submission": 8, "r": 2}
    assert desk.controller.running("a") == desk.controller.held("a", "r") == 0
    assert view.resources_available["r"] == 0  # a copy


def test_a_denial_takes_nothing() -> None:
    desk = Desk(r=1, s=1)
    desk.acquire(task(1, needs={"s": 1}))
    before = desk.controller.view()

    desk.denial(task(2, needs={"r": 1, "s": 1}))

    assert desk.controller.view() == before


def test_a_count_that_would_become_negative_is_an_internal_error() -> None:
    desk = Desk(r=3)
    lease = desk.acquire(task(1, "a", {"r": 2}))
    desk.controller._leased["r"] = 1  # as if somebody had given back what was never taken

    with pytest.raises(InternalError, match="The count of resource 'r' would fall to -1"):
        desk.controller.release(lease)


def test_a_debt_that_would_become_negative_is_an_internal_error() -> None:
    policy = FixedPolicy()
    policy.end = PolicyStateDelta((("a", "r", -1),))
    desk = Desk(policy, r=3)
    lease = desk.acquire(task(1, "a", {"r": 1}))

    with pytest.raises(InternalError, match="would fall to -1"):
        desk.controller.release(lease)


def test_the_controller_books_what_the_policy_says() -> None:
    policy = FixedPolicy()
    policy.start, policy.end = (
        PolicyStateDelta((("a", "r", 2),)),
        PolicyStateDelta((("a", "r", -2),)),
    )
    desk = Desk(policy, r=3)

    lease = desk.acquire(task(1, "a", {"r": 1}))
    assert desk.controller.debt("a", "r") == 2

    desk.controller.release(lease)
    assert desk.controller.view().policy_debt_by_group_resource == {}


def test_a_second_release_is_known_however_many_came_since_and_nothing_is_kept_for_it() -> None:
    desk = Desk()
    first = desk.acquire(task(0))
    desk.controller.release(first)

    for n in range(10_000):
        desk.controller.release(desk.acquire(task(n)))

    assert desk.controller.release(first).reason is ReleaseReason.DUPLICATE
    assert desk.controller.leases == 0
    never = msgspec.structs.replace(first, lease_id=10**9)
    assert desk.controller.release(never).reason is ReleaseReason.UNKNOWN_LEASE


def test_an_answer_is_not_kept_beyond_a_change_of_the_ledger() -> None:
    desk = Desk(r=1)
    item, other = task(1, needs={"r": 1}), task(2, needs={"r": 1})
    assert desk.controller.is_eligible(item, desk.queue.view()) is True

    desk.acquire(other)

    assert desk.denial(item).reason is DenialReason.NO_CAPACITY


def test_a_raised_limit_lets_more_start_and_a_lowered_one_takes_nothing_away() -> None:
    desk = Desk(r=1)
    desk.queue.enqueue(tasks(9, "a", {"r": 1}))
    held = turn(desk.queue, desk.controller)

    desk.controller.set_limit("r", 3)
    held += turn(desk.queue, desk.controller)
    assert len(held) == 3

    desk.controller.set_limit("r", 1)
    assert desk.controller.view().resources_available["r"] == -2
    desk.controller.release(held.pop())
    assert turn(desk.queue, desk.controller) == []
    desk.controller.release(held.pop())
    desk.controller.release(held.pop())
    assert len(turn(desk.queue, desk.controller)) == 1

    desk.controller.set_limit("r", None)
    assert len(turn(desk.queue, desk.controller)) == 5
    assert desk.controller.limit("r") is None


def test_a_limit_of_zero_lets_nothing_start_until_it_is_raised() -> None:
    desk = Desk(r=0)
    desk.queue.enqueue([*tasks(2, "a", {"r": 1}), *tasks(2, "b")])

    assert [lease.item.group.key for lease in turn(desk.queue, desk.controller)] == ["b", "b"]

    desk.controller.set_limit("r", 2)
    assert len(turn(desk.queue, desk.controller)) == 2


def test_explain_blocked_names_the_reasons_of_all_that_is_queued_most_first() -> None:
    desk = Desk(r=1)
    desk.queue.enqueue(
        [*tasks(4, "a", {"r": 1}), *tasks(3, "b", {"r": 1}), task("z", needs={"r": 2})]
    )
    turn(desk.queue, desk.controller)

    summary = desk.controller.explain_blocked(desk.queue.view())

    assert summary.queued_count == 7
    assert summary.dominant_denial_reasons == {DenialReason.NO_CAPACITY: 7}
    assert summary.dominant is DenialReason.NO_CAPACITY
    assert summary.available_after is None


def test_explain_blocked_is_empty_for_an_empty_queue() -> None:
    desk = Desk()

    summary = desk.controller.explain_blocked(desk.queue.view())

    assert (summary.queued_count, summary.dominant) == (0, None)


def test_a_gate_with_a_deadline_opens_when_it_has_passed() -> None:
    policy = FixedPolicy(PolicyDecision(DenialReason.POLICY, Until.GATE, available_after=5.0))
    desk = Desk(policy)
    desk.queue.enqueue([task(1, gate="p")])
    assert turn(desk.queue, desk.controller) == []
    policy.decision = ALLOWED

    desk.now = 4.0
    assert desk.controller.explain_blocked(desk.queue.view()).available_after == 1.0
    assert turn(desk.queue, desk.controller) == []
    desk.now = 5.0
    assert len(turn(desk.queue, desk.controller)) == 1


def test_a_gate_opens_at_once_when_its_pressure_changes() -> None:
    policy = FixedPolicy(PolicyDecision(DenialReason.POLICY, Until.GATE, available_after=5.0))
    desk = Desk(policy)
    desk.queue.enqueue([task(1, gate="p")])
    assert turn(desk.queue, desk.controller) == []
    policy.decision = ALLOWED

    desk.controller.pressure_changed("p")

    assert len(turn(desk.queue, desk.controller)) == 1


@pytest.mark.parametrize("limit", [-1, 1.5, True])
def test_a_limit_that_cannot_be_one_is_refused(limit: int) -> None:
    text = "The limit of resource 'r' is a whole number of at least 0"

    with pytest.raises(UsageError, match=text):
        TaskAdmissionConfig(resource_limits={"r": limit})
    with pytest.raises(UsageError, match=text):
        Desk().controller.set_limit("r", limit)


def test_groups_are_told_apart_by_their_key() -> None:
    desk = Desk(r=9)
    desk.acquire(task(1, TaskGroupSpec("a", 1), {"r": 2}))
    desk.acquire(task(2, TaskGroupSpec("a", 5), {"r": 1}))

    assert (desk.controller.running("a"), desk.controller.held("a", "r")) == (2, 3)
    assert desk.controller.leases == 2

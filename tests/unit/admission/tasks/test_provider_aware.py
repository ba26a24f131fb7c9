# SPDX-License-Identifier: Apache-2.0
"""Does a provider under pressure hold back its own tasks, and nobody else's?"""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    Until,
)
from penstock.admission.tasks.policies import (
    ALLOWED,
    BoundedBorrowTaskAdmissionPolicy,
    Ledger,
    PolicyDecision,
    PolicyStateDelta,
    ProviderAwareTaskAdmissionPolicy,
)
from penstock.admission.tasks.queue import FairTaskQueue, QueueView
from penstock.model.request import PressureSnapshot
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec

SLOT = SchedulerResourceRequest({"async": 1})
COOLING = PressureSnapshot(4, cooldown_seconds=30.0)


class FakePressure:
    """What request admission will say."""

    def __init__(self) -> None:
        self.snapshots: dict[Hashable, PressureSnapshot] = {}
        self.error: Exception | None = None

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        if self.error is not None:
            raise self.error
        return self.snapshots.get(key)


class FakePolicy:
    """Denies whatever it is told to, and remembers what it was told."""

    def __init__(self, decision: PolicyDecision = ALLOWED) -> None:
        self.decision = decision
        self.acquired: list[TaskAdmissionLease] = []
        self.released: list[TaskAdmissionLease] = []

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        return self.decision

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        self.acquired.append(lease)
        return PolicyStateDelta(((lease.item.group.key, "async", 1),))

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        self.released.append(lease)
        return PolicyStateDelta(((lease.item.group.key, "async", -1),))


class World:
    """A queue, a controller and the policy, as the loop puts them together."""

    def __init__(self, slots: int, inner: FakePolicy | None = None) -> None:
        self.now = 100.0
        self.pressure = FakePressure()
        self.policy = ProviderAwareTaskAdmissionPolicy(
            inner or BoundedBorrowTaskAdmissionPolicy(), self.pressure
        )
        self.admission = TaskAdmissionController(
            TaskAdmissionConfig(resource_limits={"async": slots}),
            self.policy,
            monotonic=lambda: self.now,
        )
        self.queue = FairTaskQueue()
        self.asked = 0

    def add(self, group: str, provider: str | None, count: int) -> None:
        self.queue.enqueue(
            SchedulableTask(f"{group}{n}", None, TaskGroupSpec(group), SLOT, provider)
            for n in range(count)
        )

    def judge(self, item: SchedulableTask, view: QueueView) -> bool | TaskAdmissionDenied:
        self.asked += 1
        return self.admission.is_eligible(item, view)

    def turn(self) -> list[TaskAdmissionLease]:
        """Start all that may."""
        started = []
        changes = self.admission.take_changes()
        if changes is not None:
            self.queue.reopen(changes)
        while (selection := self.queue.select_next(self.judge)) is not None:
            lease = self.admission.try_acquire(selection.item, selection.queue_view)
            assert isinstance(lease, TaskAdmissionLease)
            assert self.queue.commit(selection) is selection.item
            started.append(lease)
        return started

    def started(self) -> list[str]:
        return sorted(str(lease.item.task_id) for lease in self.turn())

    def denial(self, provider: str | None) -> TaskAdmissionDenied | TaskAdmissionLease:
        item = SchedulableTask("x", None, TaskGroupSpec("x"), SLOT, provider)
        return self.admission.try_acquire(item, self.queue.view())


@pytest.mark.parametrize(
    "snapshot",
    [
        PressureSnapshot(2, waiters=2),
        PressureSnapshot(0, waiters=1),
        PressureSnapshot(1, in_flight=1, waiters=1),
        PressureSnapshot(9, cooldown_seconds=0.001),
    ],
)
def test_a_task_is_held_back_while_its_provider_cannot_serve_it(
    snapshot: PressureSnapshot,
) -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = snapshot

    denied = world.denial("a")

    assert isinstance(denied, TaskAdmissionDenied)
    assert (denied.reason, denied.until) == (DenialReason.POLICY, Until.GATE)
    assert denied.numbers == {
        "limit": snapshot.limit,
        "in_flight": snapshot.in_flight,
        "waiters": snapshot.waiters,
        "cooldown_seconds": snapshot.cooldown_seconds,
    }


@pytest.mark.parametrize(
    "snapshot",
    [
        None,
        PressureSnapshot(2, in_flight=2, waiters=1),
        PressureSnapshot(0),
        PressureSnapshot(2, cooldown_seconds=0.0),
    ],
)
def test_a_task_passes_while_its_provider_has_room_in_its_line(
    snapshot: PressureSnapshot | None,
) -> None:
    world = World(slots=4)
    if snapshot is not None:
        world.pressure.snapshots["a"] = snapshot

    assert isinstance(world.denial("a"), TaskAdmissionLease)


def test_a_task_without_a_provider_knows_no_pressure() -> None:
    world = World(slots=4)
    world.pressure.error = RuntimeError("must not be asked")

    assert isinstance(world.denial(None), TaskAdmissionLease)
    assert world.policy.take_diagnostics() == ()


def test_the_rest_of_a_cool_down_is_when_to_ask_again() -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = PressureSnapshot(1, waiters=7, cooldown_seconds=12.5)
    world.pressure.snapshots["b"] = PressureSnapshot(1, waiters=7)

    cooling, crowded = world.denial("a"), world.denial("b")

    assert isinstance(cooling, TaskAdmissionDenied)
    assert isinstance(crowded, TaskAdmissionDenied)
    assert cooling.available_after == 12.5
    assert crowded.available_after is None


def test_a_provider_that_cools_down_holds_no_slot_that_another_could_use() -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = COOLING
    world.add("a", "a", 100)
    world.add("b", "b", 3)

    assert world.started() == ["b0", "b1", "b2"]
    assert world.admission.view().leased_resources_by_group == {"b": {"submission": 3, "async": 3}}
    assert world.queue.view().rivals("b", "async") == 0

    world.add("c", "b", 9)

    assert len(world.turn()) == 1  # the last slot, and nothing is kept for who cannot use it


def test_a_provider_that_cools_down_is_held_back_without_peers() -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = COOLING
    world.add("a", "a", 2)

    assert world.turn() == []
    summary = world.admission.explain_blocked(world.queue.view())
    assert summary.dominant is DenialReason.POLICY
    assert summary.available_after == 30.0


def test_who_waits_for_a_provider_is_not_asked_for_again_before_it_opens() -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = COOLING
    world.add("a", "a", 100)
    world.turn()
    asked = world.asked

    for _ in range(10):
        world.turn()

    assert (asked, world.asked) == (1, 1)


def test_the_end_of_a_cool_down_opens_the_gate() -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = COOLING
    world.add("a", "a", 2)
    world.turn()
    del world.pressure.snapshots["a"]

    world.now += 29.9
    assert world.turn() == []
    world.now += 0.1
    assert world.started() == ["a0", "a1"]


def test_a_release_of_the_provider_opens_its_gate_and_no_other() -> None:
    world = World(slots=4)
    for provider in "ab":
        world.pressure.snapshots[provider] = PressureSnapshot(1, in_flight=1, waiters=1)
        world.add(provider, provider, 1)
    assert world.turn() == []
    world.pressure.snapshots.clear()

    world.admission.pressure_changed("a")

    assert world.started() == ["a0"]


def test_a_sibling_of_another_provider_goes_past_the_gate() -> None:
    world = World(slots=4)
    world.pressure.snapshots["a"] = COOLING
    group = TaskGroupSpec("g")
    world.queue.enqueue(
        SchedulableTask(name, None, group, SLOT, provider)
        for name, provider in [("one", "a"), ("two", "b"), ("three", None)]
    )

    assert world.started() == ["three", "two"]


def test_a_source_that_raises_lets_tasks_pass_and_is_told_once() -> None:
    world = World(slots=4)
    world.pressure.error = RuntimeError("token=secret")
    world.add("a", "a", 3)

    assert world.started() == ["a0", "a1", "a2"]
    (told,) = world.policy.take_diagnostics()
    assert (told.code, told.about) == ("pressure_unreadable", "a")
    assert told.text == (
        "The pressure of 'a' cannot be read (RuntimeError), so tasks start whether their providers "
        "have room or not."
    )
    assert isinstance(world.denial("a"), TaskAdmissionLease)
    assert world.policy.take_diagnostics() == ()


def test_the_policy_inside_still_decides_and_is_told_of_leases() -> None:
    inner = FakePolicy()
    world = World(slots=4, inner=inner)

    lease = world.denial("a")
    assert isinstance(lease, TaskAdmissionLease)
    assert world.admission.debt("x", "async") == 1
    assert world.admission.release(lease).released
    inner.decision = PolicyDecision(DenialReason.GROUP_CAP, Until.PEERS, "async")
    denied = world.denial("a")

    assert (inner.acquired, inner.released) == ([lease], [lease])
    assert world.admission.debt("x", "async") == 0
    assert isinstance(denied, TaskAdmissionDenied)
    assert denied.reason is DenialReason.GROUP_CAP

# SPDX-License-Identifier: Apache-2.0
"""Do queue, controller and policies decide as a look at everything would?

The model is a list of queued tasks and a list of leases; every question is answered by counting.
`HYPOTHESIS_PROFILE=soak` runs for minutes and draws new examples each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    Until,
)
from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    BoundedBorrowTaskAdmissionPolicyConfig,
    StrictFairTaskAdmissionPolicy,
    TaskAdmissionPolicy,
)
from penstock.admission.tasks.queue import FairTaskQueue, QueueView
from penstock.model.lease import ReleaseReason
from penstock.model.task import SUBMISSION, SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from tests.depth import SOAK
from tests.scheduling import check_queue

PROFILE = settings(
    max_examples=3_000 if SOAK else 20,
    stateful_step_count=80 if SOAK else 40,
    derandomize=not SOAK,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining is slow
)
KEYS = "abcd"
GATES = ("p", "q")
RESOURCES = ("r", "s")
DEFAULT = BoundedBorrowTaskAdmissionPolicyConfig()
CONFIGS = {
    "default": DEFAULT,
    "no borrowing": BoundedBorrowTaskAdmissionPolicyConfig(default_borrow_ceiling=0),
    "ceilings": BoundedBorrowTaskAdmissionPolicyConfig(
        borrow_ceiling_by_group_resource={("a", "r"): 2, ("b", "r"): 0, ("a", "s"): 1}
    ),
    "reserve": BoundedBorrowTaskAdmissionPolicyConfig(
        dynamic_borrow_reserve_fraction=0.5, dynamic_borrow_max_reserved_slots=2
    ),
    "floor, repays late": BoundedBorrowTaskAdmissionPolicyConfig(
        strict_share_rounding="floor", repay_on_withheld_peer_pressure=False
    ),
}
NEEDS: list[dict[str, int]] = [
    {},
    {"r": 1},
    {"r": 1},
    {"s": 1},
    {"r": 1, "s": 1},
    {"r": 2},
    {"r": 3},
    {"r": 1, "s": 2},
    {"free": 1},
    {"submission": 2},
    {"submission": 2, "r": 1},
]
picks = st.integers(0, 255)
specs = st.builds(
    TaskGroupSpec,
    key=st.just(""),
    weight=st.sampled_from([1, 1, 1, 2, 5]),
    admitted_limit=st.sampled_from([None, None, 1, 2]),
)
drafts = st.tuples(
    st.sampled_from(KEYS),
    st.integers(0, len(NEEDS) - 1),
    st.integers(0, 2),
    st.sampled_from([None, None, None, *GATES]),
    st.sampled_from(["", "", "column", "judge"]),
    st.integers(1, 4),
)


class SchedulingMachine(RuleBasedStateMachine):
    """One policy; queued tasks and held leases are the whole model."""

    config: BoundedBorrowTaskAdmissionPolicyConfig | None = DEFAULT  # None: strict fair

    @initialize(
        spec=st.lists(specs, min_size=len(KEYS), max_size=len(KEYS)),
        limits=st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 5)),
    )
    def begin(self, spec: list[TaskGroupSpec], limits: tuple[int, int, int]) -> None:
        self.specs = {
            key: msgspec.structs.replace(one, key=key) for key, one in zip(KEYS, spec, strict=True)
        }
        self.limits: dict[str, int] = dict(zip((SUBMISSION, "r", "s"), limits, strict=True))
        policy: TaskAdmissionPolicy = StrictFairTaskAdmissionPolicy()
        if self.config is not None:
            policy = BoundedBorrowTaskAdmissionPolicy(self.config)
        self.queue = FairTaskQueue()
        self.controller = TaskAdmissionController(
            TaskAdmissionConfig(limits[0], {"r": limits[1], "s": limits[2]}),
            policy,
            monotonic=lambda: 0.0,
            generation="mine",
        )
        self.order = 0
        self.queued: dict[Hashable, tuple[int, SchedulableTask]] = {}
        self.leases: list[TaskAdmissionLease] = []
        self.ended: list[TaskAdmissionLease] = []
        self.closed: set[Hashable] = set()
        self.asked = 0
        self.changed: set[str] = set()  # groups that were said to be different things

    # ── What happens ──────────────────────────────────────────────────────────────────────────

    @rule(batch=st.lists(drafts, min_size=1, max_size=4))
    def enqueue(self, batch: list[tuple[str, int, int, str | None, str, int]]) -> None:
        items = []
        for key, needs, priority, gate, part, count in batch:
            for _ in range(count):
                self.order += 1
                request = SchedulerResourceRequest(NEEDS[needs])
                spec = self.specs[key]
                item = SchedulableTask(self.order, None, spec, request, gate, priority, part)
                items.append(item)
                self.queued[item.task_id] = (self.order, item)

        accepted = self.queue.enqueue([*items, items[0]])

        assert accepted == tuple(item.task_id for item in items)
        assert self.queue.enqueue(items) == ()

    @rule(pick=picks)
    def discard(self, pick: int) -> None:
        if self.queued:
            task_id = [*self.queued][pick % len(self.queued)]
            assert self.queue.discard(task_id) is True
            del self.queued[task_id]
            assert self.queue.discard(task_id) is False

    @rule(key=st.sampled_from(KEYS), needs=st.integers(0, len(NEEDS) - 1))
    def discard_where(self, key: str, needs: int) -> None:
        request = SchedulerResourceRequest(NEEDS[needs])

        def is_named(item: SchedulableTask) -> bool:
            return item.group.key == key and item.resource_request == request

        named = {task_id for task_id, (_, item) in self.queued.items() if is_named(item)}
        assert {item.task_id for item in self.queue.discard_where(is_named)} == named
        for task_id in named:
            del self.queued[task_id]

    @rule(resource=st.sampled_from([SUBMISSION, *RESOURCES]), limit=st.integers(0, 8))
    def set_limit(self, resource: str, limit: int) -> None:
        self.controller.set_limit(resource, limit)
        self.limits[resource] = limit

    @rule(gate=st.sampled_from(GATES), closes=st.booleans())
    def gate(self, gate: str, closes: bool) -> None:
        if closes:
            self.closed.add(gate)
        else:
            self.closed.discard(gate)
            self.controller.pressure_changed(gate)

    @rule(key=st.sampled_from(KEYS), spec=specs)
    def respecify(self, key: str, spec: TaskGroupSpec) -> None:
        self.specs[key] = msgspec.structs.replace(spec, key=key)
        self.changed.add(key)
        self.order += 1
        item = SchedulableTask(self.order, None, self.specs[key], SchedulerResourceRequest())
        self.queue.enqueue([item])
        self.queued[item.task_id] = (self.order, item)

    @rule(ends=st.lists(picks, min_size=1, max_size=6))
    def release(self, ends: list[int]) -> None:
        for pick in ends:
            if self.leases:
                lease = self.leases.pop(pick % len(self.leases))
                assert self.controller.release(lease).reason is ReleaseReason.RELEASED
                self.ended.append(lease)

    @rule(pick=picks)
    def release_wrongly(self, pick: int) -> None:
        lies = []
        if self.ended:
            lies.append((self.ended[pick % len(self.ended)], ReleaseReason.DUPLICATE))
        if self.leases:
            held = self.leases[pick % len(self.leases)]
            other = msgspec.structs.replace(held.item, task_id="another")
            foreign = msgspec.structs.replace(held, controller_generation="yours")
            lies += [
                (msgspec.structs.replace(held, item=other), ReleaseReason.STALE_LEASE),
                (foreign, ReleaseReason.WRONG_CONTROLLER_GENERATION),
                (msgspec.structs.replace(held, lease_id=1_000_000), ReleaseReason.UNKNOWN_LEASE),
            ]
        for lease, reason in lies:
            result = self.controller.release(lease)
            assert (result.released, result.reason) == (False, reason)

    @rule(at_most=st.sampled_from([1, 2, 100, 100]))
    def turn(self, at_most: int) -> None:
        changes = self.controller.take_changes()
        if changes is not None:
            self.queue.reopen(changes)
        for _ in range(at_most):
            if not self.start():
                break

    # ── What must be so ───────────────────────────────────────────────────────────────────────

    def start(self) -> bool:
        version = self.queue.view().version
        selection = self.queue.select_next(self.judge)
        assert self.queue.view().version == version
        assert len(self.queue) == len(self.queued)
        if selection is None:
            self.nothing_is_left_lying()
            self.asked = 0
            assert self.queue.select_next(self.judge) is None
            assert self.asked == 0, "asked again although nothing has changed"
            return False
        item = selection.item
        again = self.queue.select_next(self.judge)
        assert again is not None
        assert again.item is item
        assert self.is_admissible(item)
        assert item is self.first_like(item)
        self.nobody_else_was_first(item)
        lease = self.controller.try_acquire(item, selection.queue_view)
        assert isinstance(lease, TaskAdmissionLease)
        assert lease.resources == item.resource_request.amounts
        assert self.queue.commit(selection) is item
        assert self.queue.commit(selection) is None
        del self.queued[item.task_id]
        self.leases.append(lease)
        return True

    def judge(self, item: SchedulableTask, view: QueueView) -> bool | TaskAdmissionDenied:
        self.asked += 1
        if item.request_resource_key in self.closed:
            return TaskAdmissionDenied(item, DenialReason.POLICY, Until.GATE)
        return self.controller.is_eligible(item, view)

    def nothing_is_left_lying(self) -> None:
        """Nothing was selected: then each task lacks something, or steps back for one that does."""
        for _, item in self.queued.values():
            if item is self.first_like(item) and self.is_admissible(item):
                assert self.is_kept_for_another(item) or self.is_at_ceiling(item), (
                    f"{item} was left lying"
                )

    def nobody_else_was_first(self, item: SchedulableTask) -> None:
        """A group takes no more than its part while one that wants the same has none of it."""
        if item.group.key in self.changed or len(_contested(item)) > 1:
            return  # whoever waits for one of two resources competes for that one only
        for _, other in self.queued.values():
            if (
                other.group.key not in {item.group.key, *self.changed}
                and other.resource_request.amounts.keys() == item.resource_request.amounts.keys()
                and other.request_resource_key is None
                and self.is_admissible(other)
                and not self.is_kept_for_another(other)
                and self.has_nothing(other)
            ):
                assert not self.is_beyond(item, other), f"{item} should step back for {other}"

    def has_nothing(self, item: SchedulableTask) -> bool:
        key = item.group.key
        if self.config is None:
            return self.running()[key] < (item.group.admitted_limit or math.inf)
        return all(not self.held(key, name) for name, _ in _contested(item))

    def is_beyond(self, item: SchedulableTask, other: SchedulableTask) -> bool:
        key, allowed = item.group.key, item.group.admitted_limit
        if self.config is None:
            return allowed is not None and self.running()[key] >= allowed
        for name, amount in _contested(item):
            limit = self.limits.get(name)
            if limit is None or not self.held(key, name):
                continue
            weight, weight_of_other = self.specs[key].weight, self.specs[other.group.key].weight
            part = max(1, self.rounded(limit * weight / (weight + weight_of_other)))
            if self.held(key, name) + amount > min(part, allowed or part):
                return True
        return False

    def is_admissible(self, item: SchedulableTask) -> bool:
        return item.request_resource_key not in self.closed and all(
            amount <= self.available(name) for name, amount in item.resource_request.needs
        )

    def is_kept_for_another(self, item: SchedulableTask) -> bool:
        """Does somebody need more than there is of something that the task needs?"""
        return any(
            other.resource_request.amounts.get(name, 0) > self.available(name)
            and other.resource_request.amounts[name] <= self.limits[name]
            for name in item.resource_request.amounts
            for _, other in self.queued.values()
        )

    def is_at_ceiling(self, item: SchedulableTask) -> bool:
        config, key = self.config, item.group.key
        if config is None or config in (DEFAULT, CONFIGS["floor, repays late"]):
            return False
        for name, amount in _contested(item):
            limit = self.limits.get(name)
            if limit is None or not self.held(key, name):
                continue
            share = max(1, self.rounded(limit / 2))
            share = min(share, item.group.admitted_limit or share)
            reserved = min(
                math.ceil(limit * config.dynamic_borrow_reserve_fraction),
                config.dynamic_borrow_max_reserved_slots,
            )
            ceiling = config.borrow_ceiling_by_group_resource.get((key, name))
            if ceiling is None:
                ceiling = config.default_borrow_ceiling
            if ceiling is None:
                ceiling = max(0, limit - share - reserved)
            if self.held(key, name) + amount - share > ceiling:
                return True
        return False

    def rounded(self, share: float) -> int:
        is_floor = self.config is not None and self.config.strict_share_rounding == "floor"
        return math.floor(share) if is_floor else math.ceil(share)

    def first_like(self, item: SchedulableTask) -> SchedulableTask:
        """The task that goes first of those of the same part of a group with the same needs."""
        alike = [
            (-one.priority, order, one)
            for order, one in self.queued.values()
            if (one.group.key, one.part) == (item.group.key, item.part)
            and one.resource_request == item.resource_request
            and one.request_resource_key == item.request_resource_key
        ]
        return min(alike, key=lambda entry: entry[:2])[2]

    def leased(self) -> Counter[str]:
        return sum((Counter(lease.resources) for lease in self.leases), Counter())

    def held(self, key: str, name: str) -> int:
        return sum(
            lease.resources.get(name, 0) for lease in self.leases if lease.item.group.key == key
        )

    def running(self) -> Counter[str]:
        return Counter(lease.item.group.key for lease in self.leases)

    def available(self, name: str) -> float:
        limit = self.limits.get(name)
        return math.inf if limit is None else limit - self.leased()[name]

    @invariant()
    def the_books_are_right(self) -> None:
        view = self.controller.view()
        leased = self.leased()
        assert view.resource_limits == self.limits
        assert view.leased_resources == leased
        assert view.resources_available == {
            name: limit - leased[name] for name, limit in self.limits.items()
        }
        assert view.running_counts_by_group == self.running()
        assert view.leased_resources_by_group == {
            key: {name: self.held(key, name) for name in leased if self.held(key, name)}
            for key in self.running()
        }
        assert self.controller.leases == len(self.leases)
        for (key, name), debt in view.policy_debt_by_group_resource.items():
            assert 0 < debt <= self.held(key, name)

    @invariant()
    def the_queue_is_right(self) -> None:
        check_queue(self.queue)
        snapshot = self.queue.view().snapshot()
        assert snapshot.queued_total == len(self.queue) == len(self.queued)
        assert snapshot.queued_by_group == Counter(x.group.key for _, x in self.queued.values())
        assert {item.task_id for item in self.queue.tasks()} == self.queued.keys()
        summary = self.controller.explain_blocked(self.queue.view())
        assert sum(summary.dominant_denial_reasons.values()) <= summary.queued_count
        for key in snapshot.queued_by_group:
            own = [
                (-x.priority, order, x) for order, x in self.queued.values() if x.group.key == key
            ]
            first = min(own, key=lambda entry: entry[:2])[2]
            buckets = self.queue._facts.groups[key].buckets.values()
            assert min(bucket.first for bucket in buckets)[2] is first

    def teardown(self) -> None:
        """Whatever there was: with gates open and limits wide everything runs and ends."""
        if not hasattr(self, "queue"):
            return
        for name in self.limits:
            self.set_limit(name, 8)
        for gate in GATES:
            self.gate(gate, closes=False)
        for _ in range(len(self.queued) + 1):
            self.turn(1_000)
            self.release([0] * len(self.leases))
        assert not self.queued
        self.the_books_are_right()
        self.the_queue_is_right()
        assert not self.controller.view().policy_debt_by_group_resource
        assert [*self.queue._facts.contests] == [SUBMISSION]
        assert not self.queue._gates
        assert not self.queue._open
        assert not self.queue._facts.blocked


def _contested(item: SchedulableTask) -> list[tuple[str, int]]:
    amounts = item.resource_request.amounts
    return [(n, x) for n, x in amounts.items() if n != SUBMISSION or len(amounts) == 1]


def _run(config: BoundedBorrowTaskAdmissionPolicyConfig | None) -> None:
    machine = type("SchedulingMachineOfOne", (SchedulingMachine,), {"config": config})
    run_state_machine_as_test(machine, settings=PROFILE)


@pytest.mark.timeout(3_600 if SOAK else 600)
def test_strict_fair_scheduling_decides_as_the_model_does() -> None:
    _run(None)


@pytest.mark.timeout(3_600 if SOAK else 600)
@pytest.mark.parametrize("name", CONFIGS)
def test_bounded_borrow_scheduling_decides_as_the_model_does(name: str) -> None:
    _run(CONFIGS[name])

# SPDX-License-Identifier: Apache-2.0
"""What do tests of scheduling need: tasks in one line, and a look at what a queue keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from penstock.admission.tasks.controller import TaskAdmissionController
from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.admission.tasks.queue import Bucket, Contest, FairTaskQueue, Line
from penstock.model.task import SUBMISSION, SchedulableTask, SchedulerResourceRequest, TaskGroupSpec


def task(
    task_id: Hashable,
    group: str | TaskGroupSpec = "g",
    needs: Mapping[str, int] | None = None,
    *,
    priority: int = 0,
    gate: Hashable | None = None,
    part: str = "",
) -> SchedulableTask:
    """A task; without needs it asks for one submission."""
    spec = TaskGroupSpec(group) if isinstance(group, str) else group
    request = SchedulerResourceRequest(needs or {})
    return SchedulableTask(task_id, None, spec, request, gate, priority, part)


def tasks(
    count: int, group: str | TaskGroupSpec, needs: Mapping[str, int] | None = None
) -> list[SchedulableTask]:
    """Tasks of one group, with ids of their own."""
    key = group if isinstance(group, str) else group.key
    return [task(f"{key}-{n}", group, needs) for n in range(count)]


def turn(
    queue: FairTaskQueue, controller: TaskAdmissionController, at_most: int = 1_000_000
) -> list[TaskAdmissionLease]:
    """Start what may start, as the dispatch loop does."""
    changes = controller.take_changes()
    if changes is not None:
        queue.reopen(changes)
    leases: list[TaskAdmissionLease] = []
    while len(leases) < at_most:
        selection = queue.select_next(controller.is_eligible)
        if selection is None:
            break
        lease = controller.try_acquire(selection.item, selection.queue_view)
        assert isinstance(lease, TaskAdmissionLease), lease
        assert queue.commit(selection) is selection.item
        leases.append(lease)
    return leases


def check_queue(queue: FairTaskQueue) -> None:
    """Everything that a queue keeps up to date is what a look at all of it gives."""
    facts, free = queue._facts, queue._free
    buckets = [bucket for group in facts.groups.values() for bucket in group.buckets.values()]
    _check_lines(queue, buckets)
    claims: dict[str, Counter[str]] = {resource: Counter() for resource in facts.contests}
    needed: Counter[str] = Counter()
    for group in facts.groups.values():
        assert group.buckets, f"group {group.key} has nothing queued"
        own: Counter[str] = Counter()
        for bucket in group.buckets.values():
            live = list(bucket)
            assert len(live) == len(bucket) > 0
            assert live == sorted(live)
            assert bucket.first is live[0]
            assert all(facts.places[entry[2].task_id] is entry for entry in live)
            assert all(entry[3] is bucket for entry in live)
            for contest, amount in bucket.needs:
                assert facts.contests[contest.resource] is contest
                needed[contest.resource] += 1
                own[contest.resource] += amount * len(bucket)
                line = bucket.line
                assert line is not None
                if line is free or (
                    line.amount and line.contest.resource in (SUBMISSION, contest.resource)
                ):
                    claims[contest.resource][group.key] += 1
        assert group.queued == sum(len(bucket) for bucket in group.buckets.values())
        assert group.demand() == own
    assert len(facts.places) == sum(len(bucket) for bucket in buckets)
    for resource, contest in facts.contests.items():
        _check_contest(queue, contest, claims[resource])
        assert contest.buckets == needed[resource] + (resource == SUBMISSION)


def _check_contest(queue: FairTaskQueue, contest: Contest, claims: Counter[str]) -> None:
    groups = queue._facts.groups
    assert contest.claimants == claims
    assert contest.weight == sum(groups[key].weight for key in contest.claimants)
    assert contest.resource == SUBMISSION or contest.buckets > 0
    assert set(contest.claimants) <= set(contest.tags), "a competitor has no place"
    if contest.yielding.tasks:
        assert contest.claimants or contest.yielding.is_open, "it yields to nobody"


def _check_lines(queue: FairTaskQueue, buckets: list[Bucket]) -> None:
    facts = queue._facts
    lines: list[Line] = [queue._free, *queue._gates.values()]
    for contest in facts.contests.values():
        lines += [contest.yielding, *contest.waiting.values()]
    standing = [
        (entry[3], line, entry) for line in lines for x in line.members.values() for entry in x
    ]
    assert Counter(id(bucket) for bucket, _, _ in standing) == Counter(map(id, buckets))
    for bucket, line, (priority, turn, sequence, _) in standing:
        assert bucket.line is line
        assert turn <= bucket.part.turn
        assert bucket.part in bucket.group.parts.values()
        is_lone = len(line.members[bucket.group]) == 1  # its order counts for nothing
        assert is_lone or (priority, sequence) == bucket.first[:2]
        assert not line.amount or line.amount == bucket.amount(line.contest)
    for line in lines:
        assert line.tasks == sum(len(b) for b, stands_in, _ in standing if stands_in is line)
        assert set(line.members) <= line._in_heap
        assert {entry[2] for entry in line._heap} == line._in_heap
        assert line.is_open == (line in queue._open or line in queue._conceded)
        assert (line in facts.blocked) == (bool(line.members) and line is not queue._free)
        assert line.denied is not None or not line.members or line is queue._free
        assert line.members or (line.passed == 0 and not line.is_open)
    assert {*queue._open, *queue._conceded} <= set(lines)
    assert set(facts.blocked) <= set(lines)
    for key, line in queue._gates.items():
        assert line.members, f"gate {key} is empty"
    for group in facts.groups.values():
        yields = Counter(
            line
            for bucket, line, _ in standing
            if bucket.group is group and line is line.contest.yielding
        )
        assert group.yields_in == yields

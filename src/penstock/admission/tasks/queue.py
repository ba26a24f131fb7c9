# SPDX-License-Identifier: Apache-2.0
"""Who is next, fairly?

Weighted fair queueing in virtual time, one clock for each resource (see lines.py). What was
denied stands in the line of what it waits for, and is not asked for again before that changes:
`reopen` says so. Selecting and committing costs O(log groups), whatever is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush

import msgspec

from penstock.admission.tasks.decisions import (
    Openings,
    TaskAdmissionDenied,
    Until,
)
from penstock.admission.tasks.lines import Bucket, Contest, Group, Line
from penstock.admission.tasks.queue_view import QueueFacts, QueueView
from penstock.errors import InternalError
from penstock.model.resource import SUBMISSION
from penstock.model.task import SchedulableTask, TaskGroupSpec

#: May this task start now? True, or the denial; a bare False says nothing of why, so that the
#: task is asked for again in every selection.
IsEligible = Callable[[SchedulableTask, QueueView], bool | TaskAdmissionDenied]


class QueueSelection(msgspec.Struct, frozen=True, gc=False):
    """A task that may go; nothing has changed yet."""

    item: SchedulableTask
    queue_view: QueueView
    sequence_version: int


class FairTaskQueue:
    """Owns membership and order of ready tasks. Knows no capacity. Belongs to one loop."""

    def __init__(self) -> None:
        self._facts = QueueFacts()
        self._submissions = self._contest(SUBMISSION)
        self._submissions.buckets = 1  # never forgotten
        self._free = Line(self._submissions)  # may go, as far as is known
        self._gates: dict[Hashable, Line] = {}  # lines that no resource opens
        self._open: dict[Line, None] = {}  # in the order in which they were opened
        self._sequence = 0
        self._view = QueueView(self._facts)

    def __len__(self) -> int:
        return len(self._facts.places)

    def __contains__(self, task_id: Hashable) -> bool:
        return task_id in self._facts.places

    def __repr__(self) -> str:
        return (
            f"<FairTaskQueue {len(self._facts.places)} queued in {len(self._facts.groups)} groups, "
            f"v{self._facts.version}>"
        )

    def view(self) -> QueueView:
        """The facts, live."""
        return self._view

    # ── Membership ────────────────────────────────────────────────────────────────────────────

    def enqueue(self, items: Iterable[SchedulableTask]) -> tuple[Hashable, ...]:
        """Take tasks in; the answer names those that were not there before."""
        accepted = []
        places = self._facts.places
        for item in items:
            if item.task_id in places:
                continue
            bucket = self._bucket_of(item)
            self._sequence += 1
            places[item.task_id] = (bucket, self._sequence)
            self._facts.count(bucket.group, item, 1)
            entry = (-item.priority, self._sequence, item)
            if bucket.line is None:
                bucket.entries.append(entry)
                self._free.add(bucket)
                for contest, _ in bucket.needs:
                    contest.claim(bucket.group)
            else:
                heappush(bucket.entries, entry)
                bucket.line.tasks += 1
                if bucket.entries[0] is entry:
                    bucket.line.reorder(bucket)
            accepted.append(item.task_id)
        if accepted:
            self._facts.version += 1
        return tuple(accepted)

    def discard(self, task_id: Hashable) -> bool:
        """Take a task out that shall not run; False if it is not queued."""
        place = self._facts.places.pop(task_id, None)
        if place is None:
            return False
        bucket, sequence = place
        line = bucket.line
        if line is None:
            raise InternalError(f"Task {task_id!r} is queued but stands in no line.")
        self._facts.version += 1
        was_head = bucket.entries[0][1] == sequence
        item = (
            bucket.head
            if was_head
            else next(entry[2] for entry in bucket.entries if entry[1] == sequence)
        )
        self._facts.count(bucket.group, item, -1)
        line.tasks -= 1
        bucket.dead.add(sequence)
        if not was_head:
            if len(bucket.dead) > len(bucket):
                bucket.entries = [x for x in bucket.entries if x[1] not in bucket.dead]
                bucket.dead.clear()
                heapify(bucket.entries)
            return True
        bucket.drop_dead_head()
        if bucket.entries:
            line.reorder(bucket)
        else:
            self._retire(bucket)
        return True

    def discard_where(self, predicate: Callable[[SchedulableTask], bool]) -> list[SchedulableTask]:
        """Take out every task that a predicate names; looks at all of them."""
        found = [item for item in self.tasks() if predicate(item)]
        for item in found:
            self.discard(item.task_id)
        return found

    def tasks(self) -> list[SchedulableTask]:
        """Everything that is queued, in no particular order."""
        return [
            entry[2]
            for group in self._facts.groups.values()
            for bucket in group.buckets.values()
            for entry in bucket.entries
            if entry[1] not in bucket.dead
        ]

    def standing(self, task_id: Hashable) -> TaskAdmissionDenied | None:
        """The answer that keeps a task waiting; None: nothing is known to, or it is not queued."""
        place = self._facts.places.get(task_id)
        if place is None:
            return None
        line = self._line_of(place[0])
        return None if line is self._free else line.denied

    # ── Selecting ─────────────────────────────────────────────────────────────────────────────

    def select_next(self, is_eligible: IsEligible) -> QueueSelection | None:
        """The task that is next among those that may start. Neither members nor order change."""
        view = self._view
        set_aside: list[tuple[Bucket, Line]] = []
        try:
            while (bucket := self._candidate()) is not None:
                item = bucket.entries[0][2]
                answer = is_eligible(item, view)
                if answer is True:
                    return QueueSelection(item, view, self._facts.version)
                if answer is False:
                    line = self._line_of(bucket)
                    line.remove(bucket)
                    set_aside.append((bucket, line))
                else:
                    self._park(bucket, answer)
        finally:
            for bucket, line in set_aside:
                line.add(bucket)
        return None

    def commit(self, selection: QueueSelection) -> SchedulableTask | None:
        """Take the selected task out; None if the queue has changed since it was selected."""
        item = selection.item
        if (
            selection.sequence_version != self._facts.version
            or item.task_id not in self._facts.places
        ):
            return None
        bucket, _ = self._facts.places.pop(item.task_id)
        self._facts.version += 1
        line, group = bucket.line, bucket.group
        if line is not self._free:
            self._move(bucket, self._free)
        for contest, amount in bucket.needs:
            contest.charge(group, amount)
            waiting = contest.waiting
            if waiting.tasks:
                waiting.passed = 0 if line is waiting else waiting.passed + amount
        heappop(bucket.entries)
        self._free.tasks -= 1
        self._facts.count(group, item, -1)
        if bucket.dead:
            bucket.drop_dead_head()
        if bucket.entries:
            self._free.reorder(bucket)
        else:
            self._retire(bucket)
        return item

    def reopen(self, openings: Openings) -> None:
        """Something has changed: those who waited for it may be asked for again."""
        if openings.everything:
            self._reopen_all()
            return
        for resource in openings.resources:
            contest = self._facts.contests.get(resource)
            if contest is not None and contest.waiting.tasks:
                self._open_line(contest.waiting)
        for key in openings.groups:
            group = self._facts.groups.get(key)
            if group is not None:
                self._ease(group)
            self._open_gate((Until.OWN, key))
        for gate in openings.gates:
            self._open_gate((Until.GATE, gate))

    def _reopen_all(self) -> None:
        for group in self._facts.groups.values():
            for bucket in group.buckets.values():
                self._move(bucket, self._free)

    def _ease(self, group: Group) -> None:
        """A group has given something back: where it yields to others, it may be its turn."""
        for line in [*group.yields_in]:
            bucket = line.top_of(group)
            if bucket is not None:
                self._move(bucket, self._free)

    def _open_gate(self, key: Hashable) -> None:
        line = self._gates.get(key)
        if line is not None and line.tasks:
            self._open_line(line)

    def _open_line(self, line: Line) -> None:
        line.is_open = True
        self._open[line] = None

    def _close_line(self, line: Line) -> None:
        line.is_open = False
        self._open.pop(line, None)

    def _candidate(self) -> Bucket | None:
        """The next bucket to ask for; those that cannot go, as is known, are moved on the way."""
        while self._open:
            line = next(iter(self._open))
            bucket = line.top()
            if bucket is None:
                self._close_line(line)
                continue
            bucket = self._first_of_chain(bucket)
            if not self._moved_to_full(bucket):
                return bucket
        while (bucket := self._free.top()) is not None:
            if not self._moved_to_full(bucket):
                return bucket
        return None

    def _first_of_chain(self, bucket: Bucket) -> Bucket:
        """A bucket, or whoever is before it in the line of something else that it needs."""
        seen = {bucket.line}
        while True:
            for contest, _ in bucket.needs:
                line = contest.waiting
                if line.is_open and line not in seen:
                    first = line.top()
                    seen.add(line)
                    if first is not None and contest.tag(first.group) < contest.tag(bucket.group):
                        bucket = first
                        break
            else:
                return bucket

    def _moved_to_full(self, bucket: Bucket) -> bool:
        """Put a bucket into the line of something that is known to be used up."""
        for contest, amount in bucket.needs:
            line = contest.waiting
            if line.is_open or not line.tasks or line is bucket.line:
                continue
            if amount >= line.refused or line.passed >= _limit(line):
                self._move(bucket, line)
                return True
        return False

    def _park(self, bucket: Bucket, denied: TaskAdmissionDenied) -> None:
        line = self._line_for(bucket, denied)
        if denied.until is Until.CAPACITY:
            amount = bucket.amount(line.contest)
            line.refused = amount if line.is_open or not line.tasks else min(line.refused, amount)
        line.denied = denied
        self._close_line(line)
        self._move(bucket, line)

    def _line_for(self, bucket: Bucket, denied: TaskAdmissionDenied) -> Line:
        until = denied.until
        if until is Until.CAPACITY or until is Until.PEERS:
            if denied.resource is None:
                raise InternalError(f"A denial until {until} names no resource.")
            contest = self._facts.contests[denied.resource]
            return contest.waiting if until is Until.CAPACITY else contest.yielding
        key: Hashable = (until, None)
        if until is Until.OWN:
            key = (until, bucket.group.key)
        elif until is Until.GATE:
            key = (until, denied.item.request_resource_key)
        line = self._gates.get(key)
        if line is None:
            line = self._gates[key] = Line(self._submissions, key)
        return line

    def _move(self, bucket: Bucket, to: Line) -> None:
        """Let a bucket stand in another line, and compete accordingly."""
        came_from = self._line_of(bucket)
        if came_from is to:
            return
        group = bucket.group
        had = self._claims(bucket, came_from)
        self._leave(bucket, came_from)
        to.add(bucket)
        if to is not self._free:
            self._facts.blocked[to] = None
            if to is to.contest.yielding:
                group.yields_in[to] = group.yields_in.get(to, 0) + 1
        for contest, _ in self._claims(bucket, to):
            contest.claim(group)
        self._unclaim(group, had)

    def _leave(self, bucket: Bucket, line: Line) -> None:
        line.remove(bucket)
        yields_in = bucket.group.yields_in
        if line in yields_in:
            yields_in[line] -= 1
            if not yields_in[line]:
                del yields_in[line]
        if not line.members and line is not self._free:
            line.passed = 0
            self._facts.blocked.pop(line, None)
            self._close_line(line)
            if line.gate is not None:
                self._gates.pop(line.gate, None)

    def _unclaim(self, group: Group, claims: Iterable[tuple[Contest, int]]) -> None:
        for contest, _ in claims:
            if contest.unclaim(group) and contest.yielding.tasks:
                self._open_line(contest.yielding)  # there is nobody left to yield to

    def _claims(self, bucket: Bucket, line: Line) -> tuple[tuple[Contest, int], ...]:
        """What a bucket competes for where it stands.

        1. Whoever may go competes for all that it needs. 2. Whoever waits for a resource competes
        for that one. 3. Whoever waits for anything else competes for nothing.
        """
        if line is self._free:
            return bucket.needs
        if line is line.contest.waiting:
            return ((line.contest, 0),)
        return ()

    def _retire(self, bucket: Bucket) -> None:
        """Forget a bucket that is empty, and what nobody else needs."""
        line, group = self._line_of(bucket), bucket.group
        self._leave(bucket, line)
        self._unclaim(group, self._claims(bucket, line))
        del group.buckets[bucket.key]
        for contest, _ in bucket.needs:
            contest.buckets -= 1
            if not contest.buckets:
                del self._facts.contests[contest.resource]
        if not group.buckets:
            del self._facts.groups[group.key]

    # ── Facts ─────────────────────────────────────────────────────────────────────────────────

    def _contest(self, resource: str) -> Contest:
        contest = self._facts.contests.get(resource)
        if contest is None:
            contest = self._facts.contests[resource] = Contest(resource)
        return contest

    def _bucket_of(self, item: SchedulableTask) -> Bucket:
        spec = item.group
        group = self._facts.groups.get(spec.key)
        if group is None:
            group = self._facts.groups[spec.key] = Group(spec)
        elif group.spec is not spec:
            self._respecify(group, spec)
        wanted = item.resource_request.needs
        gate = item.request_resource_key
        key: Hashable = wanted if gate is None else (wanted, gate)
        bucket = group.buckets.get(key)
        if bucket is None:
            needs = tuple((self._contest(resource), amount) for resource, amount in wanted)
            for contest, _ in needs:
                contest.buckets += 1
            bucket = group.buckets[key] = Bucket(group, key, needs)
        return bucket

    def _respecify(self, group: Group, spec: TaskGroupSpec) -> None:
        """A group is what its latest task says it is."""
        if spec.weight != group.weight:
            for contest in self._facts.contests.values():
                contest.reweigh(group, spec.weight)
            group.weight = spec.weight
        group.spec = spec

    @staticmethod
    def _line_of(bucket: Bucket) -> Line:
        if bucket.line is None:
            raise InternalError("A bucket with tasks stands in no line.")
        return bucket.line


def _limit(line: Line) -> float:
    """How much of a line's resource there is in all; smaller tasks pass its first no further."""
    return line.denied.numbers.get("limit", 0) if line.denied is not None else 0

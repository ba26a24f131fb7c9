# SPDX-License-Identifier: Apache-2.0
"""Who waits where, in which order, and who competes for what?

Tasks of one group with equal needs share a bucket. A bucket stands in exactly one line: the line
of those that may go as far as is known, or the line of what it has to wait for. A line orders
groups by virtual time, and each resource has its own: a group that could not use a resource keeps
no claim to the time in which others did, and one that waits for it loses none.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace

from penstock.admission.tasks.decisions import TaskAdmissionDenied
from penstock.model.task import SchedulableTask, TaskGroupSpec

FORGET_TAGS_ABOVE = 1_024  # tags of groups that left, kept while they may still matter

#: (-priority, sequence, task): the order inside a bucket.
Entry = tuple[int, int, SchedulableTask]


class Contest:
    """One resource: its virtual time, and the groups that compete for it just now."""

    __slots__ = ("buckets", "claimants", "resource", "tags", "v", "waiting", "weight", "yielding")

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.v = 0.0  # the tag of the group that was served last
        self.tags: dict[str, float] = {}  # group → when its next turn is
        self.claimants: dict[str, int] = {}  # group → its buckets that want some of it now
        self.weight = 0  # of the claimants
        self.buckets = 0  # that ask for it at all; without any it is forgotten
        self.waiting = Line(self)  # for some of it to be free
        self.yielding = Line(self)  # for those who have less of it

    def tag(self, group: Group) -> float:
        return self.tags.get(group.key, self.v)

    def claim(self, group: Group) -> None:
        """A bucket of the group wants some of it now."""
        claimants, key = self.claimants, group.key
        count = claimants.get(key, 0)
        claimants[key] = count + 1
        if not count:
            self.weight += group.weight
            if self.tags.get(key, 0.0) < self.v:
                self.tags[key] = self.v

    def unclaim(self, group: Group) -> bool:
        """The opposite; True if nobody competes any more."""
        claimants, key = self.claimants, group.key
        if claimants[key] > 1:
            claimants[key] -= 1
            return False
        del claimants[key]
        self.weight -= group.weight
        return not claimants

    def charge(self, group: Group, amount: int) -> None:
        """A task of the group got some of it."""
        tag = self.tags.get(group.key, self.v)
        if tag > self.v:
            self.v = tag
        self.tags[group.key] = tag + amount / group.weight
        if len(self.tags) > FORGET_TAGS_ABOVE + 2 * len(self.claimants):
            self.tags = {key: tag for key, tag in self.tags.items() if tag > self.v}

    def reweigh(self, group: Group, weight: int) -> None:
        if group.key in self.claimants:
            self.weight += weight - group.weight


class Bucket:
    """Tasks of one group that ask for the same, by priority and then first come."""

    __slots__ = ("dead", "entries", "group", "key", "line", "needs")

    def __init__(self, group: Group, key: Hashable, needs: tuple[tuple[Contest, int], ...]) -> None:
        self.group = group
        self.key = key
        self.needs = needs
        self.entries: list[Entry] = []
        self.dead: set[int] = set()  # sequences of discarded tasks that are still in `entries`
        self.line: Line | None = None

    def __len__(self) -> int:
        return len(self.entries) - len(self.dead)

    @property
    def head(self) -> SchedulableTask:
        return self.entries[0][2]

    def drop_dead_head(self) -> None:
        while self.entries and self.entries[0][1] in self.dead:
            self.dead.remove(heappop(self.entries)[1])

    def amount(self, contest: Contest) -> int:
        return next(amount for needed, amount in self.needs if needed is contest)


class Group:
    """A group that has tasks queued."""

    __slots__ = ("buckets", "demand", "key", "queued", "spec", "weight", "yields_in")

    def __init__(self, spec: TaskGroupSpec) -> None:
        self.spec = spec
        self.key = spec.key
        self.weight = spec.weight
        self.buckets: dict[Hashable, Bucket] = {}
        self.queued = 0
        self.demand: dict[str, int] = {}
        self.yields_in: dict[Line, int] = {}  # where it yields to others, with how many buckets


class Line:
    """Buckets that stand in one place: groups by virtual time, inside a group by priority.

    An open line is looked at by the next selection; a closed one only after something that could
    help it has happened.
    """

    __slots__ = (
        "_heap",
        "_in_heap",
        "_sequence",
        "contest",
        "denied",
        "gate",
        "is_open",
        "members",
        "passed",
        "refused",
        "tasks",
    )

    def __init__(self, contest: Contest, gate: Hashable = None) -> None:
        self.contest = contest
        self.gate = gate  # what opens it, if no resource does
        self.denied: TaskAdmissionDenied | None = None  # the last answer that closed it
        self.is_open = False
        self.members: dict[Group, list[tuple[int, int, Bucket]]] = {}
        self.tasks = 0
        self.refused = 0  # of the resource: so much was not to be had when the line was closed
        self.passed = 0  # of the resource: so much went to smaller tasks past its first
        self._heap: list[tuple[float, int, Group]] = []
        self._in_heap: set[Group] = set()
        self._sequence = 0

    def add(self, bucket: Bucket) -> None:
        group = bucket.group
        bucket.line = self
        priority, sequence, _ = bucket.entries[0]
        standing = self.members.get(group)
        if standing is None:
            self.members[group] = [(priority, sequence, bucket)]
            if group not in self._in_heap:  # else `top` puts it right
                self._in_heap.add(group)
                self._sequence += 1
                heappush(self._heap, (self.contest.tag(group), self._sequence, group))
        else:
            heappush(standing, (priority, sequence, bucket))
        self.tasks += len(bucket)

    def top(self) -> Bucket | None:
        """The bucket whose turn it is."""
        heap, members, contest = self._heap, self.members, self.contest
        while heap:
            tag, _, group = heap[0]
            standing = members.get(group)
            if standing is None:
                heappop(heap)
                self._in_heap.remove(group)
                continue
            now = contest.tags.get(group.key, tag)
            if now > tag:
                self._sequence += 1
                heapreplace(heap, (now, self._sequence, group))
                continue
            return standing[0][2]
        return None

    def top_of(self, group: Group) -> Bucket | None:
        standing = self.members.get(group)
        return standing[0][2] if standing else None

    def remove(self, bucket: Bucket) -> None:
        """Take a bucket out; cheap for the first of its group."""
        standing = self.members[bucket.group]
        if standing[0][2] is bucket:
            heappop(standing)
        else:
            standing[:] = [entry for entry in standing if entry[2] is not bucket]
            heapify(standing)
        if not standing:
            del self.members[bucket.group]
        bucket.line = None
        self.tasks -= len(bucket)

    def reorder(self, bucket: Bucket) -> None:
        """The first task of a bucket is another one now."""
        standing = self.members[bucket.group]
        priority, sequence, _ = bucket.entries[0]
        if standing[0][2] is bucket:
            heapreplace(standing, (priority, sequence, bucket))
            return
        standing[:] = [
            (priority, sequence, bucket) if entry[2] is bucket else entry for entry in standing
        ]
        heapify(standing)

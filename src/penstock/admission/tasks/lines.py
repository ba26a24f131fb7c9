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

TAGS_KEPT = 1_024  # of groups that left; beyond so many all of them are forgotten
STALE_KEPT = 64  # groups that left a line and are still in its heap; beyond, it is made anew

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
        self.waiting: dict[int, Line] = {}  # amount → who waits for so much of it to be free
        self.yielding = Line(self)  # for those who have less of it

    def tag(self, group: Group) -> float:
        return self.tags.get(group.key, self.v)

    def line_for(self, amount: int) -> Line:
        """Where those stand who could not get so much of it."""
        line = self.waiting.get(amount)
        if line is None:
            line = self.waiting[amount] = Line(self, amount=amount)
        return line

    def claim(self, group: Group) -> None:
        """A bucket of the group wants some of it now."""
        claimants, key = self.claimants, group.key
        count = claimants.get(key, 0)
        claimants[key] = count + 1
        if not count:
            self.weight += group.weight
            if self.tags.get(key, -1.0) < self.v:
                self.tags[key] = self.v

    def unclaim(self, group: Group) -> None:
        claimants, key = self.claimants, group.key
        if claimants[key] > 1:
            claimants[key] -= 1
        else:
            del claimants[key]
            self.weight -= group.weight

    def charge(self, group: Group, amount: int) -> None:
        """A task of the group got some of it."""
        key, tags, v = group.key, self.tags, self.v
        tag = tags.get(key, v)
        if tag > v:
            self.v = tag
        elif key not in self.claimants:
            tag = v
        tags[key] = tag + amount / group.weight
        if len(tags) > TAGS_KEPT + 2 * (len(self.claimants) + len(self.yielding.members)):
            keep = {*self.claimants, *(member.key for member in self.yielding.members)}
            self.tags = {key: tag for key, tag in tags.items() if key in keep}

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

    def drop(self, entry: Entry) -> bool:
        """Take a task out, wherever it stands; True if it was the first."""
        entries, dead = self.entries, self.dead
        dead.add(entry[1])
        if entries[0] is entry:
            self.drop_dead_head()
            return True
        if len(dead) > len(self):
            self.entries = [other for other in entries if other[1] not in dead]
            heapify(self.entries)
            dead.clear()
        return False

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
        "amount",
        "contest",
        "denied",
        "gate",
        "is_full",
        "is_open",
        "members",
        "passed",
        "patience",
        "tasks",
    )

    def __init__(self, contest: Contest, gate: Hashable = None, amount: int = 0) -> None:
        self.contest = contest
        self.gate = gate  # what opens it, if no resource does
        self.amount = amount  # of the resource that everybody here waits for; 0: for nothing
        self.denied: TaskAdmissionDenied | None = None  # the last answer that closed it
        self.is_open = False
        self.is_full = False  # it was closed because so much is not to be had
        self.members: dict[Group, list[tuple[int, int, Bucket]]] = {}
        self.tasks = 0
        self.passed = 0  # of the resource: so much went to smaller tasks while it was closed
        self.patience: float = 1  # of the resource: so much may pass, then it is kept for this line
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
                if len(self._heap) > STALE_KEPT + 2 * len(self.members):
                    self._drop_stale()
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

    def top_of(self, group: Group, below: float) -> Bucket | None:
        """The first bucket of a group that asks for less than so much."""
        standing = self.members.get(group)
        if standing is None:
            return None
        contest = self.contest
        if standing[0][2].amount(contest) < below:
            return standing[0][2]
        smaller = (entry for entry in standing if entry[2].amount(contest) < below)
        first = min(smaller, default=None)
        return None if first is None else first[2]

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

    def _drop_stale(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2] in self.members]
        self._in_heap = {entry[2] for entry in self._heap}
        heapify(self._heap)

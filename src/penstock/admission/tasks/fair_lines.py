# SPDX-License-Identifier: Apache-2.0
"""Lines of the fair task queue: buckets of tasks in virtual time, one clock for each resource.

Tasks of one group with equal needs share a bucket. A bucket stands in exactly one line: that of
those that may go as far as is known, or that of what it has to wait for. A line orders groups by
virtual time, and each resource has its own: a group that could not use a resource keeps no claim to
the time in which others did, and one that waits for it loses none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from penstock.admission.tasks.decisions import TaskAdmissionDenied
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec

TAGS_KEPT = 1_024  # of groups that left; beyond so many all of them are forgotten
STALE_KEPT = 64  # groups that left a line and are still in its heap; beyond, it is made anew

#: (-priority, sequence, task, its bucket): the order inside a group.
Entry = tuple[int, int, SchedulableTask, "Bucket"]


class Contest:
    """The contest for one resource: its virtual time, and the groups that compete for it now."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.v = 0.0  # the tag of the group that was served last
        self.tags: dict[str, float] = {}  # group → when its next turn is
        self._tags_max = TAGS_KEPT
        self.claimants: dict[str, int] = {}  # group → its buckets that want some of it now
        self.weight = 0  # of the claimants
        self.buckets = 0  # that ask for it at all; without any it is forgotten
        self.waiting: dict[int, Line] = {}  # amount → who waits for so much of it to be free
        self.largest = 0  # of the amounts that somebody has waited for
        self.lacking: float = inf  # the least amount that is known not to be had
        self.yielding = Line(self)  # for those who have less of it

    def tag(self, group: Group) -> float:
        return self.tags.get(group.key, self.v)

    def line_for(self, amount: int) -> Line:
        """Return the line of those who could not get so much of it."""
        line = self.waiting.get(amount)
        if line is None:
            line = self.waiting[amount] = Line(self, amount=amount)
            self.largest = max(self.waiting)
        return line

    def claim(self, group: Group) -> None:
        """Count a bucket of the group that wants some of it now."""
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

    def depart(self, group: Group, amount: int) -> None:
        """Move virtual time for whoever comes next: a group got some of it and wants no more.

        Without this, groups of one task each would all come at the same moment, before those who
        stay, for ever.
        """
        if group.key not in self.claimants:
            self.v += amount / (self.weight + group.weight)

    def charge(self, group: Group, amount: int) -> None:
        """Charge the group for what a task of it got."""
        key, tags, v = group.key, self.tags, self.v
        tag = tags.get(key, v)
        if tag > v:
            self.v = tag
        elif key not in self.claimants:
            tag = v
        tags[key] = tag + amount / group.weight
        if len(tags) > self._tags_max:
            self._forget_tags()

    def note_passing(self, amount: int) -> None:
        """Count what passed by the lines that wait for more at once."""
        for line in self.waiting.values():
            if line.amount > amount and line.tasks and not line.is_open:
                line.passed += amount

    def _forget_tags(self) -> None:
        """Keep the tags of those who stand in a line; the others begin where the clock stands."""
        keep = {*self.claimants, *(member.key for member in self.yielding.members)}
        self.tags = {key: tag for key, tag in self.tags.items() if key in keep}
        self._tags_max = TAGS_KEPT + 2 * len(keep)

    def reweigh(self, group: Group, weight: int) -> None:
        if group.key in self.claimants:
            self.weight += weight - group.weight


class Bucket:
    """Tasks of one group that ask for the same, by priority and then first come."""

    __slots__ = (
        "_dead",
        "_entries",
        "_lower",
        "_priority",
        "first",
        "group",
        "key",
        "line",
        "needs",
        "size",
    )

    first: Entry

    def __init__(self, group: Group, key: Hashable, needs: tuple[tuple[Contest, int], ...]) -> None:
        self.group = group
        self.key = key
        self.needs = needs
        self.size = 0
        self.line: Line | None = None
        self._entries: deque[Entry] = deque()  # of the highest priority
        self._priority = 0  # negated, of these
        self._lower: list[tuple[int, deque[Entry]]] = []  # of the others, highest first
        self._dead: set[int] = set()  # sequences of discarded tasks that are still there

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Entry]:
        for entries in (self._entries, *(entries for _, entries in self._lower)):
            yield from (entry for entry in entries if entry[1] not in self._dead)

    def add(self, entry: Entry) -> bool:
        """Add a task; True if it is the first now."""
        self.size += 1
        priority, entries = entry[0], self._entries
        if entries and priority == self._priority:
            entries.append(entry)
            return False
        if entries and priority > self._priority:
            self._add_lower(entry)
            return False
        if entries:
            self._lower.insert(0, (self._priority, entries))
        self._entries, self._priority, self.first = deque([entry]), priority, entry
        return True

    def _add_lower(self, entry: Entry) -> None:
        lower, priority = self._lower, entry[0]
        place = bisect_left(lower, priority, key=_priority)
        if place < len(lower) and lower[place][0] == priority:
            lower[place][1].append(entry)
        else:
            lower.insert(place, (priority, deque([entry])))

    def take_first(self) -> bool:
        """Remove the first task; False if it was the last."""
        self.size -= 1
        entries = self._entries
        entries.popleft()
        if entries and not self._dead:
            self.first = entries[0]
            return True
        while True:
            while entries:
                if entries[0][1] not in self._dead:
                    self.first = entries[0]
                    return True
                self._dead.remove(entries.popleft()[1])
            if not self._lower:
                return False
            self._priority, entries = self._lower.pop(0)
            self._entries = entries

    def drop(self, entry: Entry) -> bool:
        """Remove a task, wherever it stands; True if it was the first."""
        if self.first is entry:
            self.take_first()
            return True
        self.size -= 1
        self._dead.add(entry[1])
        if len(self._dead) > self.size:
            self._entries = self._living(self._entries)  # the first is among them
            lower = ((priority, self._living(entries)) for priority, entries in self._lower)
            self._lower = [level for level in lower if level[1]]
            self._dead.clear()
        return False

    def _living(self, entries: Iterable[Entry]) -> deque[Entry]:
        return deque(entry for entry in entries if entry[1] not in self._dead)

    def amount(self, contest: Contest) -> int:
        return next(amount for needed, amount in self.needs if needed is contest)


def _priority(level: tuple[int, deque[Entry]]) -> int:
    return level[0]


class Group:
    """A group that has tasks queued."""

    __slots__ = ("buckets", "key", "order", "queued", "recent", "spec", "weight", "yields_in")

    def __init__(self, spec: TaskGroupSpec, order: int) -> None:
        self.spec = spec
        self.key = spec.key
        self.order = order  # of its coming: between equal tags
        self.weight = spec.weight
        self.buckets: dict[Hashable, Bucket] = {}
        self.queued = 0
        #: What the latest task asked for, and its bucket: the next one mostly asks for the same.
        self.recent: tuple[SchedulerResourceRequest, Hashable, Bucket] | None = None
        self.yields_in: dict[Line, int] = {}  # where it yields to others, with how many buckets

    def demand(self) -> dict[str, int]:
        """Return how much its queued tasks ask for, by resource."""
        demand: dict[str, int] = {}
        for bucket in self.buckets.values():
            for contest, amount in bucket.needs:
                resource = contest.resource
                demand[resource] = demand.get(resource, 0) + amount * len(bucket)
        return demand


class Line:
    """Buckets that stand in one place: groups by virtual time, inside a group by priority.

    An open line is looked at by the next selection; a closed one only after something that could
    help it has happened.
    """

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

    def add(self, bucket: Bucket) -> None:
        group = bucket.group
        bucket.line = self
        priority, sequence, _, _ = bucket.first
        entries = self.members.get(group)
        if entries is None:
            self.members[group] = [(priority, sequence, bucket)]
            if group not in self._in_heap:  # else `top` puts it right
                self._in_heap.add(group)
                heappush(self._heap, (self.contest.tag(group), group.order, group))
                if len(self._heap) > STALE_KEPT + 2 * len(self.members):
                    self._drop_stale()
        else:
            if len(entries) == 1:
                entries[0] = _entry_of(entries[0][2])  # see reorder
            heappush(entries, (priority, sequence, bucket))
        self.tasks += len(bucket)

    def top(self) -> Bucket | None:
        """Return the bucket whose turn it is."""
        heap, members, contest = self._heap, self.members, self.contest
        while heap:
            tag, _, group = heap[0]
            entries = members.get(group)
            if entries is None:
                heappop(heap)
                self._in_heap.remove(group)
                continue
            now = contest.tags.get(group.key, tag)
            if now > tag:
                heapreplace(heap, (now, group.order, group))
                continue
            return entries[0][2]
        return None

    def top_of(self, group: Group, below: float) -> Bucket | None:
        """Return the first bucket of a group that asks for less than so much."""
        entries = self.members.get(group)
        if entries is None:
            return None
        contest = self.contest
        if entries[0][2].amount(contest) < below:
            return entries[0][2]
        smaller = (entry for entry in entries if entry[2].amount(contest) < below)
        first = min(smaller, default=None)
        return None if first is None else first[2]

    def set_full(self, is_full: bool) -> None:
        """Note whether so much is known to be unavailable."""
        if is_full is not self.is_full:
            self.is_full = is_full
            contest = self.contest
            contest.lacking = min(
                (line.amount for line in contest.waiting.values() if line.is_full), default=inf
            )

    def remove(self, bucket: Bucket) -> None:
        """Remove a bucket; cheap for the first of its group."""
        entries = self.members[bucket.group]
        if entries[0][2] is bucket:
            heappop(entries)
        else:
            entries[:] = [entry for entry in entries if entry[2] is not bucket]
            heapify(entries)
        if not entries:
            del self.members[bucket.group]
        bucket.line = None
        self.tasks -= len(bucket)

    def reorder(self, bucket: Bucket) -> None:
        """Reorder a bucket whose first task has changed; for a lone one `add` does it later."""
        entries = self.members[bucket.group]
        if len(entries) == 1:
            return
        if entries[0][2] is bucket:
            heapreplace(entries, _entry_of(bucket))
            return
        entries[:] = [_entry_of(bucket) if entry[2] is bucket else entry for entry in entries]
        heapify(entries)

    def _drop_stale(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2] in self.members]
        self._in_heap = {entry[2] for entry in self._heap}
        heapify(self._heap)


def _entry_of(bucket: Bucket) -> tuple[int, int, Bucket]:
    priority, sequence, _, _ = bucket.first
    return priority, sequence, bucket


def first_of_chain(bucket: Bucket) -> Bucket:
    """Return a bucket, or whoever is before it in the open line of something that it needs."""
    seen = {bucket.line}
    while (first := _before(bucket, seen)) is not None:
        bucket = first
    return bucket


def _before(bucket: Bucket, seen: set[Line | None]) -> Bucket | None:
    for contest, _ in bucket.needs:
        for line in contest.waiting.values():
            if line.is_open and line not in seen:
                seen.add(line)
                first = line.top()
                if first is not None and contest.tag(first.group) < contest.tag(bucket.group):
                    return first
    return None

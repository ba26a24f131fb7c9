# SPDX-License-Identifier: Apache-2.0
"""The fair task queue: weighted fair queueing of ready tasks between groups.

Tasks of one part of a group with equal needs share a bucket. A bucket stands in exactly one line:
that of those that may go as far as is known, or that of what it has to wait for. A line orders
groups by virtual time, and each resource has its own: a group that could not use a resource keeps
no claim to the time in which others did, and one that waits for it loses none. The parts of a
group take turns.

A denied task is not tried again before what it waits for changes: `reopen` says so. Selecting and
committing costs O(log groups), whatever is queued.

Shares by weight are decided in three places: here in which order groups are served, in
`policies.py` how much a group may hold at once, in `stores/sql/lease.py` what a worker leases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

import msgspec

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionDenied, Until
from penstock.errors import InternalError
from penstock.model.task import (
    SUBMISSION,
    SchedulableTask,
    SchedulerResourceRequest,
    TaskGroupSpec,
)

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


class Part:
    """A part of a group, such as a column of a table. The parts of a group take turns."""

    __slots__ = ("turn",)

    def __init__(self, turn: int) -> None:
        self.turn = turn  # how many tasks others must have been given before it is behind them

    def lift(self, turn: int) -> None:
        """It could not go before: it keeps no claim to the turns that others had meanwhile."""
        self.turn = max(self.turn, turn)


class Bucket:
    """Tasks of one part of a group that ask for the same, by priority and then first come."""

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
        "part",
        "size",
    )

    first: Entry

    def __init__(
        self, group: Group, part: Part, key: Hashable, needs: tuple[tuple[Contest, int], ...]
    ) -> None:
        self.group = group
        self.part = part
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

    __slots__ = (
        "buckets",
        "key",
        "order",
        "parts",
        "queued",
        "recent",
        "spec",
        "turn",
        "weight",
        "yields_in",
    )

    def __init__(self, spec: TaskGroupSpec, order: int) -> None:
        self.spec = spec
        self.key = spec.key
        self.order = order  # of its coming: between equal tags
        self.weight = spec.weight
        self.buckets: dict[Hashable, Bucket] = {}
        self.parts: dict[str, Part] = {}
        self.turn = 0  # of the part that was served last
        self.queued = 0
        #: What the latest task asked for, and its bucket: the next one mostly asks for the same.
        self.recent: tuple[SchedulerResourceRequest, Hashable, str, Bucket] | None = None
        self.yields_in: dict[Line, int] = {}  # where it yields to others, with how many buckets

    def take_turn(self, part: Part) -> None:
        """Count a task of a part that is served; alone it has nobody to take turns with."""
        if len(self.parts) > 1:
            self.turn = max(self.turn, part.turn)
            part.turn += 1

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
        self.members: dict[Group, list[Place]] = {}
        self.tasks = 0
        self.passed = 0  # of the resource: so much went to smaller tasks while it was closed
        self.patience: float = 1  # of the resource: so much may pass, then it is kept for this line
        self._heap: list[tuple[float, int, Group]] = []
        self._in_heap: set[Group] = set()

    def add(self, bucket: Bucket) -> None:
        group = bucket.group
        bucket.line = self
        entries = self.members.get(group)
        if entries is None:
            self.members[group] = [_place_of(bucket)]
            if group not in self._in_heap:  # else `top` puts it right
                self._in_heap.add(group)
                heappush(self._heap, (self.contest.tag(group), group.order, group))
                if len(self._heap) > STALE_KEPT + 2 * len(self.members):
                    self._drop_stale()
        else:
            if len(entries) == 1:
                entries[0] = _place_of(entries[0][3])  # see reorder
            heappush(entries, _place_of(bucket))
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
            return _first(entries)
        return None

    def top_of(self, group: Group, below: float) -> Bucket | None:
        """Return the first bucket of a group that asks for less than so much."""
        entries = self.members.get(group)
        if entries is None:
            return None
        contest, first = self.contest, _first(entries)
        if first.amount(contest) < below:
            return first
        smaller = (_place_of(entry[3]) for entry in entries if entry[3].amount(contest) < below)
        found = min(smaller, default=None)
        return None if found is None else found[3]

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
        if entries[0][3] is bucket:
            heappop(entries)
        else:
            entries[:] = [entry for entry in entries if entry[3] is not bucket]
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
        if entries[0][3] is bucket:
            heapreplace(entries, _place_of(bucket))
            return
        entries[:] = [_place_of(bucket) if entry[3] is bucket else entry for entry in entries]
        heapify(entries)

    def _drop_stale(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2] in self.members]
        self._in_heap = {entry[2] for entry in self._heap}
        heapify(self._heap)


#: (-priority, turn of its part, sequence, bucket): the order of buckets inside a group.
Place = tuple[int, int, int, Bucket]


def _place_of(bucket: Bucket) -> Place:
    priority, sequence, _, _ = bucket.first
    return priority, bucket.part.turn, sequence, bucket


def _first(entries: list[Place]) -> Bucket:
    """Return the first of a heap in which the turns of parts may be from before they grew."""
    while len(entries) > 1:
        _, turn, _, bucket = entries[0]
        if turn == bucket.part.turn:
            return bucket
        heapreplace(entries, _place_of(bucket))
    return entries[0][3]


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


class CapacityChanges(msgspec.Struct):
    """Capacity that was freed or changed, so that denied tasks may be tried again."""

    resources: set[str] = msgspec.field(default_factory=set)
    groups: set[str] = msgspec.field(default_factory=set)
    gates: set[Hashable] = msgspec.field(default_factory=set)
    everything: bool = False


class QueueFacts:
    """The state of a queue that its view reads; the queue alone writes it."""

    __slots__ = ("blocked", "contests", "groups", "places", "version")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.places: dict[Hashable, Entry] = {}  # task → where it is
        self.contests: dict[str, Contest] = {}
        self.blocked: dict[Line, None] = {}  # lines in which somebody waits for something
        self.version = 0


class QueueSnapshot(msgspec.Struct, frozen=True):
    """A copy of the state of a queue."""

    queued_total: int
    queued_by_group: Mapping[str, int]
    demand_by_group: Mapping[str, Mapping[str, int]]
    blocked_by_reason: Mapping[DenialReason, int]
    version: int


class BlockedLine(msgspec.Struct, frozen=True):
    """Queued tasks that wait for one thing, and the last answer that one of them got."""

    denied: TaskAdmissionDenied
    tasks: int
    groups: int


class QueueView:
    """A live read-only view of a queue. Nothing is copied unless `snapshot` is called."""

    __slots__ = ("_facts",)

    def __init__(self, facts: QueueFacts) -> None:
        self._facts = facts

    @property
    def queued_total(self) -> int:
        return len(self._facts.places)

    @property
    def version(self) -> int:
        return self._facts.version

    def queued(self, group: str) -> int:
        """Return how many tasks of a group are queued."""
        found = self._facts.groups.get(group)
        return found.queued if found is not None else 0

    def groups(self) -> Iterable[str]:
        return self._facts.groups.keys()

    def rivals(self, group: str, resource: str) -> int:
        """Return how many other groups compete for a resource now."""
        contest = self._facts.contests.get(resource)
        if contest is None:
            return 0
        return len(contest.claimants) - (group in contest.claimants)

    def rivalry(self, group: TaskGroupSpec, resource: str) -> tuple[int, int]:
        """Return the rivals, and the weight of all who compete, this group among them."""
        contest = self._facts.contests.get(resource)
        if contest is None:
            return 0, group.weight
        claimants = contest.claimants
        if group.key in claimants:
            return len(claimants) - 1, contest.weight
        return len(claimants), contest.weight + group.weight

    def is_behind(self, group: str, resource: str) -> bool:
        """True if a group that yields comes before this one once nobody is left to yield to."""
        facts = self._facts
        contest, found = facts.contests.get(resource), facts.groups.get(group)
        if contest is None or found is None or not contest.yielding.tasks:
            return False
        first = contest.yielding.top()
        if first is None or first.group is found:
            return False
        return contest.tag(first.group) < contest.tag(found)

    def blocked(self) -> Iterator[BlockedLine]:
        """Yield every line of tasks that wait for something."""
        for line in self._facts.blocked:
            if line.denied is not None:
                yield BlockedLine(line.denied, line.tasks, len(line.members))

    def binding(self) -> TaskAdmissionDenied | None:
        """Return the binding constraint, which holds back most tasks; None: nothing does.

        A resource that is used up comes before a provider that has no room: whoever waits for the
        provider could not start either.
        """
        found: Line | None = None
        for line in self._facts.blocked:
            if line.denied is not None and (found is None or _weight(line) > _weight(found)):
                found = line
        return None if found is None else found.denied

    def snapshot(self) -> QueueSnapshot:
        facts = self._facts
        blocked: dict[DenialReason, int] = {}
        for line in self.blocked():
            reason = line.denied.reason
            blocked[reason] = blocked.get(reason, 0) + line.tasks
        return QueueSnapshot(
            queued_total=len(facts.places),
            queued_by_group={key: group.queued for key, group in facts.groups.items()},
            demand_by_group={key: group.demand() for key, group in facts.groups.items()},
            blocked_by_reason=blocked,
            version=facts.version,
        )


def _weight(line: Line) -> tuple[bool, int]:
    denied = line.denied
    return denied is not None and denied.until is Until.CAPACITY, line.tasks


#: Decides whether a task may start now: True, or the denial. After a bare False the task is tried
#: again in every selection and goes on competing, since nothing is known of why.
IsEligible = Callable[[SchedulableTask, QueueView], bool | TaskAdmissionDenied]


class QueueSelection(msgspec.Struct, frozen=True, gc=False):
    """A task that may start; nothing has changed yet."""

    item: SchedulableTask
    queue_view: QueueView
    sequence_version: int  # of the queue: after any change of it this is not to be committed


class FairTaskQueue:
    """Owns membership and order of ready tasks. Knows no capacity. Belongs to one loop."""

    def __init__(self) -> None:
        self._facts = QueueFacts()
        self._submissions = self._contest(SUBMISSION)
        self._submissions.buckets = 1  # never forgotten
        self._free = Line(self._submissions)  # may go, as far as is known
        self._gates: dict[Hashable, Line] = {}  # lines that no resource opens
        self._open: dict[Line, None] = {}  # in the order in which they were opened
        self._conceded: dict[Line, None] = {}  # the same of those who yield: they come last
        self._eased: dict[tuple[Line, Group], float] = {}  # see _ease
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
        """Return the live view."""
        return self._view

    # ── Membership ────────────────────────────────────────────────────────────────────────────

    def enqueue(self, items: Iterable[SchedulableTask]) -> tuple[Hashable, ...]:
        """Add tasks; return the ids of those that were not there before."""
        accepted = []
        places = self._facts.places
        for item in items:
            if item.task_id in places:
                continue
            bucket = self._bucket_of(item)
            self._sequence += 1
            entry = (-item.priority, self._sequence, item, bucket)
            places[item.task_id] = entry
            is_first = bucket.add(entry)
            bucket.group.queued += 1
            if bucket.line is None:
                self._free.add(bucket)
                for contest, _ in bucket.needs:
                    contest.claim(bucket.group)
            else:
                bucket.line.tasks += 1
                if is_first:
                    bucket.line.reorder(bucket)
            accepted.append(item.task_id)
        if accepted:
            self._facts.version += 1
        return tuple(accepted)

    def discard(self, task_id: Hashable) -> bool:
        """Remove a task that must not run; False if it is not queued."""
        entry = self._facts.places.pop(task_id, None)
        if entry is None:
            return False
        bucket = entry[3]
        line = self._line_of(bucket)
        self._facts.version += 1
        bucket.group.queued -= 1
        line.tasks -= 1
        if bucket.drop(entry):
            if len(bucket):
                line.reorder(bucket)
            else:
                self._retire(bucket)
        return True

    def discard_where(self, predicate: Callable[[SchedulableTask], bool]) -> list[SchedulableTask]:
        """Remove every task for which a predicate is true; looks at all of them."""
        found = [item for item in self.tasks() if predicate(item)]
        for item in found:
            self.discard(item.task_id)
        return found

    def tasks(self) -> list[SchedulableTask]:
        """Return all queued tasks, in no particular order."""
        return [
            entry[2]
            for group in self._facts.groups.values()
            for bucket in group.buckets.values()
            for entry in bucket
        ]

    def denial_of(self, task_id: Hashable) -> TaskAdmissionDenied | None:
        """Return the denial that keeps a task waiting; None: none is known, or it is not queued."""
        place = self._facts.places.get(task_id)
        if place is None:
            return None
        line = self._line_of(place[3])
        return None if line is self._free else line.denied

    # ── Selecting ─────────────────────────────────────────────────────────────────────────────

    def select_next(self, is_eligible: IsEligible) -> QueueSelection | None:
        """Return the next task among those that may start. Neither members nor order change."""
        view = self._view
        set_aside: list[tuple[Bucket, Line]] = []
        try:
            while (bucket := self._candidate()) is not None:
                item = bucket.first[2]
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
                self._move(bucket, self._free)
        return None

    def commit(self, selection: QueueSelection) -> SchedulableTask | None:
        """Remove the selected task; None if the queue has changed since it was selected."""
        item, facts = selection.item, self._facts
        if selection.sequence_version != facts.version:
            return None
        entry = facts.places.pop(item.task_id, None)
        if entry is None:
            return None
        facts.version += 1
        bucket = entry[3]
        line, group = bucket.line, bucket.group
        if line is None:
            raise _in_no_line()
        for contest, amount in bucket.needs:
            contest.charge(group, amount)
            if contest.largest > amount:
                contest.note_passing(amount)
        group.queued -= 1
        group.take_turn(bucket.part)
        if line.passed:
            self._stop_keeping(line)
        line.tasks -= 1
        if bucket.take_first():
            line.reorder(bucket)
        else:
            self._retire(bucket, served=True)
        return item

    def reopen(self, changes: CapacityChanges) -> None:
        """Let tasks that waited for changed capacity be tried again."""
        if changes.everything:
            self._reopen_all()
            return
        for resource in sorted(changes.resources):
            contest = self._facts.contests.get(resource)
            if contest is not None:
                for line in contest.waiting.values():
                    self._open_line(line)
        for key in sorted(changes.groups):
            group = self._facts.groups.get(key)
            if group is not None:
                if group.yields_in:
                    self._ease(group, *group.yields_in)
                if self._gates and (own := self._gates.get((Until.OWN, key))) is not None:
                    for place in [*own.members[group]]:
                        self._move(place[3], self._free)
        for gate in changes.gates:
            found = self._gates.get((Until.GATE, gate))
            if found is not None:
                self._open_line(found)

    def _reopen_all(self) -> None:
        for group in self._facts.groups.values():
            for bucket in group.buckets.values():
                self._move(bucket, self._free)

    def _ease(self, group: Group, *lines: Line) -> None:
        """Let the first bucket of a group that yields compete again: it may be its turn.

        The group has given something back, or is the only one left that competes. If its first
        bucket cannot go, the others are asked for, but not those that ask for as much.
        """
        for line in lines:
            bucket = line.top_of(group, inf)
            if bucket is not None:
                self._eased[line, group] = inf
                self._move(bucket, self._free)

    def _open_line(self, line: Line) -> None:
        if line.tasks:
            line.is_open = True
            line.set_full(False)
            self._opened(line)[line] = None

    def _opened(self, line: Line) -> dict[Line, None]:
        return self._conceded if line is line.contest.yielding else self._open

    def _close_line(self, line: Line) -> None:
        line.is_open = False
        self._opened(line).pop(line, None)

    def _candidate(self) -> Bucket | None:
        """Return the next bucket to try; those that are known not to fit are moved on the way."""
        while True:
            if self._open:
                line = next(iter(self._open))
                bucket = line.top()
                if bucket is None:
                    self._close_line(line)
                    continue
                if len(self._open) > 1:
                    bucket = first_of_chain(bucket)
            elif (bucket := self._free.top()) is not None:
                pass
            elif self._eased:
                (line, group), below = next(iter(self._eased.items()))
                bucket = line.top_of(group, below)
                if bucket is None:
                    del self._eased[line, group]
                    continue
            elif self._conceded:
                bucket = next(iter(self._conceded)).top()
            if bucket is None:
                return None
            if not (self._facts.blocked and self._is_full_for(bucket)):
                return bucket

    def _is_full_for(self, bucket: Bucket) -> bool:
        """Move it to the line of a resource that is known to be used up or kept; False: none is."""
        for contest, amount in bucket.needs:
            if amount < contest.lacking and amount >= contest.largest:
                continue
            for line in contest.waiting.values():
                if not line.tasks:
                    continue
                is_lacking = line.is_full and amount >= line.amount
                if is_lacking or (line.passed >= line.patience and amount < line.amount):
                    to = contest.line_for(amount)
                    to.denied, to.patience = line.denied, line.patience
                    self._close_line(to)
                    to.set_full(is_lacking)
                    self._move(bucket, to)
                    return True
        return False

    def _stop_keeping(self, line: Line) -> None:
        """Open the lines of smaller tasks if all was kept for a line that got some, or is empty."""
        kept = line.passed >= line.patience
        line.passed = 0
        if kept:
            for other in line.contest.waiting.values():
                if other.amount < line.amount:
                    self._open_line(other)

    def _park(self, bucket: Bucket, denied: TaskAdmissionDenied) -> None:
        came_from, line = bucket.line, self._line_for(bucket, denied)
        line.denied = denied
        self._close_line(line)
        self._move(bucket, line)
        if denied.until is Until.CAPACITY:
            line.set_full(True)
            line.patience = max(1, denied.numbers.get("limit", 1))
        elif denied.until is Until.PEERS:
            eased = (line, bucket.group)
            if eased in self._eased:
                self._eased[eased] = bucket.amount(line.contest)
            was_first = came_from is line and line.top() is bucket
            if not line.contest.claimants and not was_first:
                self._open_line(line)  # it stands behind others who may go

    def _line_for(self, bucket: Bucket, denied: TaskAdmissionDenied) -> Line:
        until = denied.until
        if until is Until.CAPACITY or until is Until.PEERS:
            if denied.resource is None:
                raise InternalError(f"A denial until {until} names no resource.")
            contest = self._facts.contests[denied.resource]
            if until is Until.PEERS:
                return contest.yielding
            return contest.line_for(bucket.amount(contest))
        key: Hashable = (until, denied.resource)
        if until is Until.OWN:
            key = (until, bucket.group.key)
        elif until is Until.GATE:
            key = (until, denied.item.request_resource_key)
        line = self._gates.get(key)
        if line is None:
            line = self._gates[key] = Line(self._submissions, key)
        return line

    def _move(self, bucket: Bucket, to: Line) -> None:
        """Move a bucket to another line, where it competes accordingly."""
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
        has = self._claims(bucket, to)
        if has is not had:
            for contest, _ in has:
                contest.claim(group)
            self._unclaim(group, had)

    def _leave(self, bucket: Bucket, line: Line) -> None:
        line.remove(bucket)
        group = bucket.group
        if line.gate is not None:
            bucket.part.lift(group.turn)
        yields_in = group.yields_in
        if line in yields_in:
            yields_in[line] -= 1
            if not yields_in[line]:
                del yields_in[line]
        if not line.members and line is not self._free:
            self._facts.blocked.pop(line, None)
            self._close_line(line)
            if line.passed:
                self._stop_keeping(line)
            if line.gate is not None:
                self._gates.pop(line.gate, None)

    def _unclaim(self, group: Group, claims: Iterable[tuple[Contest, int]]) -> None:
        for contest, _ in claims:
            contest.unclaim(group)
            claimants, yielding = contest.claimants, contest.yielding
            if yielding.tasks and group.key not in claimants and len(claimants) < 2:
                if not claimants:
                    self._open_line(yielding)  # there is nobody left to yield to
                for key in [*claimants]:
                    self._ease(self._facts.groups[key], yielding)

    def _claims(self, bucket: Bucket, line: Line) -> tuple[tuple[Contest, int], ...]:
        """Return what a bucket competes for in its line.

        1. Whoever may go competes for all that it needs; so does whoever waits for a submission,
        without which nobody can go. 2. Whoever waits for another resource competes for that one.
        3. Whoever waits for anything else competes for nothing.
        """
        if line is self._free:
            return bucket.needs
        if line.contest is self._submissions and line.amount:
            return bucket.needs
        if line.amount:
            return ((line.contest, 0),)
        return ()

    def _retire(self, bucket: Bucket, *, served: bool = False) -> None:
        """Forget a bucket that is empty, and what nobody else needs."""
        line, group = self._line_of(bucket), bucket.group
        self._leave(bucket, line)
        claims = self._claims(bucket, line)
        self._unclaim(group, claims)
        if served:
            for contest, _ in claims:
                contest.depart(group, bucket.amount(contest))
        del group.buckets[bucket.key]
        del bucket.first  # it knows its bucket: both would wait for the next search for cycles
        group.recent = None
        for contest, _ in bucket.needs:
            contest.buckets -= 1
            if not contest.buckets:
                del self._facts.contests[contest.resource]
        if not group.buckets:
            del self._facts.groups[group.key]
            if not self._facts.groups:
                self._submissions.tags.clear()

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
            group = self._facts.groups[spec.key] = Group(spec, self._sequence)
        elif group.spec is not spec and group.spec != spec:
            self._respecify(group, spec)
        request, gate, name = item.resource_request, item.request_resource_key, item.part
        recent = group.recent
        if recent is not None and recent[0] is request and recent[1] is gate and recent[2] == name:
            return recent[3]
        wanted = request.needs
        key = (wanted, gate, name)
        bucket = group.buckets.get(key)
        if bucket is None:
            needs = tuple((self._contest(resource), amount) for resource, amount in wanted)
            for contest, _ in needs:
                contest.buckets += 1
            part = group.parts.setdefault(name, Part(group.turn))
            part.lift(group.turn)
            bucket = group.buckets[key] = Bucket(group, part, key, needs)
        group.recent = (request, gate, name, bucket)
        return bucket

    def _respecify(self, group: Group, spec: TaskGroupSpec) -> None:
        """Give a group the weight and limit of its latest task."""
        if spec.weight != group.weight:
            for contest in self._facts.contests.values():
                contest.reweigh(group, spec.weight)
            group.weight = spec.weight
        group.spec = spec
        self._ease(group, *group.yields_in)

    @staticmethod
    def _line_of(bucket: Bucket) -> Line:
        if bucket.line is None:
            raise _in_no_line()
        return bucket.line


def _in_no_line() -> InternalError:
    return InternalError("A bucket with tasks stands in no line.")

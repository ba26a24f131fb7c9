# SPDX-License-Identifier: Apache-2.0
"""What is queued, by group and by resource?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

import msgspec

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionDenied, Until
from penstock.admission.tasks.fair_lines import Contest, Entry, Group, Line
from penstock.model.task import SchedulableTask, TaskGroupSpec


class QueueFacts:
    """What a queue keeps up to date with every change; the queue alone writes it."""

    __slots__ = ("blocked", "contests", "groups", "places", "version")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.places: dict[Hashable, Entry] = {}  # task → where it is
        self.contests: dict[str, Contest] = {}
        self.blocked: dict[Line, None] = {}  # lines in which somebody waits for something
        self.version = 0


class QueueSnapshot(msgspec.Struct, frozen=True):
    """The facts of a queue at one moment, copied."""

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
    """A live read-only face of a queue. Nothing is copied unless `snapshot` is called."""

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
        """How many tasks of a group are queued."""
        found = self._facts.groups.get(group)
        return found.queued if found is not None else 0

    def demand(self, group: str, resource: str) -> int:
        """How much of a resource the queued tasks of a group ask for."""
        found = self._facts.groups.get(group)
        return found.demand().get(resource, 0) if found is not None else 0

    def peer_demand(self, group: str, resource: str) -> int:
        """How much of a resource the queued tasks of all other groups ask for."""
        return sum(self.demand(key, resource) for key in self._facts.groups if key != group)

    def first_candidate(self, group: str) -> SchedulableTask | None:
        """The task of a group that is next by priority and order, whether it may start or not."""
        found = self._facts.groups.get(group)
        if found is None:
            return None
        return min(bucket.first for bucket in found.buckets.values())[2]

    def groups(self) -> Iterable[str]:
        return self._facts.groups.keys()

    def rivals(self, group: str, resource: str) -> int:
        """Other groups that could use some of a resource now, if they got it."""
        contest = self._facts.contests.get(resource)
        if contest is None:
            return 0
        return len(contest.claimants) - (group in contest.claimants)

    def rivalry(self, group: TaskGroupSpec, resource: str) -> tuple[int, int]:
        """The same, and the weight of all who compete, this group among them."""
        contest = self._facts.contests.get(resource)
        if contest is None:
            return 0, group.weight
        claimants = contest.claimants
        if group.key in claimants:
            return len(claimants) - 1, contest.weight
        return len(claimants), contest.weight + group.weight

    def is_behind(self, group: str, resource: str) -> bool:
        """Does a group that yields come before this one, should nobody be left to yield to?"""
        facts = self._facts
        contest, found = facts.contests.get(resource), facts.groups.get(group)
        if contest is None or found is None or not contest.yielding.tasks:
            return False
        first = contest.yielding.top()
        if first is None or first.group is found:
            return False
        return contest.tag(first.group) < contest.tag(found)

    def blocked(self) -> Iterator[BlockedLine]:
        """Every line of tasks that wait for something."""
        for line in self._facts.blocked:
            if line.denied is not None:
                yield BlockedLine(line.denied, line.tasks, len(line.members))

    def binding(self) -> TaskAdmissionDenied | None:
        """What keeps most tasks back; None: nothing.

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

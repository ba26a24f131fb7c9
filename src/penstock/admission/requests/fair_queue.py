# SPDX-License-Identifier: Apache-2.0
"""Whose request is next, fairly?

Start-time fair queueing between the groups that wait for one provider's model, by weight; first
come first served inside a group, and between groups whose turn it is at the same time. Domains
may be closed one by one, so each has a heap of its own over the one virtual clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace

import msgspec

from penstock.admission.requests.decisions import RequestAdmissionDenied, RequestAdmissionLease
from penstock.errors import InternalError
from penstock.model.request import RequestAdmissionItem

TAGS_KEPT = 1_024  # of groups that have nobody waiting; beyond, all of those are forgotten


class RequestWaiter:
    """One request that waits, and what became of it."""

    __slots__ = ("deadline", "denied", "is_waiting", "item", "lease", "line", "sequence", "since")

    def __init__(self, item: RequestAdmissionItem, since: float, deadline: float | None) -> None:
        self.item = item
        self.since = since
        self.deadline = deadline
        self.sequence = 0
        self.line: _Line | None = None
        self.is_waiting = False
        self.lease: RequestAdmissionLease | None = None
        self.denied: RequestAdmissionDenied | None = None


class RequestQueueView(msgspec.Struct, frozen=True):
    """Who waits, copied."""

    waiting: int
    waiting_by_group: Mapping[str, int]
    waiting_by_domain: Mapping[str, int]


class _Line:
    """The waiters of one group in one domain."""

    __slots__ = ("domain", "group", "in_heap", "size", "waiters", "weight")

    def __init__(self, domain: str, group: str, weight: int) -> None:
        self.domain = domain
        self.group = group
        self.weight = weight
        self.waiters: deque[RequestWaiter] = deque()  # those that have left are still in it
        self.size = 0  # without those
        self.in_heap = False

    def head(self) -> RequestWaiter | None:
        waiters = self.waiters
        while waiters and not waiters[0].is_waiting:
            waiters.popleft()
        return waiters[0] if waiters else None


class RequestFairQueue:
    """Owns the order of those who wait for one provider's model. Knows no limit."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], _Line] = {}
        self._heaps: dict[str, list[tuple[float, int, _Line]]] = {}  # by domain
        self._tags: dict[str, float] = {}  # group → when its next turn is
        self._waiting_by_group: dict[str, int] = {}
        self._v = 0.0  # the tag of the group that was served last
        self._sequence = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<RequestFairQueue {self._size} waiting in {len(self._waiting_by_group)} groups>"

    def enqueue(self, waiter: RequestWaiter) -> None:
        """Let a request wait."""
        if waiter.is_waiting:
            raise InternalError("A request that waits cannot begin to wait again.")
        self._sequence += 1
        waiter.sequence = self._sequence
        waiter.is_waiting = True
        domain, group = waiter.item.resource.domain, waiter.item.group
        line = self._lines.get((domain, group.key))
        if line is None:
            line = self._lines[domain, group.key] = _Line(domain, group.key, group.weight)
        line.weight = group.weight
        line.waiters.append(waiter)
        line.size += 1
        waiter.line = line
        count = self._waiting_by_group.get(group.key, 0)
        if not count and self._tags.get(group.key, -1.0) < self._v:
            self._tags[group.key] = self._v  # time in which it wanted nothing gives no claim
        self._waiting_by_group[group.key] = count + 1
        self._size += 1
        if not line.in_heap:
            line.in_heap = True
            heap = self._heaps.setdefault(domain, [])
            heappush(heap, (self._tags[group.key], waiter.sequence, line))

    def select_next(self, is_open: Callable[[str], bool]) -> RequestWaiter | None:
        """The waiter whose turn it is, in the domains that are open. Nothing changes."""
        best: tuple[float, int] | None = None
        found: RequestWaiter | None = None
        for domain, heap in self._heaps.items():
            if not heap or not is_open(domain):
                continue
            top = self._top(heap)
            if top is None:
                continue
            place = (self._tags[top.item.group.key], top.sequence)
            if best is None or place < best:
                best, found = place, top
        return found

    def commit(self, waiter: RequestWaiter) -> None:
        """The selected one goes: it leaves the line, and its group's next turn is later."""
        group = waiter.item.group
        tag = self._tags[group.key]
        self._v = max(self._v, tag)
        self._tags[group.key] = tag + 1.0 / group.weight
        self._take_out(waiter)

    def remove(self, waiter: RequestWaiter) -> bool:
        """One gives up; False if it does not wait."""
        if not waiter.is_waiting:
            return False
        self._take_out(waiter)
        return True

    def waiting(self, domain: str) -> int:
        """How many wait in a domain."""
        return sum(line.size for line in self._lines.values() if line.domain == domain)

    def view(self) -> RequestQueueView:
        by_domain: dict[str, int] = {}
        for line in self._lines.values():
            by_domain[line.domain] = by_domain.get(line.domain, 0) + line.size
        return RequestQueueView(self._size, dict(self._waiting_by_group), by_domain)

    def _top(self, heap: list[tuple[float, int, _Line]]) -> RequestWaiter | None:
        """The first waiter of a heap; what has changed since it was put there is put right."""
        while heap:
            tag, sequence, line = heap[0]
            head = line.head()
            if head is None:
                heappop(heap)
                line.in_heap = False
                continue
            place = (self._tags[line.group], head.sequence)
            if place != (tag, sequence):
                heapreplace(heap, (*place, line))
                continue
            return head
        return None

    def _take_out(self, waiter: RequestWaiter) -> None:
        line = waiter.line
        if line is None or not waiter.is_waiting:
            raise InternalError("A request that does not wait cannot leave.")
        waiter.is_waiting = False
        waiter.line = None
        line.size -= 1
        self._size -= 1
        if line.waiters[0] is waiter:
            line.waiters.popleft()
        elif len(line.waiters) > 2 * line.size + 16:
            line.waiters = deque(x for x in line.waiters if x.is_waiting)
        if not line.size:
            del self._lines[line.domain, line.group]
            line.waiters.clear()
        left = self._waiting_by_group[line.group] - 1
        if left:
            self._waiting_by_group[line.group] = left
            return
        del self._waiting_by_group[line.group]
        if len(self._tags) > TAGS_KEPT + 2 * len(self._waiting_by_group):
            self._tags = {key: tag for key, tag in self._tags.items() if self._keeps(key)}

    def _keeps(self, group: str) -> bool:
        return group in self._waiting_by_group or self._tags[group] > self._v

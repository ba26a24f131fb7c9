# SPDX-License-Identifier: Apache-2.0
"""The fair queue of requests that wait for one provider's model.

Start-time fair queueing between the groups that wait for one provider's model, by weight; first
come first served inside a group, and between groups whose turn it is at the same time. Domains
may be closed one by one, so each has a heap of its own over the one virtual clock. A request that
the provider refused once goes ahead of its group; one that was refused again has to wait its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from penstock.admission.requests.alarms import Alarm
from penstock.admission.requests.decisions import RequestAdmissionDenied, RequestAdmissionLease
from penstock.errors import InternalError
from penstock.model.request import RequestAdmissionItem

TAGS_KEPT = 1_024  # of groups that have nobody waiting; beyond, those without a debt are forgotten
STALE_KEPT = 64  # stale entries of a heap, and stale waiters of a line, that are kept
AHEAD = 1 << 60  # of the sequence: who was refused once comes before all who were not


class RequestWaiter:
    """One request that waits for a permit, and then its answer."""

    __slots__ = (
        "alarm",
        "deadline",
        "denied",
        "is_waiting",
        "item",
        "lease",
        "line",
        "sequence",
        "since",
    )

    def __init__(self, item: RequestAdmissionItem, since: float, deadline: float | None) -> None:
        self.item = item
        self.since = since
        self.deadline = deadline
        self.alarm: Alarm | None = None  # of the deadline
        self.sequence = 0
        self.line: _Line | None = None
        self.is_waiting = False
        self.lease: RequestAdmissionLease | None = None
        self.denied: RequestAdmissionDenied | None = None

    def __repr__(self) -> str:
        state = "waits" if self.is_waiting else "has a lease" if self.lease else "does not wait"
        return f"<RequestWaiter of {'/'.join(self.item.resource)} {state}>"


class _Line:
    """The waiters of one group in one domain."""

    __slots__ = ("domain", "group", "place", "resent", "size", "waiters")

    def __init__(self, domain: _Domain, group: str) -> None:
        self.domain = domain
        self.group = group
        self.resent: deque[RequestWaiter] = deque()  # refused once: before the others
        self.waiters: deque[RequestWaiter] = deque()  # those that have left are still in it
        self.size = 0  # without those
        self.place: tuple[float, int] | None = None  # of its entry in the heap that counts

    def head(self) -> RequestWaiter | None:
        for waiters in (self.resent, self.waiters):
            while waiters:
                if waiters[0].is_waiting:
                    return waiters[0]
                waiters.popleft()
        return None


class _Domain:
    """The lines of one domain, ordered by their group's next turn."""

    __slots__ = ("heap", "lines", "size")

    def __init__(self) -> None:
        self.lines: dict[str, _Line] = {}  # by group
        self.heap: list[tuple[float, int, _Line]] = []  # a place is never later than the true one
        self.size = 0


class RequestFairQueue:
    """Owns the order of those who wait for one provider's model. Knows no limit."""

    __slots__ = ("_domains", "_sequence", "_size", "_tags", "_v", "_waiting_by_group")

    def __init__(self) -> None:
        self._domains: dict[str, _Domain] = {}
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
        """Add a waiter."""
        if waiter.is_waiting:
            raise InternalError("A request that waits cannot begin to wait again.")
        item = waiter.item
        group = item.group.key
        domain = self._domains.get(item.resource.domain)
        if domain is None:
            domain = self._domains[item.resource.domain] = _Domain()
        line = domain.lines.get(group)
        if line is None:
            line = domain.lines[group] = _Line(domain, group)
        self._sequence += 1
        waiter.is_waiting = True
        waiter.line = line
        line.size += 1
        domain.size += 1
        self._size += 1
        count = self._waiting_by_group.get(group, 0)
        self._waiting_by_group[group] = count + 1
        if not count and self._tags.get(group, -1.0) < self._v:
            self._tags[group] = self._v  # time in which it wanted nothing gives no claim
        if item.refusals == 1:
            waiter.sequence = self._sequence - AHEAD
            line.head()  # those at the front that have left are gone
            is_first = not line.resent
            line.resent.append(waiter)
        else:
            waiter.sequence = self._sequence
            is_first = line.size == 1
            line.waiters.append(waiter)
        if is_first:
            line.place = place = (self._tags[group], waiter.sequence)
            heappush(domain.heap, (*place, line))

    def select_next(
        self, may_go: Callable[[RequestWaiter], bool] | None = None
    ) -> RequestWaiter | None:
        """Return whose turn it is, among the first of each domain that may go. Nothing changes."""
        best: tuple[float, int] | None = None
        found: RequestWaiter | None = None
        for domain in self._domains.values():
            if not domain.size:
                continue
            top = self._top(domain)
            if may_go is not None and not may_go(top):
                continue
            place = (self._tags[top.item.group.key], top.sequence)
            if best is None or place < best:
                best, found = place, top
        return found

    def commit(self, waiter: RequestWaiter) -> None:
        """Take the selected waiter out, and move its group's next turn later."""
        group = waiter.item.group
        # A group that could not be served meanwhile has no claim on what others got.
        self._v = tag = max(self._v, self._tags[group.key])
        self._tags[group.key] = tag + 1.0 / group.weight
        self._take_out(waiter)

    def remove(self, waiter: RequestWaiter) -> bool:
        """Take a waiter out; False if it does not wait."""
        if not waiter.is_waiting:
            return False
        self._take_out(waiter)
        return True

    def waiting(self, domain: str) -> int:
        """Return how many wait in a domain."""
        found = self._domains.get(domain)
        return 0 if found is None else found.size

    def _top(self, domain: _Domain) -> RequestWaiter:
        """Return the first waiter of a domain, and reorder what has changed since."""
        heap = domain.heap
        while heap:
            tag, sequence, line = heap[0]
            if line.place != (tag, sequence):
                heappop(heap)
                continue
            head = line.head()
            if head is None:
                raise InternalError("A line has waiting requests but none is first.")
            place = (self._tags[line.group], head.sequence)
            if place == line.place:
                return head
            line.place = place
            heapreplace(heap, (*place, line))
        raise InternalError("A domain has waiting requests but none is next.")

    def _take_out(self, waiter: RequestWaiter) -> None:
        line = waiter.line
        if line is None or not waiter.is_waiting:
            raise InternalError("A request that does not wait cannot leave.")
        waiter.is_waiting = False
        waiter.line = None
        domain, group = line.domain, line.group
        line.size -= 1
        domain.size -= 1
        self._size -= 1
        if len(line.waiters) + len(line.resent) > 2 * line.size + STALE_KEPT:
            line.waiters = deque(x for x in line.waiters if x.is_waiting)
            line.resent = deque(x for x in line.resent if x.is_waiting)
        if not line.size:
            self._forget(line)
            self._tidy(domain)
        left = self._waiting_by_group[group] - 1
        if left:
            self._waiting_by_group[group] = left
            return
        del self._waiting_by_group[group]
        if len(self._tags) > TAGS_KEPT + 2 * len(self._waiting_by_group):
            self._tags = {key: tag for key, tag in self._tags.items() if self._keeps(key)}

    def _forget(self, line: _Line) -> None:
        """Drop an empty line; its entry in the heap goes when it comes up."""
        line.place = None
        line.waiters.clear()
        line.resent.clear()
        if line.domain.lines.get(line.group) is line:
            del line.domain.lines[line.group]

    def _tidy(self, domain: _Domain) -> None:
        if len(domain.heap) > 2 * len(domain.lines) + STALE_KEPT:
            domain.heap = [entry for entry in domain.heap if entry[2].place == entry[:2]]
            heapify(domain.heap)

    def _keeps(self, group: str) -> bool:
        return group in self._waiting_by_group or self._tags[group] > self._v

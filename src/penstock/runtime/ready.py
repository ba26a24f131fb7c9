# SPDX-License-Identifier: Apache-2.0
"""Which leased job starts next?

The provisional order: groups take turns, inside a group by priority and then first come. The
fair queue and task admission will stand in this place; nothing else knows how the order is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Protocol

from penstock.model.job import LeasedJob


class ReadySource(Protocol):
    """Leased jobs that wait for a slot."""

    def add(self, jobs: Iterable[LeasedJob]) -> None: ...

    def next(self, startable: Callable[[LeasedJob], bool]) -> LeasedJob | None:
        """Take the next job out that may start now; None if there is none."""
        ...

    def clear(self) -> list[LeasedJob]:
        """Take everything out."""
        ...

    def refs(self) -> set[tuple[int, int]]:
        """The leases of all that wait."""
        ...

    def __len__(self) -> int: ...


class RoundRobinWindow:
    """Owns the leased jobs of a worker that have not started."""

    def __init__(self) -> None:
        self._groups: dict[str, list[tuple[int, int, LeasedJob]]] = {}
        self._turns: deque[str] = deque()
        self._sequence = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<RoundRobinWindow {self._count} jobs in {len(self._groups)} groups>"

    def add(self, jobs: Iterable[LeasedJob]) -> None:
        groups, sequence = self._groups, self._sequence
        count = 0
        for job in jobs:
            sequence += 1
            count += 1
            waiting = groups.get(job.group)
            if waiting is None:
                groups[job.group] = waiting = []
                self._turns.append(job.group)
            heappush(waiting, (-job.priority, sequence, job))
        self._sequence = sequence
        self._count += count

    def next(self, startable: Callable[[LeasedJob], bool]) -> LeasedJob | None:
        turns, groups = self._turns, self._groups
        for _ in range(len(turns)):
            group = turns[0]
            waiting = groups[group]
            if not startable(waiting[0][2]):
                turns.rotate(-1)
                continue
            job = heappop(waiting)[2]
            if waiting:
                turns.rotate(-1)
            else:
                turns.popleft()
                del groups[group]
            self._count -= 1
            return job
        return None

    def clear(self) -> list[LeasedJob]:
        jobs = [entry[2] for waiting in self._groups.values() for entry in waiting]
        self._groups.clear()
        self._turns.clear()
        self._count = 0
        return jobs

    def refs(self) -> set[tuple[int, int]]:
        jobs = (entry[2] for waiting in self._groups.values() for entry in waiting)
        return {(job.id, job.token) for job in jobs}

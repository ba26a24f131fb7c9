# SPDX-License-Identifier: Apache-2.0
"""How many leased jobs shall wait in the window, and of which tasks?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.model.job import LeasedJob

WINDOW_SECONDS = 0.1  # of work at the recent rate
WINDOW_MAX = 1_024  # jobs
RATE_HALF_LIFE_SECONDS = 0.5

_NOBODY: Mapping[str, int] = {}


class WindowSize:
    """Keeps the recent rate of ends and says how many jobs to lease next. Pure."""

    def __init__(self, now_monotonic: float) -> None:
        self._rate = 0.0  # ends per second
        self._count = 0
        self._since = now_monotonic

    @property
    def rate(self) -> float:
        return self._rate

    def ended(self, count: int, now_monotonic: float) -> None:
        """So many jobs have ended."""
        self._count += count
        span = now_monotonic - self._since
        if span < 0.02:
            return
        weight = 1.0 - 0.5 ** (span / RATE_HALF_LIFE_SECONDS)
        self._rate += weight * (self._count / span - self._rate)
        self._count, self._since = 0, now_monotonic

    def target(self, free_slots: int) -> int:
        """Jobs that the window should hold: 100 ms of work, but at least two for each free slot."""
        return min(WINDOW_MAX, max(2 * free_slots, round(self._rate * WINDOW_SECONDS)))

    def to_lease(self, waiting: int, free_slots: int) -> int:
        """How many to ask for now; 0 while the window is more than half full."""
        target = self.target(free_slots)
        if waiting > target // 2:
            return 0
        return max(target - waiting, 0)


class Appetite:
    """Keeps what waits by kind of slot, so that jobs without a slot do not keep others out.

    Pure: it says which tasks to ask for, for how many jobs, and how many wait that should not.
    """

    def __init__(
        self, kinds: Mapping[str, str], counts: Mapping[str, int], now_monotonic: float
    ) -> None:
        self._kinds = dict(kinds)  # task → kind of slot
        self._counts = counts  # slots of each kind
        self._tasks: dict[str, tuple[str, ...]] = {
            kind: tuple(sorted(task for task, of in kinds.items() if of == kind))
            for kind in sorted(set(kinds.values()))
        }
        self._sizes = {kind: WindowSize(now_monotonic) for kind in self._tasks}
        self._waiting = dict.fromkeys(self._tasks, 0)
        self._ended = dict.fromkeys(self._tasks, 0)  # bodies, since the rates were last looked at
        self._asked = 0  # times that one kind was chosen

    def leased(self, jobs: Iterable[LeasedJob]) -> None:
        kinds, waiting = self._kinds, self._waiting
        for job in jobs:
            waiting[kinds[job.task]] += 1

    def left(self, job: LeasedJob) -> None:
        """A job waits no longer."""
        self._waiting[self._kinds[job.task]] -= 1

    def ended(self, kind: str) -> None:
        """A body has ended."""
        self._ended[kind] += 1

    def clear(self) -> None:
        self._waiting = dict.fromkeys(self._tasks, 0)

    def wanted(
        self,
        free: Mapping[str, int],
        now_monotonic: float,
        exhausted: frozenset[str] = frozenset(),
        held_back: frozenset[str] = frozenset(),
        parked: Mapping[str, int] = _NOBODY,
    ) -> tuple[tuple[str, ...], int]:
        """The tasks to ask for, and for how many jobs in all.

        The answer may be of one kind alone, so it is never more than each kind has room for: kinds
        with about the same room are asked for together, others in turn. Tasks that are held back
        are not asked for, and those of them that are here already (`parked`, by kind) take no room.
        """
        self._note_rates(now_monotonic)
        tasks = self._tasks
        if held_back:
            tasks = {
                kind: tuple(name for name in names if name not in held_back)
                for kind, names in tasks.items()
            }
        rooms = {
            kind: self._sizes[kind].to_lease(max(waiting - parked.get(kind, 0), 0), free[kind])
            for kind, waiting in self._waiting.items()
            if tasks[kind]
        }
        kinds = [kind for kind, room in rooms.items() if room > 0]
        kinds = [kind for kind in kinds if not exhausted.issuperset(tasks[kind])] or kinds
        if not kinds:
            return (), 0
        least, most = min(rooms[kind] for kind in kinds), max(rooms[kind] for kind in kinds)
        if 2 * least < most:
            self._asked += 1
            kinds = [kinds[self._asked % len(kinds)]]
            least = rooms[kinds[0]]
        return tuple(name for kind in kinds for name in tasks[kind]), min(least, WINDOW_MAX)

    def surplus(self, free: Mapping[str, int], now_monotonic: float) -> dict[str, int]:
        """How many jobs of which kinds wait in vain: bodies take longer than they did.

        One for each slot may wait: it is the next round.
        """
        self._note_rates(now_monotonic)
        beyond: dict[str, int] = {}
        for kind, size in self._sizes.items():
            target, slots = size.target(free[kind]), self._counts[kind]
            if self._waiting[kind] > max(2 * target, slots):
                beyond[kind] = self._waiting[kind] - max(target, slots)
        return beyond

    def _note_rates(self, now_monotonic: float) -> None:
        for kind, count in self._ended.items():
            self._sizes[kind].ended(count, now_monotonic)
            self._ended[kind] = 0

    def kind(self, job: LeasedJob) -> str:
        """The kind of slot that a job needs."""
        return self._kinds[job.task]

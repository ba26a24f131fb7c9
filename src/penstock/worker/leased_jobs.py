# SPDX-License-Identifier: Apache-2.0
"""How do leased jobs become ready tasks?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from penstock.model.job import LeasedJob
from penstock.model.task import SchedulableTask


class LeasedJobs:
    """Owns the leased jobs of a worker that are not in its queue yet: a readiness source.

    A job is ready when it is leased; its end is told to the store, not here.
    """

    def __init__(self, to_task: Callable[[LeasedJob], SchedulableTask]) -> None:
        self._to_task = to_task
        self._pending: dict[Hashable, SchedulableTask] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, jobs: Iterable[LeasedJob]) -> None:
        to_task, pending = self._to_task, self._pending
        for job in jobs:
            task = to_task(job)
            pending[task.task_id] = task

    def ready_frontier(self) -> Sequence[SchedulableTask]:
        return [*self._pending.values()]

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        for task_id in ids:
            self._pending.pop(task_id, None)

    def mark_complete(self, task: SchedulableTask) -> None:
        self._pending.pop(task.task_id, None)

    def clear(self) -> list[SchedulableTask]:
        """Take everything out."""
        tasks = [*self._pending.values()]
        self._pending.clear()
        return tasks

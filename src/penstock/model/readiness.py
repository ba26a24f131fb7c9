# SPDX-License-Identifier: Apache-2.0
"""Where do ready tasks come from?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

from penstock.model.task import SchedulableTask


class ReadinessSource(Protocol):
    """Knows which tasks are ready. Every verb may be repeated without harm."""

    def ready_frontier(self) -> Iterable[SchedulableTask]:
        """Tasks that are ready and not yet acknowledged as enqueued."""
        ...

    def mark_enqueued(self, task_ids: Iterable[Hashable]) -> None:
        """Exactly these were taken into the queue."""
        ...

    def mark_complete(self, task: SchedulableTask) -> None:
        """A task is done; others may be ready now."""
        ...

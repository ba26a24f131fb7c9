# SPDX-License-Identifier: Apache-2.0
"""What is ready to be queued, and who is told what became of it?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from penstock.model.task import SchedulableTask


class ReadinessSource(Protocol):
    """Where a scheduler gets its tasks from. A verb that is repeated changes nothing more."""

    def ready_frontier(self) -> Sequence[SchedulableTask]:
        """Tasks that are ready and not yet acknowledged as enqueued."""
        ...

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        """Exactly these were taken in."""
        ...

    def mark_complete(self, task: SchedulableTask) -> None:
        """It has ended well; others may be ready now."""
        ...

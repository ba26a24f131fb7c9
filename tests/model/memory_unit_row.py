# SPDX-License-Identifier: Apache-2.0
"""What does the memory store know of a unit of a schedule besides its job?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class UnitRow:
    """Where a unit belongs, and how its ticks went."""

    app: str
    timing: str
    ticks: int = 0
    missed: int = 0
    failed: int = 0
    last_tick_at: int | None = None
    last_due_at: int | None = None  # the last occurrence that ended well
    retired_at: int | None = None

    def ticked(self, due_at: int, ended_at: int, missed: int) -> None:
        """An occurrence ended well."""
        self.ticks += 1
        self.missed += missed
        self.last_due_at, self.last_tick_at = due_at, ended_at

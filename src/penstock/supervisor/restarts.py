# SPDX-License-Identifier: Apache-2.0
"""Restart back-off: when another worker is started in the place of one that has gone."""

from __future__ import annotations

BACK_OFF_FIRST_SECONDS = 0.1
BACK_OFF_MAX_SECONDS = 10.0
SOLO_FIRST_SECONDS = 0.5
HEALTHY_SECONDS = 10.0  # a worker that lived this long resets the back-off


class Restarts:
    """Owns the starts that are due: the sooner workers go, the later. Knows no processes."""

    def __init__(self) -> None:
        self._back_off = BACK_OFF_FIRST_SECONDS
        self._planned: list[tuple[float, int]] = []  # when, and in whose place

    def __bool__(self) -> bool:
        return bool(self._planned)

    def plan(self, index: int, lived_seconds: float, now: float) -> None:
        """Start one in the place of a worker that has lived so long."""
        if lived_seconds > HEALTHY_SECONDS:
            self._back_off = BACK_OFF_FIRST_SECONDS
        self._planned.append((now + self._back_off, index))
        self._back_off = min(self._back_off * 2, BACK_OFF_MAX_SECONDS)

    def next_at(self, otherwise: float) -> float:
        """When the first is due, or something else before."""
        return min([otherwise, *(at for at, _ in self._planned)])

    def take_due(self, now: float) -> list[int]:
        due = [index for at, index in self._planned if at <= now]
        self._planned = [planned for planned in self._planned if planned[0] > now]
        return due

    def forget(self) -> None:
        """Start none of them."""
        self._planned = []


class SoloTurns:
    """Owns when a worker for suspects may be started again, if one has left some behind."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._pause = SOLO_FIRST_SECONDS

    def ended(self, now: float) -> None:
        """What it left it could not run: another app's task, a full limit, a budget."""
        self._next_at = now + self._pause
        self._pause = min(self._pause * 2, BACK_OFF_MAX_SECONDS)

    def nothing_left(self) -> None:
        self._pause = SOLO_FIRST_SECONDS

    def is_due(self, now: float) -> bool:
        return now >= self._next_at

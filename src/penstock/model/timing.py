# SPDX-License-Identifier: Apache-2.0
"""When does something that recurs come next?"""

from __future__ import annotations

from typing import NamedTuple, Protocol

MISSED_MAX = 1_000  # missed ticks of a cron expression that are counted; "at least" from there on


class NextTick(NamedTuple):
    """The occurrence that follows, and how many passed in between."""

    at: int  # microseconds since 1970 UTC
    missed: int  # that lie between the last one and now; nobody makes them up


class Timing(Protocol):
    """The rhythm of a schedule. Synchronous; times are microseconds since 1970 UTC."""

    @property
    def text(self) -> str:
        """Canonical: "every 10 s", "cron 0 3 * * 1-5 Europe/Berlin". The same text, the same."""
        ...

    def first(self, now: int, spread: float = 0.0, units_count: int = 1) -> int:
        """The first occurrence of a new unit.

        Args:
            now: what time it is.
            spread: a number in [0, 1), so that units do not all begin together.
            units_count: how many begin; one alone begins at once.
        """
        ...

    def after(self, due_at: int, now: int) -> NextTick:
        """The occurrence after one that was due then: later than it, and later than now."""
        ...

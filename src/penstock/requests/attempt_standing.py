# SPDX-License-Identifier: Apache-2.0
"""What do the requests of an attempt know of it, and it of them?"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from penstock.requests.attempt_context import Standing


class AttemptStanding(Standing):
    """The standing of one running attempt; tells when it waits for its provider, and no longer."""

    __slots__ = ("_asked", "_waits", "wait_began")

    def __init__(
        self,
        job: str,
        deadline: float,
        asked: Callable[[], None],
        waits: Callable[[bool], None] | None = None,
    ) -> None:
        super().__init__(job, deadline)
        self._asked: Callable[[], None] | None = asked  # for the first time
        self._waits = waits
        self.wait_began = inf  # monotonic: since when it waits for a permit; inf: it does not

    def wait_begins(self, now: float) -> None:
        super().wait_begins(now)
        if self.wait_began == inf:
            self.wait_began = now
            if self._waits is not None:
                self._waits(True)
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked()

    def wait_ends(self, now: float) -> None:
        super().wait_ends(now)
        if not self._waiting:
            self.wait_began = inf
            if self._waits is not None:
                self._waits(False)

    @property
    def is_waiting(self) -> bool:
        return self.wait_began != inf

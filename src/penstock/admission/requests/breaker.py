# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker: stops requests while a provider fails, and lets single ones probe it.

It is closed, open, or half-open: one probe is in flight, whose success closes it (`ended`).
Only limits of the algorithm `adaptive` have one; those of `aimd` have none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

REMEMBERED = 20  # outcomes
FAILURES = 12  # of these
FIRST_SECONDS = 1.0
MOST_SECONDS = 15.0
DOUBLINGS_MAX = 10


class CircuitBreaker:
    """Owns whether it is open: then everything stops, and single requests probe the provider."""

    __slots__ = ("_failed", "_last", "_probes", "is_probing", "until")

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=REMEMBERED)
        self._failed = 0  # of these
        self._probes = 0  # that failed since it opened, plus one; 0: closed
        self.is_probing = False  # a probe is in flight: nothing else leaves
        self.until = -inf  # of the pause

    @property
    def is_open(self) -> bool:
        return self._probes > 0

    def sent(self) -> bool:
        """Count a request that leaves; True: it is the probe."""
        if not self._probes or self.is_probing:
            return False
        self.is_probing = True
        return True

    def probe_lost(self) -> None:
        """Let the next request be the probe: this one ended in a way that says nothing."""
        self.is_probing = False

    def ended(
        self,
        now: float,
        *,
        failed: bool,
        is_probe: bool,
        sent_at: float,
        rand: Callable[[], float],
    ) -> bool:
        """Count the end of a request, and open the breaker; True: it has closed again."""
        if self._probes:
            if is_probe and failed:
                self.is_probing = False
                self._probes += 1
                pause = min(
                    MOST_SECONDS, FIRST_SECONDS / 2 * 2.0 ** min(self._probes, DOUBLINGS_MAX)
                )
                self.until = max(self.until, now + pause * (0.75 + 0.5 * rand()))
                return False
            if not failed and (is_probe or sent_at > self.until):
                self._close()
                return True
            return False
        self._remember(failed)
        if self._failed >= FAILURES and len(self._last) == REMEMBERED:
            self._probes = 1
            self.is_probing = False
            self.until = max(self.until, now + FIRST_SECONDS)
        return False

    def _remember(self, failed: bool) -> None:
        if len(self._last) == REMEMBERED:
            self._failed -= self._last[0]
        self._last.append(failed)
        self._failed += failed

    def _close(self) -> None:
        self._probes = 0
        self.is_probing = False
        self._last.clear()
        self._failed = 0

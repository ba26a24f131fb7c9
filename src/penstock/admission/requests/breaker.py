# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker: stops requests while a provider fails, and lets single ones probe it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

REMEMBERED = 20  # outcomes
FAILURES = 12  # of these
FIRST_SECONDS = 1.0
MOST_SECONDS = 15.0
DOUBLINGS_MAX = 10


class Breaker:
    """Owns whether it is open: then everything stops, and single requests probe the provider."""

    __slots__ = ("_failed", "_last", "_tests", "is_testing", "until")

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=REMEMBERED)
        self._failed = 0  # of these
        self._tests = 0  # that failed since it opened, and one; 0: closed
        self.is_testing = False  # a test is in flight: nothing else leaves
        self.until = -inf  # of the pause

    @property
    def is_open(self) -> bool:
        return self._tests > 0

    def sent(self) -> bool:
        """Count a request that leaves; True: it is the probe."""
        if not self._tests or self.is_testing:
            return False
        self.is_testing = True
        return True

    def test_lost(self) -> None:
        """The test ended in a way that says nothing: the next request is one."""
        self.is_testing = False

    def ended(
        self,
        now: float,
        *,
        failed: bool,
        is_test: bool,
        sent_at: float,
        rand: Callable[[], float],
    ) -> bool:
        """Count the end of a request; True: it has closed the breaker again."""
        if self._tests:
            if is_test and failed:
                self.is_testing = False
                self._tests += 1
                pause = min(
                    MOST_SECONDS, FIRST_SECONDS / 2 * 2.0 ** min(self._tests, DOUBLINGS_MAX)
                )
                self.until = max(self.until, now + pause * (0.75 + 0.5 * rand()))
                return False
            if not failed and (is_test or sent_at > self.until):
                self._close()
                return True
            return False
        self._remember(failed)
        if self._failed >= FAILURES and len(self._last) == REMEMBERED:
            self._tests = 1
            self.is_testing = False
            self.until = max(self.until, now + FIRST_SECONDS)
        return False

    def _remember(self, failed: bool) -> None:
        if len(self._last) == REMEMBERED:
            self._failed -= self._last[0]
        self._last.append(failed)
        self._failed += failed

    def _close(self) -> None:
        self._tests = 0
        self.is_testing = False
        self._last.clear()
        self._failed = 0

# SPDX-License-Identifier: Apache-2.0
"""Who has been told that the store is away, and that it is back?

Many calls meet the same trouble, again and again; people hear of it once.
"""

from __future__ import annotations

import logging

from penstock.clock import Clock
from penstock.errors import StoreError, StoreUnavailable


class Reach:
    """Owns what was said about a store that has to be waited for. Used by one thread."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._away_since: float | None = None
        self._said: set[str] = set()

    @property
    def away(self) -> bool:
        """Was the store unreachable when it was last asked?"""
        return self._away_since is not None

    def waits(self, what: str, error: StoreError) -> None:
        """Something has to wait for the store: `what` says so, if it can be reached at all."""
        if isinstance(error, StoreUnavailable):
            if self._away_since is None:
                self._away_since = self._clock.monotonic()
                self._log.warning(
                    "The store does not answer; what runs goes on, nothing is begun: %s", error
                )
        elif what not in self._said:
            self._said.add(what)
            self._log.warning("%s: %s", what, error)

    def answered(self, what: str) -> None:
        """The store has done it."""
        self._said.discard(what)
        if self._away_since is not None:
            seconds = self._clock.monotonic() - self._away_since
            self._away_since = None
            self._log.warning("The store answers again, after %.1f s.", seconds)

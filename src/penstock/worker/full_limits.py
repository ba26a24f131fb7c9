# SPDX-License-Identifier: Apache-2.0
"""Which full limits keep jobs waiting, and who is told?"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.clock import Clock
from penstock.model.lease import BlockedKey, LeaseBatch
from penstock.model.worker import FULL_SHOWN

SAY_AFTER_SECONDS = 10.0  # of nothing but waiting for full limits
KEYS_NAMED_MAX = 3
HOLDERS_NAMED_MAX = 3

log = logging.getLogger("penstock.worker")


class FullLimits:
    """Keeps what the last lease call said, and tells once why nothing can be leased.

    A limit of 0 is told at once: it ends by an operator's doing only.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._blocked: tuple[BlockedKey, ...] = ()
        self._empty_since: float | None = None
        self._told: set[str] = set()  # keys, until they have room again

    def note(self, batch: LeaseBatch) -> None:
        """Take in the answer to a lease call."""
        now = self._clock.monotonic()
        self._blocked = batch.blocked
        self._told.intersection_update(blocked.limit_key for blocked in batch.blocked)
        if batch.jobs or not batch.blocked:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        late = self._empty_since is not None and now - self._empty_since >= SAY_AFTER_SECONDS
        self._tell([blocked for blocked in batch.blocked if late or blocked.cap <= 0])

    def _tell(self, found: Sequence[BlockedKey]) -> None:
        news = [blocked for blocked in found if blocked.limit_key not in self._told]
        if news:
            self._told.update(blocked.limit_key for blocked in news)
            log.info("Jobs wait for %s.", _named(news))

    def shown(self) -> dict[str, int]:
        """Some of the limits that held jobs back, and what they allow."""
        return {blocked.limit_key: blocked.cap for blocked in self._blocked[:FULL_SHOWN]}

    def reason(self) -> str:
        """Why ready jobs are not handed out, as far as is known here."""
        return (
            f"waiting for {_named(self._blocked)}" if self._blocked else "others are served first"
        )


def _named(found: Sequence[BlockedKey]) -> str:
    names = "; ".join(_one(blocked) for blocked in found[:KEYS_NAMED_MAX])
    more = len(found) - KEYS_NAMED_MAX
    return names + (f"; and {more} more full limits" if more > 0 else "")


def _one(blocked: BlockedKey) -> str:
    if blocked.cap <= 0:
        return f"the limit {blocked.limit_key!r}, which is 0: nothing runs until it is raised"
    holders = ", ".join(map(repr, blocked.holders[:HOLDERS_NAMED_MAX]))
    more = " and others" if len(blocked.holders) > HOLDERS_NAMED_MAX else ""
    return f"the limit {blocked.limit_key!r} of {blocked.cap}, held by {holders}{more}"

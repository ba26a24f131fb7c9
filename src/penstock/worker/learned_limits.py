# SPDX-License-Identifier: Apache-2.0
"""Learned limits of providers: what one run has found is kept in the store for the next.

What is kept speaks of the whole provider: a process that has a part of every cap multiplies what
it found before it writes it down, and divides what it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.admission.requests.algorithm import LearnedLimit, read_learned
from penstock.clock import MICROSECONDS, Clock
from penstock.errors import StoreError
from penstock.model.provider import ProviderModelKey
from penstock.stores.protocol import LearnedLimitStore

FIRST_SAVE_SECONDS = 10.0  # a short run may be killed, too
SAVE_SECONDS = 60.0  # between two looks whether there is anything new to keep

log = logging.getLogger("penstock.providers")


class EarlierLimit(NamedTuple):
    """What an earlier run has found, and how long ago it was."""

    limit: LearnedLimit
    age_seconds: float


class LearnedLimits:
    """Owns what was learned before, and what has been written down. Belongs to one loop."""

    def __init__(self, store: LearnedLimitStore, clock: Clock, processes: int) -> None:
        self._store = store
        self._clock = clock
        self._processes = processes
        self._earlier: dict[ProviderModelKey, EarlierLimit] = {}
        self._written: dict[ProviderModelKey, str] = {}
        self._next_monotonic = clock.monotonic() + FIRST_SAVE_SECONDS
        self._is_saving = False

    def earlier(self, key: ProviderModelKey) -> EarlierLimit | None:
        """What this process may start from; None: nothing is known."""
        return self._earlier.get(key)

    async def load(self) -> None:
        """Read what earlier runs have learned; without it a run begins small."""
        try:
            kept = await self._store.learned()
        except StoreError as error:
            log.warning("What was learned about limits cannot be read: %s", error)
            return
        now_at = self._clock.now() * MICROSECONDS
        for one in kept:
            found = read_learned(one.document)
            if found is not None:
                age_seconds = max(0.0, now_at - one.learned_at) / MICROSECONDS
                self._earlier[one.key] = EarlierLimit(
                    scaled(found, 1 / self._processes), age_seconds
                )
                self._written[one.key] = one.document

    @property
    def is_due(self) -> bool:
        return not self._is_saving and self._clock.monotonic() >= self._next_monotonic

    async def save(self, found: Mapping[ProviderModelKey, LearnedLimit]) -> None:
        """Write down what has changed; an unreachable store is tried again later."""
        self._next_monotonic = self._clock.monotonic() + SAVE_SECONDS
        documents = {
            key: msgspec.json.encode(scaled(limit, self._processes)).decode()
            for key, limit in found.items()
            if limit != LearnedLimit()
        }
        changed = {key: text for key, text in documents.items() if self._written.get(key) != text}
        if not changed or self._is_saving:
            return
        self._is_saving = True
        try:
            await self._store.save_learned(changed)
        except StoreError as error:
            log.debug("What was learned about limits is not kept: %s", error)
        else:
            self._written |= changed
        finally:
            self._is_saving = False


def lesser(one: LearnedLimit, other: LearnedLimit | None) -> LearnedLimit:
    """Of two limits of one model that with the lower ceiling; who has none was never refused."""
    if other is None or other.ceiling is None:
        return one
    return other if one.ceiling is None or other.ceiling <= one.ceiling else one


def scaled(limit: LearnedLimit, factor: float) -> LearnedLimit:
    """The same for so many times the share."""
    if factor == 1:
        return limit
    return msgspec.structs.replace(
        limit,
        ceiling=None if limit.ceiling is None else limit.ceiling * factor,
        rate=None if limit.rate is None else limit.rate * factor,
    )

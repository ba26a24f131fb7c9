# SPDX-License-Identifier: Apache-2.0
"""What does the memory store keep of the limits that runs have learned?"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clock import to_micros
from penstock.model.provider import ProviderModelKey
from penstock.model.views import StoredLimit
from penstock.stores.protocol import LEARNED_READ, LEARNED_SECONDS


class Learned:
    """Owns the last word about each model."""

    def __init__(self) -> None:
        self._kept: dict[ProviderModelKey, StoredLimit] = {}

    def save(self, limits: Mapping[ProviderModelKey, str], now: int) -> None:
        for key, document in limits.items():
            self._kept[key] = StoredLimit(key, document, now)
        oldest = now - to_micros(LEARNED_SECONDS)
        self._kept = {key: kept for key, kept in self._kept.items() if kept.learned_at >= oldest}

    def newest(self) -> list[StoredLimit]:
        kept = sorted(self._kept.values(), key=lambda one: (-one.learned_at, one.key))
        return kept[:LEARNED_READ]

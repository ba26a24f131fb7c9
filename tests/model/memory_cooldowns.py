# SPDX-License-Identifier: Apache-2.0
"""What does the memory store keep of the long cool-downs of providers?"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import MICROSECONDS, to_micros
from penstock.model.provider import CooldownKey
from penstock.model.views import StoredCooldown
from penstock.stores.protocol import LEARNED_READ, LEARNED_SECONDS, PROBE_SECONDS


@dataclass(slots=True)
class _Kept:
    begun_at: int
    until_at: int
    document: str
    probed_until: int = 0


class Cooldowns:
    """Owns the cool-downs, over or not."""

    def __init__(self) -> None:
        self._kept: dict[CooldownKey, _Kept] = {}

    def begin(self, key: CooldownKey, seconds: float, document: str, now: int) -> None:
        until_at = now + to_micros(seconds)
        known = self._kept.get(key)
        if known is None or known.until_at <= until_at:
            self._kept[key] = _Kept(now, until_at, document)
        oldest = now - to_micros(LEARNED_SECONDS)
        self._kept = {key: kept for key, kept in self._kept.items() if kept.until_at >= oldest}

    def take_probe(self, key: CooldownKey, at_once: bool, now: int) -> bool:
        kept = self._kept.get(key)
        if kept is None or _is_probed(kept, now):
            return False
        if not (at_once or kept.until_at <= now or kept.begun_at > now):
            return False
        kept.probed_until = now + to_micros(PROBE_SECONDS)
        return True

    def end(self, key: CooldownKey) -> None:
        self._kept.pop(key, None)

    def newest(self, now: int) -> list[StoredCooldown]:
        found = sorted(self._kept.items(), key=lambda one: (-one[1].begun_at, one[0]))
        return [
            StoredCooldown(
                key=key,
                begun_at=kept.begun_at,
                until_at=kept.until_at,
                left_seconds=max(0, kept.until_at - max(now, kept.begun_at)) / MICROSECONDS,
                probed_seconds=(kept.probed_until - now) / MICROSECONDS
                if _is_probed(kept, now)
                else 0.0,
                document=kept.document,
            )
            for key, kept in found[:LEARNED_READ]
        ]


def _is_probed(kept: _Kept, now: int) -> bool:
    """Whether somebody has the right to probe; what lasts too long was taken before a jump."""
    return now < kept.probed_until <= now + to_micros(PROBE_SECONDS)

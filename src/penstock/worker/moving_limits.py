# SPDX-License-Identifier: Apache-2.0
"""Which limits does a run find, and when is a change worth a line?

Workers write into their rows how their providers fare; this adds that up for whoever shows a run.
It costs as many rows as there are workers, whatever they have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock.admission.requests.token_bucket import TokenBucket
from penstock.clock import MICROSECONDS
from penstock.model.provider import ProviderModelKey
from penstock.model.serving import ToldUse, told_uses
from penstock.model.views import WorkerView

NAMED_MAX = 4  # limits in one line
NOTICED_PART = 0.25  # of a limit: so much up or down is news
NOTICED_MIN = 2  # requests; a limit of one that becomes two is no news
LINES_AT_ONCE = 10  # lines about limits at the start of a run, or after a quiet time
LINE_SECONDS = 30.0  # for each further one


class SeenLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a provider, over all workers that use it."""

    name: str
    limit: int
    limit_max: int
    in_flight: int
    refused: int
    cooldown_seconds: float

    @property
    def moves(self) -> bool:
        """Is it being found, and not just what was declared?"""
        return self.limit < self.limit_max or self.refused > 0

    def words(self, before: int | None = None) -> str:
        came = "" if before is None or before == self.limit else f"{before:,} → "
        parts = [f"{self.in_flight:,} in flight", f"{self.refused:,} refused"]
        if self.cooldown_seconds >= 1:
            parts.append(f"cools down {self.cooldown_seconds:.0f} s")
        return f"{self.name} limit {came}{self.limit:,} of {self.limit_max:,} ({', '.join(parts)})"


def seen_limits(workers: Iterable[WorkerView]) -> list[SeenLimit]:
    """The limits that move, as live workers tell them, by name."""
    found = {key: _seen(told) for key, told in told_uses(workers).items()}
    return [one for one in _named(found) if one.moves]


def _seen(told: list[ToldUse]) -> SeenLimit:
    parts = [one.use for one in told if one.is_own_part]
    return SeenLimit(
        name=told[0].use.provider,
        limit=sum(use.limit for use in parts),
        limit_max=sum(use.limit_max for use in parts),
        in_flight=sum(one.use.in_flight for one in told),
        refused=sum(one.use.refused for one in told),
        cooldown_seconds=max(map(_rest, told)),
    )


def _rest(one: ToldUse) -> float:
    """How long it cools down, in seconds."""
    until = one.use.blocked_until_at
    return 0.0 if until is None else max(0, until - one.status.captured_at) / MICROSECONDS


def _named(found: dict[ProviderModelKey, SeenLimit]) -> Iterator[SeenLimit]:
    """A provider with several models is named with each."""
    for key in sorted(found):
        several = sum(other.provider == key.provider for other in found) > 1
        name = f"{key.provider}/{key.model}" if several else key.provider
        yield msgspec.structs.replace(found[key], name=name)


def limit_words(seen: list[SeenLimit]) -> list[str]:
    """What a line about a run says of its limits; a bounded number."""
    words = [one.words() for one in seen[:NAMED_MAX]]
    if len(seen) > NAMED_MAX:
        words.append(f"{len(seen) - NAMED_MAX} more limits")
    return words


class LimitWatch:
    """Owns what was told last of the limits of a run."""

    def __init__(self, now: float) -> None:
        self._lines = TokenBucket(1 / LINE_SECONDS, now, LINES_AT_ONCE)
        self._told: dict[str, int] = {}
        self.seen: list[SeenLimit] = []

    def take(self, workers: Iterable[WorkerView], now: float) -> str | None:
        """Look at the rows of workers; what is worth a line of its own, if anything is."""
        self.seen = seen_limits(workers)
        return self._news(now)

    def _news(self, now: float) -> str | None:
        moved = [one for one in self.seen if self._is_news(one)][:NAMED_MAX]
        if not moved or self._lines.available(now) < 1:
            return None  # told later, against what was told last
        self._lines.take(now, 1)
        words = [one.words(self._told.get(one.name)) for one in moved]
        self._told |= {one.name: one.limit for one in moved}
        return ", ".join(words)

    def _is_news(self, one: SeenLimit) -> bool:
        told = self._told.get(one.name)
        if told is None:
            return True
        return abs(one.limit - told) >= max(NOTICED_MIN, NOTICED_PART * told)

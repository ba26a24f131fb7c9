# SPDX-License-Identifier: Apache-2.0
"""Which models and providers are to be asked again, at once or at a time?"""

from __future__ import annotations

from math import inf

from penstock.admission.requests.alarms import DueHeap
from penstock.admission.requests.gate import Blocked
from penstock.admission.requests.provider_tree import ModelLevel, ProviderLevel


class Sleeping:
    """Owns who sleeps and who is awake. A level has one alarm at most; without, an end wakes it."""

    __slots__ = ("_alarms", "_awake")

    def __init__(self) -> None:
        self._awake: dict[ProviderLevel, None] = {}
        self._alarms: DueHeap[ModelLevel | ProviderLevel] = DueHeap()

    def __repr__(self) -> str:
        return f"<Sleeping {len(self._awake)} awake, {len(self._alarms)} alarms>"

    @property
    def is_anybody_awake(self) -> bool:
        return bool(self._awake)

    def sleep(self, level: ModelLevel | ProviderLevel, blocked: Blocked) -> None:
        """It is not worth to ask before; if it is closed for all, not even for a newcomer."""
        if level.alarm is not None:
            self._alarms.drop(level.alarm)
        until = blocked.until
        level.alarm = None if until == inf else self._alarms.add(until, level)
        level.closed_for_all = blocked.for_all

    def wake(self, model: ModelLevel) -> None:
        """Something has changed for a model: whoever waits there is asked for again."""
        self._open(model)
        provider = model.provider
        if model.queue:
            provider.join(model)
        # Also if nobody waits there any more: it may have been first, and others behind it.
        if provider.line and not provider.closed_for_all:
            self._awake[provider] = None

    def stir(self, provider: ProviderLevel) -> None:
        """Something has changed for a provider: the models in its line are asked for again."""
        self._open(provider)
        if provider.line:
            self._awake[provider] = None

    def ring(self, now: float) -> None:
        """Wake whose time has come."""
        while (level := self._alarms.take(now)) is not None:
            if isinstance(level, ModelLevel):
                self.wake(level)
            else:
                self.stir(level)

    def next_awake(self) -> ProviderLevel | None:
        return self._awake.popitem()[0] if self._awake else None

    def next_due(self) -> float | None:
        return self._alarms.next_due()

    def clear(self) -> None:
        self._alarms.clear()
        self._awake.clear()

    def _open(self, level: ModelLevel | ProviderLevel) -> None:
        if level.alarm is not None:
            self._alarms.drop(level.alarm)
            level.alarm = None
        level.closed_for_all = False

# SPDX-License-Identifier: Apache-2.0
"""Whom does a supervisor tell how it is: a service manager, probes, or nobody?"""

from __future__ import annotations

from typing import Protocol

from penstock.clock import Clock


class Readiness(Protocol):
    """A service manager."""

    def ready(self, status: str) -> None: ...

    def status(self, status: str) -> None: ...

    def stopping(self) -> None: ...

    def alive(self, now: float) -> None: ...


class Health(Protocol):
    """What probes are told."""

    def turned(self) -> None: ...

    def ready(self) -> None: ...

    def not_ready(self, why: str) -> None: ...


class Announcer:
    """Passes on what a supervisor is about; either, both or nobody may listen."""

    def __init__(
        self, clock: Clock, readiness: Readiness | None = None, health: Health | None = None
    ) -> None:
        self._clock = clock
        self._readiness = readiness
        self._health = health
        self._is_ready = False
        self._is_unreachable = False

    def turned(self) -> None:
        """The loop has come round."""
        if self._readiness is not None:
            self._readiness.alive(self._clock.monotonic())
        if self._health is not None:
            self._health.turned()

    def begins(self, what: str) -> None:
        """Something goes on before the work, such as preflights."""
        if self._readiness is not None:
            self._readiness.status(what)
        if self._health is not None:
            self._health.not_ready(what)

    def ready(self, status: str) -> None:
        """The work has begun."""
        self._is_ready = True
        if self._readiness is not None:
            self._readiness.ready(status)
        if self._health is not None:
            self._health.ready()

    def store(self, *, unreachable: bool) -> None:
        """Whether the store can be reached; told at every look."""
        if unreachable == self._is_unreachable or not self._is_ready:
            return
        self._is_unreachable = unreachable
        if self._health is not None:
            if unreachable:
                self._health.not_ready("The store is unreachable.")
            else:
                self._health.ready()

    def stopping(self) -> None:
        """The end has begun; nothing makes it ready again."""
        self._is_ready = False
        if self._readiness is not None:
            self._readiness.stopping()
        if self._health is not None:
            self._health.not_ready("The run is stopping.")

# SPDX-License-Identifier: Apache-2.0
"""Who may go now, for each key?

The pure core of `KeyedLimiter`: it counts and decides; it knows no locks, threads or loops. A slot
that becomes free goes at once to whoever has waited longest. So nobody waits while there is room,
and a waiter that gives up after it was served has something to hand on, which `leave` does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from penstock.errors import InternalError, UsageError

LIMIT_MAX = 1_000_000  # at once for one key; more is a slip of the pen

W = TypeVar("W")  # whatever stands for a waiter; told apart by identity or equality


class KeyCount(msgspec.Struct, frozen=True):
    """One key in numbers."""

    limit: int
    held: int
    waiting: int


class _Line(Generic[W]):
    """One key that somebody holds or waits for; nothing is kept of others."""

    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting: OrderedDict[W, None] = OrderedDict()  # first come first; any may leave


class KeyedTurns(Generic[W]):
    """Owns who holds and who waits, first come first served per key.

    Every method is O(1), plus the waiters that it serves. Does not wake anybody: it returns the
    waiters that were served, and the caller tells them.
    """

    def __init__(self, default_limit: int, per_key: Mapping[str, int] | None = None) -> None:
        check_limit("default_limit", default_limit)
        self._default = default_limit
        self._limits: dict[str, int] = {}
        self._lines: dict[str, _Line[W]] = {}
        self._held = self._waiting = 0
        for key, limit in (per_key or {}).items():
            check_limit(f"the limit of {key!r}", limit)
            self._limits[key] = limit

    def __repr__(self) -> str:
        return (
            f"default {self._default}, {len(self._lines)} keys in use, {self._held} held, "
            f"{self._waiting} waiting"
        )

    def limit(self, key: str) -> int:
        return self._limits.get(key, self._default)

    def count(self, key: str) -> KeyCount:
        """One key in numbers."""
        line = self._lines.get(key)
        if line is None:
            return KeyCount(self.limit(key), 0, 0)
        return KeyCount(self.limit(key), line.held, len(line.waiting))

    def snapshot(self) -> dict[str, KeyCount]:
        """Every key that is held or waited for."""
        return {key: self.count(key) for key in self._lines}

    def try_acquire(self, key: str) -> bool:
        """Take a slot if there is one; who waits already goes first."""
        line = self._lines.get(key)
        if (0 if line is None else line.held) >= self.limit(key):
            return False  # where somebody waits there is no room, so nobody is overtaken
        if line is None:
            line = self._lines[key] = _Line()
        line.held += 1
        self._held += 1
        return True

    def wait(self, key: str, waiter: W) -> None:
        """Stand at the end of the line of a key that `try_acquire` has refused."""
        line = self._lines.get(key)
        if line is None:  # a limit of 0: nobody holds it, and nobody may
            line = self._lines[key] = _Line()
        if line.held < self.limit(key):
            raise InternalError(f"A waiter for {key!r} stands in line although there is room.")
        line.waiting[waiter] = None
        self._waiting += 1

    def leave(self, key: str, waiter: W) -> list[W]:
        """Give up: out of the line, or hand on what was served already. Who is served by that."""
        line = self._lines.get(key)
        if line is not None and waiter in line.waiting:
            del line.waiting[waiter]
            self._waiting -= 1
            self._forget(key, line)
            return []
        return self.release(key)

    def release(self, key: str) -> list[W]:
        """Give a slot back; who is served by that."""
        line = self._lines.get(key)
        if line is None or not line.held:
            raise UsageError(
                f"{key!r} was released although nobody holds it; call release once for each "
                f"acquire, or use hold()."
            )
        line.held -= 1
        self._held -= 1
        return self._serve(key, line)

    def set_limit(self, key: str, limit: int | None) -> list[W]:
        """Change a limit, with None back to the default; who is served by that.

        A lower limit takes nothing from those who hold: it is reached as they release.
        """
        if limit is None:
            self._limits.pop(key, None)
        else:
            check_limit(f"the limit of {key!r}", limit)
            self._limits[key] = limit
        line = self._lines.get(key)
        return [] if line is None else self._serve(key, line)

    def _serve(self, key: str, line: _Line[W]) -> list[W]:
        served: list[W] = []
        limit = self.limit(key)
        while line.waiting and line.held < limit:
            waiter, _ = line.waiting.popitem(last=False)
            line.held += 1
            served.append(waiter)
        self._held += len(served)
        self._waiting -= len(served)
        self._forget(key, line)
        return served

    def _forget(self, key: str, line: _Line[W]) -> None:
        if not line.held and not line.waiting:
            del self._lines[key]


def check_limit(what: str, limit: int) -> None:
    """Refuse what is no limit: UsageError."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"{what} is a whole number, got {limit!r}.")
    if not 0 <= limit <= LIMIT_MAX:
        raise UsageError(f"{what} lies between 0 and {LIMIT_MAX:,}, got {limit}.")

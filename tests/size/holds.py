# SPDX-License-Identifier: Apache-2.0
"""How long does each write transaction hold the store?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from penstock.stores.sqlite.store import SqliteStore


@dataclass
class Holds:
    """Times of transactions, in milliseconds: by the wall, and of the thread's own work."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.wall.clear()
        self.cpu.clear()

    def at(self, share: float) -> float:
        """The CPU time that this share of the transactions kept to."""
        times = sorted(self.cpu) or [0.0]
        return times[min(len(times) - 1, int(share * len(times)))]

    def text(self) -> str:
        wall = max(self.wall, default=0.0)
        return (
            f"{len(self.cpu):,} transactions, work in each p50 {self.at(0.5):.1f} ms, "
            f"p99 {self.at(0.99):.1f} ms, most {self.at(1.0):.1f} ms (by the wall {wall:.1f} ms)"
        )


class _Measured:
    """Stands in front of a session and takes the time from begin to commit."""

    def __init__(self, session: Any, holds: Holds) -> None:
        self._session = session
        self._holds = holds
        self._wall = self._cpu = 0.0

    def begin(self, *, wait: bool) -> Any:
        tx = self._session.begin(wait=wait)
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        return tx

    def commit(self, *, more: bool) -> None:
        self._session.commit(more=more)
        self._holds.wall.append((time.perf_counter() - self._wall) * 1e3)
        self._holds.cpu.append((time.thread_time() - self._cpu) * 1e3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def measure(store: SqliteStore) -> Holds:
    """Take the time of every further transaction of this store."""
    holds = Holds()
    writer: Any = store._writer
    writer._session = _Measured(writer._session, holds)
    return holds

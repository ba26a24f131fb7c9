# SPDX-License-Identifier: Apache-2.0
"""A store behind a wire: answers take a while, the server can go away, and replies can get lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from penstock.clock import Clock
from penstock.errors import StoreUnavailable, StoreUnknown
from penstock.stores.protocol import Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply

ROUND_TRIP_SECONDS = 0.002
REFUSED_SECONDS = 30.0  # so long a store tries to reach its server for one operation
AT_ONCE = frozenset({"url", "close"})


class ServerStore:
    """Stands between a worker and a memory store; one for each end of a wire."""

    def __init__(self, server: InProcessStore, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self.away: set[str] | None = None  # names of calls that do not get through; empty: all
        self.drops: Counter[str] = Counter()  # so many answers of a call get lost
        self.asked: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def as_store(self) -> Store:
        return cast("Store", self)

    def goes_away(self, *calls: str) -> None:
        self.away = set(calls)

    def comes_back(self) -> None:
        self.away = None

    def _is_away(self, call: str) -> bool:
        return self.away is not None and (not self.away or call in self.away)

    def __getattr__(self, call: str) -> Any:
        there = getattr(self._server, call)
        if call in AT_ONCE:
            return there

        def over_the_wire(*arguments: Any) -> Reply[Any]:
            self.asked[call] += 1
            reply: Reply[Any] = Reply()
            carrying = self._carry(call, lambda: there(*arguments), reply)
            asyncio.get_running_loop().create_task(carrying)
            return reply

        return over_the_wire

    async def wait_for_work(self, timeout: float | None) -> None:
        if self._is_away("wait_for_work"):
            raise StoreUnavailable("The server is gone.")
        await self._server.wait_for_work(timeout)

    async def _carry(self, call: str, apply: Callable[[], Reply[Any]], reply: Reply[Any]) -> None:
        refused_at = self._clock.monotonic() + REFUSED_SECONDS
        while self._is_away(call):
            if self._clock.monotonic() >= refused_at:
                reply.refuse(StoreUnavailable("The server is gone."))
                return
            await self._clock.sleep(0.1)
        await self._clock.sleep(ROUND_TRIP_SECONDS)
        try:
            answer = apply().result()
        except BaseException as error:
            reply.refuse(error)
            return
        if self.drops[call]:
            self.drops[call] -= 1
            self.lost[call] += 1
            reply.refuse(StoreUnknown("The answer got lost."))
        else:
            reply.resolve(answer)

# SPDX-License-Identifier: Apache-2.0
"""Which money do calls of this process keep back, and who waits for it?

An estimate is mostly more than a reply costs. A call that a budget refuses only because of what
others have reserved need not give up: when they are settled, there may be enough for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

from penstock.model.spending import Amount, Budget

POLL_SECONDS = 1.0  # between two looks of one that waits; what other processes do is not told


class Reserves:
    """Owns what calls on their way have reserved here, and the order of who waits for it.

    Belongs to one loop.
    """

    def __init__(self) -> None:
        self.given_back = 0  # calls; whoever asked before may have an answer that is out of date
        self._held: dict[Hashable, tuple[tuple[str, ...], Amount]] = {}
        self._sums: dict[str, Amount] = {}  # by scope
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by the scope of a budget

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<Reserves of {len(self._held)} calls, {waiting} wait>"

    def hold(self, call: Hashable, scopes: tuple[str, ...], amount: Amount) -> None:
        """A call is on its way; whoever waits next may try as well."""
        self.give_back(call)
        self._held[call] = scopes, amount
        for scope in scopes:
            self._change(scope, amount.micros, amount.tokens)
            self._wake(scope)

    def give_back(self, call: Hashable) -> None:
        """It is settled, or will never be; safe to repeat."""
        held = self._held.pop(call, None)
        if held is None:
            return
        self.given_back += 1
        scopes, amount = held
        for scope in scopes:
            self._change(scope, -amount.micros, -amount.tokens)
            self._wake(scope)

    def may_suffice(self, budget: Budget, left: Amount, asked: Amount) -> bool:
        """If all of it came back, would a call fit that does not fit now?"""
        held = self._sums.get(budget.scope)
        if held is None:
            return False
        return (budget.micros is None or asked.micros <= left.micros + held.micros) and (
            budget.tokens is None or asked.tokens <= left.tokens + held.tokens
        )

    async def change(self, budget: Budget) -> None:
        """Wait until something may have come back; a hint, and no longer than a moment."""
        queue = self._waiting.setdefault(budget.scope, deque())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            await asyncio.wait([future], timeout=POLL_SECONDS)
        finally:
            if future in queue:
                queue.remove(future)
            if not queue:
                self._waiting.pop(budget.scope, None)

    def _wake(self, scope: str) -> None:
        queue = self._waiting.get(scope)
        if queue:
            queue.popleft().set_result(None)

    def _change(self, scope: str, micros: int, tokens: int) -> None:
        before = self._sums.get(scope, Amount())
        after = Amount(before.micros + micros, before.tokens + tokens)
        if any(after):
            self._sums[scope] = after
        else:
            self._sums.pop(scope, None)

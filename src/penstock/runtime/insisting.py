# SPDX-License-Identifier: Apache-2.0
"""How does somebody get an answer of a store that may be away for a while?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import TRANSIENT
from penstock.runtime.reach import Reach
from penstock.stores.reply import Reply

RETRY_SECONDS = 0.5  # between two tries when the store cannot be reached

T = TypeVar("T")


class Insisting:
    """Asks again and again, and says once that it waits. Belongs to one loop."""

    def __init__(self, waits: str, log: logging.Logger, clock: Clock) -> None:
        """Nobody waits.

        Args:
            waits: what is said of a wait, such as "The build has to wait".
            log: where.
            clock: the time.
        """
        self._waits = waits
        self._clock = clock
        self._reach = Reach(log, clock)

    async def __call__(self, ask: Callable[[], Reply[T]], /) -> T:
        """The answer, also if it takes a while."""
        while True:
            try:
                answer = await ask()
            except TRANSIENT as error:
                self._reach.waits(self._waits, error)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                self._reach.answered(self._waits)
                return answer

# SPDX-License-Identifier: Apache-2.0
"""How does a plain method of the memory store become a store call?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from penstock.clock import Clock, to_micros
from penstock.errors import PenstockError, StoreClosed
from penstock.stores.store_future import Reply
from tests.model.memory_idlers import Idlers
from tests.model.memory_rows import Tables

P = ParamSpec("P")
T = TypeVar("T")


class Operated:
    """Owns the tables, the clock, and who waits for work. Belongs to one thread."""

    def __init__(self, clock: Clock, tables: Tables) -> None:
        self._clock = clock
        self._tables = tables
        self._idlers = Idlers()
        self._closed = False

    def _now(self) -> int:
        return to_micros(self._clock.now())


S = TypeVar("S", bound=Operated)


def operation(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Reply[T]]:
    """Turn a plain method into a store call: it answers at once, and wakes who waits for work."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Reply[T]:
        if self._closed:
            return Reply.failed(StoreClosed("The memory store was used after it was closed."))
        try:
            value = method(self, *args, **kwargs)
        except PenstockError as error:
            return Reply.failed(error)
        self._idlers.wake(self._tables.version)
        return Reply.of(value)

    return call

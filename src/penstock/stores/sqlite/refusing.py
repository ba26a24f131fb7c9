# SPDX-License-Identifier: Apache-2.0
"""What stands in for the writer of a store that may only be read?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.errors import StoreError, StoreFull, StoreReadOnly
from penstock.stores.sql.transaction import Transaction
from penstock.stores.store_future import Reply

T = TypeVar("T")


class RefusingWriter:
    """Refuses every write with the reason for which the store could not be opened to write."""

    failed: StoreError | None = None

    def __init__(self, reason: StoreReadOnly | StoreFull) -> None:
        self._reason = reason

    def submit(
        self,
        run: Callable[[Transaction], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]:
        return Reply.failed(type(self._reason)(*self._reason.args))

    def fail(self, error: StoreError) -> None:
        self.failed = self.failed or error

    def close(self) -> None:
        return

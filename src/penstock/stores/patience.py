# SPDX-License-Identifier: Apache-2.0
"""How long is a store waited for that others hold, and what is said then?"""

from __future__ import annotations

from typing import TypeVar

from penstock.errors import StoreBusy
from penstock.stores.reply import Reply
from penstock.stores.store import Store

STORE_WAIT_SECONDS = 30.0  # producers and commands wait this long for a store that others hold

T = TypeVar("T")


def wait_for(reply: Reply[T], store: Store, otherwise: str) -> T:
    """The answer of a store, or StoreBusy with what its silence means and what to do."""
    try:
        return reply.result(STORE_WAIT_SECONDS)
    except TimeoutError:
        raise StoreBusy(
            f"The store {store.url} was held by another process for {STORE_WAIT_SECONDS:g} s; "
            f"{otherwise}"
        ) from None

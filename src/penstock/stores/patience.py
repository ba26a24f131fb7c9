# SPDX-License-Identifier: Apache-2.0
"""How long is a store waited for that cannot answer now, and what is said then?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import StoreBusy, StoreCorrupt, StoreUnavailable, StoreUnknown
from penstock.stores.reply import Reply
from penstock.stores.store import Store

STORE_WAIT_SECONDS = 30.0  # producers, commands and starting workers wait this long for a store
UNKNOWN_MAX = 3  # answers that may get lost before the caller hears of it
AGAIN_FIRST_SECONDS = 0.25  # between two tries to open a store
AGAIN_MAX_SECONDS = 2.0

T = TypeVar("T")


def wait_for(reply: Reply[T], store: Store, otherwise: str) -> T:
    """The answer of a store, or StoreBusy with what its silence means and what to do."""
    try:
        return reply.result(STORE_WAIT_SECONDS)
    except TimeoutError:
        raise StoreBusy(
            f"The store {store.url} gave no answer for {STORE_WAIT_SECONDS:g} s, others hold it or "
            f"it is too slow; {otherwise}"
        ) from None


def insist(ask: Callable[[], Reply[T]], store: Store, otherwise: str, first: Reply[T]) -> T:
    """The same for what may be done twice: asked again if nobody knows whether it was done."""
    reply = first
    for _ in range(UNKNOWN_MAX):
        try:
            return wait_for(reply, store, otherwise)
        except StoreUnknown:
            reply = ask()
    return wait_for(reply, store, otherwise)


async def insist_async(ask: Callable[[], Reply[T]]) -> T:
    """The same on an event loop."""
    for _ in range(UNKNOWN_MAX):
        try:
            return await ask()
        except StoreUnknown:
            continue
    return await ask()


def seen_twice(look: Callable[[], T]) -> T:
    """Look again before a store is called damaged: another process may open or migrate it now."""
    try:
        return look()
    except StoreCorrupt:
        return look()


def open_patiently(
    open_store: Callable[[], T],
    clock: Clock,
    sleep: Callable[[float], bool],
    say: Callable[[StoreUnavailable], None],
    seconds: float = STORE_WAIT_SECONDS,
) -> T:
    """Open a store whose server may come up in a moment, as in a rolling restart.

    `say` is called once, before the first wait; `sleep` answers False if nobody wants to wait on.
    """
    until = clock.monotonic() + seconds
    pause = AGAIN_FIRST_SECONDS
    told = False
    while True:
        try:
            return open_store()
        except StoreUnavailable as error:
            if clock.monotonic() + pause > until:
                raise
            if not told:
                told = True
                say(error)
            if not sleep(pause):
                raise
            pause = min(pause * 2, AGAIN_MAX_SECONDS)

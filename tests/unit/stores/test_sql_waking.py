# SPDX-License-Identifier: Apache-2.0
"""Do idle workers wake when any thread has news for them?"""

from __future__ import annotations

import asyncio
import threading

from penstock.stores.sql.waking import Waiters


def test_news_last_until_somebody_goes_to_look() -> None:
    waiters = Waiters()
    news = [waiters.has_news]

    for step in (waiters.tell, waiters.saw, waiters.tell):
        step()
        news.append(waiters.has_news)

    assert news == [False, True, False, True]


def test_a_wake_up_alone_is_no_news() -> None:
    waiters = Waiters()

    waiters.wake()

    assert not waiters.has_news


def test_all_who_wait_are_woken_by_another_thread() -> None:
    waiters = Waiters()

    async def wait() -> None:
        with waiters.joined() as first, waiters.joined() as second:
            thread = threading.Thread(target=waiters.tell)
            thread.start()
            await first.wait()
            await second.wait()
            thread.join()

    asyncio.run(wait())

    assert waiters.has_news


def test_who_waits_no_more_is_not_woken_and_a_closed_loop_is_no_error() -> None:
    waiters = Waiters()
    left = waiters.joined()
    woken: list[asyncio.Event] = []

    async def leave() -> None:
        with waiters.joined() as event:
            woken.append(event)
        left.__enter__()  # as a loop that ended without letting its waiter go

    asyncio.run(leave())
    waiters.tell()

    assert not woken[0].is_set()
    assert waiters.has_news

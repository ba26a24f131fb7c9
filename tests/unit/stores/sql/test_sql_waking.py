# SPDX-License-Identifier: Apache-2.0
"""Do idle workers wake when any thread has news for them?"""

from __future__ import annotations

import asyncio
import threading

from penstock.stores.sql.store import Waiters


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


def test_who_waits_no_more_is_not_woken() -> None:
    waiters = Waiters()

    async def leave() -> bool:
        with waiters.joined() as woken:
            pass
        waiters.tell()
        await asyncio.sleep(0)
        return woken.is_set()

    assert not asyncio.run(leave())


def test_a_loop_that_ended_without_leaving_is_no_error() -> None:
    waiters = Waiters()
    waiting = waiters.joined()

    async def enter() -> None:
        waiting.__enter__()

    asyncio.run(enter())
    waiters.tell()

    assert waiters.has_news

# SPDX-License-Identifier: Apache-2.0
"""Does an answer reach everybody who waits for it, on a loop and in threads?"""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import StoreFull
from penstock.stores.store_future import Reply


def test_an_answer_that_is_there_is_given_at_once() -> None:
    async def ask() -> int:
        return await Reply.of(7)

    assert Reply.of(7).result() == 7
    assert asyncio.run(ask()) == 7
    with pytest.raises(StoreFull):
        Reply[int].failed(StoreFull("no space")).result()


def test_threads_and_tasks_that_wait_all_get_the_answer() -> None:
    reply: Reply[str] = Reply()
    heard: list[str] = []
    threads = [threading.Thread(target=lambda: heard.append(reply.result())) for _ in range(5)]
    for thread in threads:
        thread.start()

    async def main() -> list[str]:
        waiting = [asyncio.create_task(_ask(reply)) for _ in range(5)]
        await asyncio.sleep(0.01)
        threading.Thread(target=reply.resolve, args=("answer",)).start()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == ["answer"] * 5
    for thread in threads:
        thread.join(60)
    assert heard == ["answer"] * 5


async def _ask(reply: Reply[str]) -> str:
    return await reply


def test_an_error_is_raised_for_everybody_who_waits() -> None:
    reply: Reply[str] = Reply()

    async def main() -> list[str | BaseException]:
        waiting = [asyncio.create_task(_ask(reply)) for _ in range(3)]
        await asyncio.sleep(0)
        reply.refuse(StoreFull("no space"))
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(main())] == [StoreFull] * 3


def test_a_cancelled_waiter_harms_neither_the_answer_nor_its_neighbours() -> None:
    reply: Reply[str] = Reply()

    async def main() -> str:
        first, second = asyncio.create_task(_ask(reply)), asyncio.create_task(_ask(reply))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        reply.resolve("answer")
        return await second

    assert asyncio.run(main()) == "answer"


def test_an_answer_after_the_loop_has_closed_is_no_error() -> None:
    reply: Reply[str] = Reply()

    async def main() -> None:
        waiting = asyncio.create_task(_ask(reply))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(main())

    reply.resolve("too late")
    assert reply.result() == "too late"


def test_a_time_out_is_raised_only_if_the_work_was_withdrawn() -> None:
    withdrawn: Reply[int] = Reply(lambda: True)
    with pytest.raises(TimeoutError):
        withdrawn.result(0.001)

    begun: Reply[int] = Reply(lambda: False)
    threading.Timer(0.05, begun.resolve, [1]).start()
    assert begun.result(0.001) == 1

    certain: Reply[int] = Reply()
    threading.Timer(0.05, certain.resolve, [2]).start()
    assert certain.result(0.001) == 2


def test_a_withdrawal_is_told_to_others_who_wait_for_the_same_answer() -> None:
    """Nobody will ever answer withdrawn work; a second waiter must not hang."""
    reply: Reply[str] = Reply(lambda: True)

    async def main() -> None:
        waiting = asyncio.create_task(_ask(reply))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.get_running_loop().run_in_executor(None, reply.result, 0.001)
        async with asyncio.timeout(2):
            with pytest.raises(TimeoutError):
                await waiting

    asyncio.run(main())
    assert reply.done


def test_a_waiting_thread_helps_first() -> None:
    reply: Reply[int] = Reply(None, lambda: reply.resolve(3))

    assert reply.result(10) == 3


def test_callbacks_are_called_once_each_and_late_ones_at_once() -> None:
    reply: Reply[int] = Reply()
    calls: list[str] = []
    reply.add_done_callback(lambda: calls.append("early"))
    assert not reply.done

    reply.resolve(1)
    reply.add_done_callback(lambda: calls.append("late"))

    assert calls == ["early", "late"]
    assert reply.done

# SPDX-License-Identifier: Apache-2.0
"""A store is asked again as long as somebody waits, ever less often, and an outage is told once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import pytest

from penstock.errors import (
    TRANSIENT,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnknown,
)
from penstock.ids import SeededIds
from penstock.stores import retry
from penstock.stores.retry import (
    RETRY_FIRST_SECONDS,
    RETRY_MAX_SECONDS,
    Outage,
    RetryDelay,
    StoreRetry,
    open_when_reachable,
    repeat_unknown,
    repeat_unknown_async,
    retry_in_thread,
    wait_for,
)
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing import ManualClock
from penstock.testing.virtual_loop import VirtualClock, run_virtual

WAITS = "The test has to wait"
GONE = "connection refused"

T = TypeVar("T")

log = logging.getLogger("penstock.test")


# ── The back-off ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("drawn", [0.0, 0.5, 0.999])
def test_delays_double_from_the_first_to_the_longest_and_half_of_each_is_random(
    drawn: float,
) -> None:
    delay = RetryDelay(lambda: drawn)

    waited = [delay.next_seconds() for _ in range(8)]

    share = 0.5 + drawn / 2
    ceilings = [RETRY_FIRST_SECONDS * 2**n for n in range(6)]  # 0.05 × 2⁵ = 1.6
    assert waited == pytest.approx([share * s for s in (*ceilings, *[RETRY_MAX_SECONDS] * 2)])


def test_an_answer_makes_the_next_delay_short_again() -> None:
    delay = RetryDelay(lambda: 0.0)
    for _ in range(5_000):
        last = delay.next_seconds()
    assert last == RETRY_MAX_SECONDS / 2

    delay.reset()

    assert delay.next_seconds() == RETRY_FIRST_SECONDS / 2


# ── What is logged ────────────────────────────────────────────────────────────────────────────


def test_an_outage_is_logged_once_with_its_cause_and_once_with_its_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    outage = Outage(log, clock, meanwhile="Jobs go on.")
    for seconds in (0.0, 1.5, 2.0):
        clock.advance(seconds)
        outage.began(StoreUnavailable(GONE))
    clock.advance(0.5)

    assert outage.ended()
    assert not outage.ended()

    assert not outage.lasts
    assert caplog.messages == [
        "The store is unreachable: connection refused. Jobs go on.",
        "The store is reachable again after 4.0 s.",
    ]


def test_an_outage_may_have_words_a_level_and_a_beginning_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.DEBUG, "penstock.test"):
        late = Outage(log, clock, "Leases were not renewed", "Leases are renewed again", level=10)
        late.began(TimeoutError(), clock.monotonic() - 3.0)
        late.ended()
        silent = Outage(log, clock, "It waits", None)
        silent.began("Somebody holds it.")
        assert silent.ended()

    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "Leases were not renewed: no answer in time"),
        ("DEBUG", "Leases are renewed again after 3.0 s."),
        ("WARNING", "It waits: Somebody holds it."),
    ]


# ── On a loop ─────────────────────────────────────────────────────────────────────────────────


class World:
    """A store that refuses as it is told to, in virtual time."""

    def __init__(self, refusals: Iterable[Exception] = ()) -> None:
        self.clock = VirtualClock()
        self.retry = StoreRetry(log, self.clock, SeededIds(1).random, "Jobs go on.")
        self.refusals = deque(refusals)
        self.down_until = 0.0
        self.asked: list[float] = []

    def ask(self) -> Reply[str]:
        self.asked.append(self.clock.monotonic())
        if self.refusals:
            return Reply.failed(self.refusals.popleft())
        if self.clock.monotonic() < self.down_until:
            return Reply.failed(StoreUnavailable(GONE))
        return Reply.of("answer")

    async def until_answered(self, what: str = WAITS) -> str:
        return await self.retry.until_answered(what, self.ask)


def simulated(main: Callable[[World], Awaitable[T]], refusals: Iterable[Exception] = ()) -> T:
    async def run() -> T:
        return await main(World(refusals))

    return run_virtual(run())


def test_an_answer_costs_no_wait_and_no_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        assert await world.until_answered() == "answer"
        assert world.asked == [0.0]

    simulated(main)
    assert not caplog.messages


def test_a_store_is_asked_ever_less_often_until_it_answers_and_the_outage_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        world.down_until = 60.0

        assert await world.until_answered() == "answer"

        waits = [b - a for a, b in zip(world.asked, world.asked[1:], strict=False)]
        assert waits[0] <= RETRY_FIRST_SECONDS
        assert max(waits) <= RETRY_MAX_SECONDS
        assert all(wait >= RETRY_MAX_SECONDS / 2 for wait in waits[7:])
        assert world.asked[-1] < 60.0 + RETRY_MAX_SECONDS
        assert not world.retry.unreachable

    simulated(main)
    assert len(caplog.messages) == 2
    assert caplog.messages[0] == "The store is unreachable: connection refused. Jobs go on."
    assert caplog.messages[1].startswith("The store is reachable again after 6")


@pytest.mark.parametrize("kind", TRANSIENT)
def test_all_that_passes_is_asked_for_again(kind: type[StoreError]) -> None:
    refusals = [kind("no"), StoreUnknown("who knows"), kind("no")]

    answer = simulated(World.until_answered, refusals)

    assert answer == "answer"


def test_what_does_not_pass_is_raised_at_once() -> None:
    async def main(world: World) -> None:
        with pytest.raises(StoreCorrupt):
            await world.until_answered()
        assert world.asked == [0.0]

    simulated(main, [StoreCorrupt("broken")])


def test_a_busy_or_full_store_is_told_once_for_each_that_has_to_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        for what in ("Leasing waits", "Writing waits", "Leasing waits"):
            world.refusals.extend([StoreFull("no space left"), StoreBusy("held")])
            await world.until_answered(what)
        assert not world.retry.unreachable

    simulated(main)
    assert caplog.messages == [
        "Leasing waits: no space left",
        "Writing waits: no space left",
        "Leasing waits: no space left",  # it was answered in between
    ]


def test_whoever_is_answered_first_wakes_all_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        world.down_until = 100.0
        others = [asyncio.ensure_future(world.until_answered(f"{n} waits")) for n in range(5)]
        await world.clock.sleep(100.0)
        assert not any(other.done() for other in others)

        await world.until_answered()
        woken = await asyncio.gather(*others)

        assert woken == ["answer"] * 5
        assert world.clock.monotonic() == 100.0

    simulated(main)
    assert len(caplog.messages) == 2


def test_waits_can_be_ended_from_outside_and_begin_again() -> None:
    async def main(world: World) -> None:
        world.down_until = 1_000.0
        waiting = asyncio.ensure_future(world.until_answered())
        await world.clock.sleep(50.0)
        tries = len(world.asked)

        world.retry.wake()
        await world.clock.sleep(0.0)
        await world.clock.sleep(RETRY_FIRST_SECONDS)

        assert len(world.asked) == tries + 1
        world.down_until = 0.0
        world.retry.wake()
        assert await waiting == "answer"
        assert world.clock.monotonic() == 50.0 + RETRY_FIRST_SECONDS

    simulated(main)


def test_whoever_is_cancelled_asks_no_more() -> None:
    async def main(world: World) -> None:
        world.down_until = 1_000.0
        waiting = asyncio.ensure_future(world.until_answered())
        await world.clock.sleep(50.0)
        tries = len(world.asked)

        waiting.cancel()
        await world.clock.sleep(50.0)

        assert waiting.cancelled()
        assert len(world.asked) == tries

    simulated(main)


def test_an_answer_that_nobody_wants_any_more_is_not_waited_for() -> None:
    async def main(world: World) -> None:
        world.down_until = 1_000.0
        with pytest.raises(StoreUnavailable):
            await world.retry.until_answered(
                WAITS, world.ask, wanted=lambda: world.clock.monotonic() < 10.0
            )
        assert 10.0 <= world.clock.monotonic() <= 10.0 + RETRY_MAX_SECONDS

    simulated(main)


def test_what_was_asked_before_is_the_first_try_and_refusals_are_heard_of() -> None:
    async def main(world: World) -> None:
        heard: list[StoreError] = []
        first: Reply[str] = Reply.failed(StoreUnknown("lost"))

        answer = await world.retry.until_answered(
            WAITS, world.ask, first=first, refused=heard.append
        )

        assert answer == "answer"
        assert [str(error) for error in heard] == ["lost", "no"]
        assert len(world.asked) == 2

    simulated(main, [StoreBusy("no")])


def test_what_may_not_be_done_twice_is_repeated_only_if_it_was_not_done() -> None:
    async def main(world: World) -> None:
        with pytest.raises(StoreUnknown):
            await world.retry.until_answered(WAITS, world.ask, repeatable=False)
        assert len(world.asked) == 3

    simulated(main, [StoreUnavailable(GONE), StoreBusy("held"), StoreUnknown("who knows")])


def test_a_caller_with_a_loop_of_its_own_asks_how_long_to_wait() -> None:
    async def main(world: World) -> None:
        delay, error = world.retry.delay(), StoreUnavailable(GONE)
        for _ in range(20):
            await world.retry.pause(WAITS, error, delay)
        long = world.clock.monotonic()
        assert world.retry.unreachable

        world.retry.answered(WAITS)
        delay.reset()
        await world.retry.pause(WAITS, error, delay)

        assert world.clock.monotonic() - long <= RETRY_FIRST_SECONDS

    simulated(main)


# ── In threads and commands ───────────────────────────────────────────────────────────────────


class Server:
    """Comes up at some moment; whoever tries to open it before is refused."""

    def __init__(self, up_at: float) -> None:
        self.clock = ManualClock()
        self._up_at = self.clock.monotonic() + up_at
        self.tries = 0

    def open(self) -> str:
        self.tries += 1
        if self.clock.monotonic() < self._up_at:
            raise StoreUnavailable("nobody is there")
        return "opened"

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def opened(
        self,
        wait: Callable[[float], bool | None] | None = None,
        seconds: float = retry.STORE_WAIT_SECONDS,
    ) -> str:
        rand = SeededIds(0).random
        return open_when_reachable(
            self.open, self.clock, rand, log, wait or self.sleep, seconds=seconds
        )


@pytest.mark.parametrize("up_at", [0.0, 1.0, 28.0])
def test_a_server_that_comes_up_in_time_is_opened_and_the_wait_told_once(
    up_at: float, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(up_at)

    assert server.opened() == "opened"

    assert caplog.messages[:1] == (
        ["The store is unreachable: nobody is there. Waiting for it up to 30 s."] if up_at else []
    )
    assert [m.startswith("The store is reachable again after") for m in caplog.messages[1:]] == (
        [True] if up_at else []
    )
    assert server.tries <= 2 * up_at + 6


def test_a_server_that_does_not_come_up_is_given_up_in_time() -> None:
    server = Server(1000.0)
    began = server.clock.monotonic()

    with pytest.raises(StoreUnavailable, match="nobody is there"):
        server.opened()

    assert 25 <= server.clock.monotonic() - began <= 30


def test_a_wait_for_a_server_can_be_given_up_or_last_for_ever() -> None:
    server = Server(10_000.0)
    with pytest.raises(StoreUnavailable):
        server.opened(lambda _: True)
    assert server.tries == 1

    assert server.opened(seconds=float("inf")) == "opened"


def test_an_opening_that_waiting_does_not_help_is_refused_at_once() -> None:
    def full() -> str:
        raise StoreFull("no space left")

    server = Server(0.0)
    with pytest.raises(StoreFull):
        open_when_reachable(full, server.clock, SeededIds(0).random, log, server.sleep)
    assert server.clock.monotonic() == ManualClock().monotonic()


def test_a_thread_asks_again_until_it_is_answered_or_told_to_end() -> None:
    clock = ManualClock()
    refusals: deque[Exception] = deque([StoreBusy("held"), StoreUnknown("lost"), StoreFull("full")])

    def ask() -> int:
        if refusals:
            raise refusals.popleft()
        return 7

    def retried(wait: Callable[[float], bool | None]) -> int:
        delay, outage = RetryDelay(lambda: 0.0), Outage(log, clock, "It waits", None)
        return retry_in_thread(ask, clock, delay, outage, wait)

    assert retried(clock.advance) == 7

    refusals.extend([StoreBusy("held"), StoreBusy("still held")])
    ends = iter([False, True])
    with pytest.raises(StoreBusy, match="still held"):
        retried(lambda _: next(ends))


class Asked:
    """Loses so many answers."""

    def __init__(self, lost: int) -> None:
        self.left = lost
        self.count = 0

    def __call__(self) -> Reply[str]:
        self.count += 1
        if self.count <= self.left:
            return Reply.failed(StoreUnknown("nobody knows"))
        return Reply.of("done")


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_what_may_have_been_done_is_asked_for_again(lost: int) -> None:
    ask, other = Asked(lost), Asked(lost)

    assert repeat_unknown(ask, InProcessStore(ManualClock()), "-", ask()) == "done"
    assert asyncio.run(repeat_unknown_async(other)) == "done"

    assert ask.count == other.count == lost + 1


def test_whoever_never_hears_an_answer_is_told_so() -> None:
    ask, other = Asked(100), Asked(100)

    with pytest.raises(StoreUnknown):
        repeat_unknown(ask, InProcessStore(ManualClock()), "-", ask())
    with pytest.raises(StoreUnknown):
        asyncio.run(repeat_unknown_async(other))

    assert ask.count == other.count == retry.UNKNOWN_MAX + 1


def test_a_store_that_gives_no_answer_is_told_whatever_it_is_kept_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "STORE_WAIT_SECONDS", 0.01)
    reply: Reply[int] = Reply(withdraw=lambda: True)

    with pytest.raises(StoreBusy) as refused:
        wait_for(reply, InProcessStore(ManualClock()), "nothing was changed.")

    assert str(refused.value) == (
        "The store memory: did not answer for 0.01 s: others hold it, or it is too slow; nothing "
        "was changed."
    )

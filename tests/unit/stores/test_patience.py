# SPDX-License-Identifier: Apache-2.0
"""Is a store waited for as long as it may come back, and no longer?"""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import StoreBusy, StoreUnavailable, StoreUnknown
from penstock.stores import patience
from penstock.stores.patience import insist, insist_async, open_patiently, wait_for
from penstock.stores.reply import Reply
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing import ManualClock


class Server:
    """Comes up at some moment; whoever tries to open it before is refused."""

    def __init__(self, up_at: float) -> None:
        self.clock = ManualClock()
        self._up_at = self.clock.monotonic() + up_at
        self.tries = 0
        self.said: list[str] = []

    def open(self) -> str:
        self.tries += 1
        if self.clock.monotonic() < self._up_at:
            raise StoreUnavailable("nobody is there")
        return "opened"

    def sleep(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return True

    def say(self, error: StoreUnavailable) -> None:
        self.said.append(str(error))


@pytest.mark.parametrize("up_at", [0.0, 1.0, 29.0])
def test_a_server_that_comes_up_in_time_is_opened_and_the_wait_told_once(up_at: float) -> None:
    server = Server(up_at)

    assert open_patiently(server.open, server.clock, server.sleep, server.say) == "opened"

    assert server.said == ([] if up_at == 0 else ["nobody is there"])
    assert server.tries <= up_at + 4


def test_a_server_that_does_not_come_up_is_given_up_in_time() -> None:
    server = Server(1000.0)
    began = server.clock.monotonic()

    with pytest.raises(StoreUnavailable, match="nobody is there"):
        open_patiently(server.open, server.clock, server.sleep, server.say)

    assert 25 <= server.clock.monotonic() - began <= 30


def test_a_wait_for_a_server_can_be_given_up_or_last_for_ever() -> None:
    server = Server(10_000.0)
    with pytest.raises(StoreUnavailable):
        open_patiently(server.open, server.clock, lambda _: False, server.say)
    assert server.tries == 1

    forever = float("inf")
    opened = open_patiently(server.open, server.clock, server.sleep, server.say, forever)
    assert opened == "opened"


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

    assert insist(ask, InProcessStore(ManualClock()), "-", ask()) == "done"
    assert asyncio.run(insist_async(other)) == "done"

    assert ask.count == other.count == lost + 1


def test_whoever_never_hears_an_answer_is_told_so() -> None:
    ask, other = Asked(100), Asked(100)

    with pytest.raises(StoreUnknown):
        insist(ask, InProcessStore(ManualClock()), "-", ask())
    with pytest.raises(StoreUnknown):
        asyncio.run(insist_async(other))

    assert ask.count == other.count == patience.UNKNOWN_MAX + 1


def test_a_store_that_gives_no_answer_is_told_whatever_it_is_kept_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "STORE_WAIT_SECONDS", 0.01)
    reply: Reply[int] = Reply(withdraw=lambda: True)

    with pytest.raises(StoreBusy) as refused:
        wait_for(reply, InProcessStore(ManualClock()), "nothing was changed.")

    assert str(refused.value) == (
        "The store memory: gave no answer for 0.01 s, others hold it or it is too slow; nothing "
        "was changed."
    )

# SPDX-License-Identifier: Apache-2.0
"""Is work that is done ahead of a claim, or before anybody asks, never done for nobody?"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.errors import StoreUnavailable
from penstock.stores.group_commit import GroupCommit
from tests.unit.stores.test_group_commit import WAIT, Commit, FakeSession, write
from tests.waiting import wait_until


class CountingSession(FakeSession):
    """Also counts the transactions that were opened, and those that were undone."""

    def __init__(self) -> None:
        super().__init__()
        self.begins = 0
        self.rollbacks = 0

    def begin(self, *, wait: bool) -> list[str]:
        tx = super().begin(wait=wait)
        self.begins += 1
        return tx

    def rollback(self) -> None:
        super().rollback()
        self.rollbacks += 1


@pytest.fixture
def session() -> CountingSession:
    return CountingSession()


@pytest.fixture
def commit(session: CountingSession) -> Iterator[Commit]:
    group: Commit = GroupCommit(session, lambda tx: None)
    yield group
    session.turn.set()
    group.close()


def test_a_lone_operation_is_opened_before_the_begin(
    commit: Commit, session: CountingSession
) -> None:
    opened: list[int] = []
    reply = commit.submit(write("a"), lazy=True, opening=lambda: opened.append(session.begins))

    assert reply.result(WAIT) == "A"
    assert opened == [0]


def test_one_of_several_is_not_opened(commit: Commit, session: CountingSession) -> None:
    opened: list[str] = []
    replies = [
        commit.submit(write(text), lazy=True, opening=lambda: opened.append("yes"))
        for text in ("a", "b")
    ]

    assert [reply.result(WAIT) for reply in replies] == ["A", "B"]
    assert not opened


def test_the_thread_opens_nothing_that_a_caller_may_withdraw(
    commit: Commit, session: CountingSession
) -> None:
    opened: list[str] = []
    done = threading.Event()
    reply = commit.submit(write("a"), opening=lambda: opened.append("yes"))
    reply.add_done_callback(done.set)

    assert done.wait(WAIT)
    assert not opened


def test_what_was_opened_can_still_be_withdrawn_when_there_is_no_transaction(
    commit: Commit, session: CountingSession
) -> None:
    session.turn.clear()
    reply = commit.submit(write("a"), lazy=True, opening=lambda: None)

    with pytest.raises(TimeoutError):
        reply.result(0.02)

    session.turn.set()
    assert commit.submit(write("b")).result(WAIT) == "B"
    assert session.commits == [["b"]]


def test_what_was_opened_is_done_later_when_the_server_is_away(
    commit: Commit, session: CountingSession
) -> None:
    session.begin_errors.append(StoreUnavailable("away"))

    assert commit.submit(write("a"), lazy=True, opening=lambda: None).result(WAIT) == "A"
    assert session.commits == [["a"]]


def test_a_transaction_that_was_anticipated_takes_the_operation(
    commit: Commit, session: CountingSession
) -> None:
    session.turn.clear()  # so that the operation comes while it is being opened
    commit.anticipate()
    reply = commit.submit(write("a"), lazy=True)
    session.turn.set()

    assert reply.result(WAIT) == "A"
    wait_until(lambda: session.begins == 1)
    assert session.commits == [["a"]]


def test_a_transaction_that_nobody_needed_is_undone(
    commit: Commit, session: CountingSession
) -> None:
    commit.anticipate()

    wait_until(lambda: session.rollbacks == 1)
    assert (session.begins, session.commits) == (1, [])
    assert commit.submit(write("a")).result(WAIT) == "A"

# SPDX-License-Identifier: Apache-2.0
"""Is a silent connection broken in time, and only that one?"""

from __future__ import annotations

import socket
from typing import cast

from penstock.stores.postgres.connection import AnyConnection, Guard


class _Connection:
    """As much of a connection as a guard touches."""

    closed = False

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(0)

    def fileno(self) -> int:
        return self._ours.fileno()

    def is_broken(self) -> bool:
        try:
            return self._theirs.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.closed = True
        self._ours.close()
        self._theirs.close()


def guarded() -> tuple[Guard, _Connection]:
    guard, connection = Guard(), _Connection()
    guard.watch_over(cast(AnyConnection, connection))
    return guard, connection


def test_a_call_that_is_late_is_broken_off() -> None:
    guard, connection = guarded()
    guard.until = 10.0
    broken = []

    for now in (10.0, 10.1):
        guard.give_up_if_late(now)
        broken.append(connection.is_broken())

    assert broken == [False, True]
    connection.close()


def test_a_connection_that_nobody_uses_is_left_alone() -> None:
    guard, connection = guarded()

    guard.give_up_if_late(1e9)

    assert not connection.is_broken()
    connection.close()


def test_giving_up_breaks_the_connection_whether_it_is_late_or_not() -> None:
    guard, connection = guarded()

    guard.give_up()

    assert connection.is_broken()
    connection.close()


def test_a_connection_that_was_let_go_is_not_broken() -> None:
    guard, connection = guarded()
    guard.until = 10.0

    guard.watch_over(None)
    guard.give_up_if_late(11.0)
    guard.give_up()

    assert not connection.is_broken()
    connection.close()


def test_a_connection_that_is_closed_already_is_no_error() -> None:
    guard, connection = guarded()
    connection.close()

    guard.give_up()

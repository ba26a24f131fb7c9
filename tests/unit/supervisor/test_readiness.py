# SPDX-License-Identifier: Apache-2.0
"""Does a service manager hear what it has to?"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.supervisor.sd_notify import Readiness


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        yield heard


def _environ(heard: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": heard.getsockname(), **more}


def test_it_is_told_of_the_start_and_the_end(manager: socket.socket) -> None:
    readiness = Readiness(_environ(manager), pid=7)
    readiness.ready("3 units\nof 1 schedule")
    readiness.stopping()
    assert manager.recv(4096) == b"READY=1\nSTATUS=3 units of 1 schedule"
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=Stopping."
    readiness.close()


def test_signs_of_life_come_as_often_as_asked_for(manager: socket.socket) -> None:
    readiness = Readiness(_environ(manager, WATCHDOG_USEC="10000000", WATCHDOG_PID="7"), pid=7)
    for now in (100.0, 101.0, 103.9, 104.0, 107.0):
        readiness.alive(now)
    readiness.status("end")
    assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"STATUS=end"]
    readiness.close()


@pytest.mark.parametrize("of", [{"WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "x"}, {}])
def test_nobody_waits_for_signs_of_life(manager: socket.socket, of: dict[str, str]) -> None:
    more = {"WATCHDOG_USEC": "1000", **of} if "WATCHDOG_PID" in of else of
    readiness = Readiness(_environ(manager, **more), pid=7)
    readiness.alive(1.0)
    readiness.status("end")
    assert manager.recv(4096) == b"STATUS=end"
    readiness.close()


def test_a_name_without_a_file() -> None:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind("\0penstock-test-readiness-" + str(os.getpid()))
    heard.settimeout(5)
    name = "@" + heard.getsockname()[1:].decode()
    readiness = Readiness({"NOTIFY_SOCKET": name}, pid=7)
    readiness.ready("so")
    assert heard.recv(4096) == b"READY=1\nSTATUS=so"
    readiness.close()
    heard.close()


def test_nobody_there_is_no_error(manager: socket.socket, tmp_path: Path) -> None:
    gone = Readiness({"NOTIFY_SOCKET": str(tmp_path / "gone")}, pid=7)
    gone.ready("so")
    gone.close()
    gone.stopping()
    Readiness({}, pid=7).ready("so")


def test_what_is_started_later_is_not_the_service(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    readiness = Readiness.of_this_process()
    assert "NOTIFY_SOCKET" not in os.environ
    assert "WATCHDOG_USEC" not in os.environ
    readiness.ready("so")
    assert manager.recv(4096).startswith(b"READY=1")
    readiness.close()

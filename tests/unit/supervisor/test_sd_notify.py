# SPDX-License-Identifier: Apache-2.0
"""What systemd and health probes are told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.supervisor.health_server import Health
from penstock.supervisor.sd_notify import Announcer, SdNotify
from penstock.testing.clocks import ManualClock


class Manager(SdNotify):
    """Keeps what systemd would be sent."""

    def __init__(self) -> None:
        super().__init__({"WATCHDOG_USEC": "1000000"}, 7)
        self.heard: list[str] = []

    def _send(self, text: str, wait_seconds: float = 0.0) -> None:
        self.heard.append(text)


class World:
    def __init__(self) -> None:
        clock = ManualClock()
        self.manager, self.health = Manager(), Health(clock)
        self.announcer = Announcer(clock, self.manager, self.health)

    @property
    def readiness(self) -> tuple[int, str]:
        status, text = self.health.ready_answer()
        return status.value, text


def test_the_story_of_a_daemon() -> None:
    world = World()
    world.announcer.begins("Preflights run.")
    world.announcer.turned()
    assert world.readiness == (503, "Preflights run.")
    world.announcer.ready("so")
    assert world.readiness == (200, "ready")
    world.announcer.stopping()
    assert world.readiness == (503, "The run is stopping.")
    assert world.manager.heard == [
        "STATUS=Preflights run.",
        "WATCHDOG=1",
        "READY=1\nSTATUS=so",
        "STOPPING=1\nSTATUS=Stopping.",
    ]


def test_it_is_not_ready_while_the_store_is_unreachable() -> None:
    world = World()
    world.announcer.store(unreachable=True)
    assert world.readiness == (503, "The run has not begun.")
    world.announcer.store(unreachable=False)
    world.announcer.ready("so")
    world.announcer.store(unreachable=True)
    assert world.readiness == (503, "The store is unreachable.")
    world.announcer.store(unreachable=False)
    assert world.readiness == (200, "ready")


def test_a_store_that_comes_back_does_not_make_it_ready_while_it_stops() -> None:
    world = World()
    world.announcer.ready("so")
    world.announcer.store(unreachable=True)
    world.announcer.stopping()
    world.announcer.store(unreachable=False)
    assert world.readiness == (503, "The run is stopping.")


def test_nobody_need_listen() -> None:
    announcer = Announcer(ManualClock())
    for tell in (announcer.turned, announcer.stopping):
        tell()
    announcer.begins("so")
    announcer.ready("so")
    announcer.store(unreachable=True)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        yield heard


def _environ(heard: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": heard.getsockname(), **more}


def test_it_is_told_of_the_start_and_the_end(manager: socket.socket) -> None:
    notify = SdNotify(_environ(manager), pid=7)
    notify.ready("3 units\nof 1 schedule")
    notify.stopping()
    assert manager.recv(4096) == b"READY=1\nSTATUS=3 units of 1 schedule"
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=Stopping."
    notify.close()


def test_signs_of_life_come_as_often_as_asked_for(manager: socket.socket) -> None:
    notify = SdNotify(_environ(manager, WATCHDOG_USEC="10000000", WATCHDOG_PID="7"), pid=7)
    for now in (100.0, 101.0, 103.9, 104.0, 107.0):
        notify.alive(now)
    notify.status("end")
    assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"STATUS=end"]
    notify.close()


@pytest.mark.parametrize("of", [{"WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "x"}, {}])
def test_nobody_waits_for_signs_of_life(manager: socket.socket, of: dict[str, str]) -> None:
    more = {"WATCHDOG_USEC": "1000", **of} if "WATCHDOG_PID" in of else of
    notify = SdNotify(_environ(manager, **more), pid=7)
    notify.alive(1.0)
    notify.status("end")
    assert manager.recv(4096) == b"STATUS=end"
    notify.close()


def test_a_name_without_a_file() -> None:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind("\0penstock-test-notify-" + str(os.getpid()))
    heard.settimeout(5)
    name = "@" + heard.getsockname()[1:].decode()
    notify = SdNotify({"NOTIFY_SOCKET": name}, pid=7)
    notify.ready("so")
    assert heard.recv(4096) == b"READY=1\nSTATUS=so"
    notify.close()
    heard.close()


def test_nobody_there_is_no_error(manager: socket.socket, tmp_path: Path) -> None:
    gone = SdNotify({"NOTIFY_SOCKET": str(tmp_path / "gone")}, pid=7)
    gone.ready("so")
    gone.close()
    gone.stopping()
    SdNotify({}, pid=7).ready("so")


def test_what_is_started_later_is_not_the_service(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    notify = SdNotify.of_this_process()
    assert "NOTIFY_SOCKET" not in os.environ
    assert "WATCHDOG_USEC" not in os.environ
    notify.ready("so")
    assert manager.recv(4096).startswith(b"READY=1")
    notify.close()

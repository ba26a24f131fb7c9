# SPDX-License-Identifier: Apache-2.0
"""Do a service manager and probes hear the same story?"""

from __future__ import annotations

from penstock.supervisor.health_server import Health
from penstock.supervisor.sd_notify import Announcer
from penstock.testing.clocks import ManualClock


class Manager:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def ready(self, status: str) -> None:
        self.heard.append(f"ready {status}")

    def status(self, status: str) -> None:
        self.heard.append(status)

    def stopping(self) -> None:
        self.heard.append("stopping")

    def alive(self, now: float) -> None:
        self.heard.append("alive")


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
    assert world.manager.heard == ["Preflights run.", "alive", "ready so", "stopping"]


def test_it_is_not_ready_while_the_store_is_away() -> None:
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

# SPDX-License-Identifier: Apache-2.0
"""Do probes get the truth?"""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from penstock.errors import UsageError
from penstock.supervisor.health_server import HUNG_SECONDS, Health, HealthServer
from penstock.testing.clocks import ManualClock


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.health = Health(self.clock)
        self.server = HealthServer(self.health, 0)

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(urllib.request.Request(url, method=method), timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.server.close()


def test_a_daemon_is_ready_when_its_second_phase_has_begun(world: World) -> None:
    assert world.ask("/live") == (200, "alive\n")
    world.health.not_ready("Preflights run.")
    assert world.ask("/ready") == (503, "Preflights run.\n")
    world.health.ready()
    assert world.ask("/ready") == (200, "ready\n")
    world.health.not_ready("The run is stopping.")
    assert world.ask("/ready?x=1") == (503, "The run is stopping.\n")


def test_a_loop_that_hangs_is_neither_alive_nor_ready(world: World) -> None:
    world.health.ready()
    world.clock.advance(HUNG_SECONDS + 1)
    assert world.ask("/live") == (503, "Nothing has moved for 16 s.\n")
    assert world.ask("/ready")[0] == 503
    world.health.turned()
    assert world.ask("/live")[0] == 200
    assert world.ask("/ready")[0] == 200


def test_other_questions(world: World) -> None:
    assert world.ask("/") == (404, "Ask for /live or /ready.\n")
    assert world.ask("/live", "HEAD") == (200, "")
    assert world.ask("/live", "POST")[0] == 501


def test_a_port_that_is_taken_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match=f"port {world.server.port} of --health cannot be used"):
        HealthServer(world.health, world.server.port)


def test_whoever_says_nothing_holds_nobody_up(world: World) -> None:
    with socket.create_connection(("127.0.0.1", world.server.port)):
        assert world.ask("/live")[0] == 200

# SPDX-License-Identifier: Apache-2.0
"""How long between two tries to connect, and is a server known again?"""

from __future__ import annotations

import pytest

from penstock.stores.postgres.connecting import Server, pausing


@pytest.mark.parametrize("drawn", [0.0, 0.5, 0.999])
def test_pauses_grow_to_two_seconds_and_are_jittered(drawn: float) -> None:
    pauses = [pausing(lambda: drawn, failures) for failures in (0, 1, 2, 5, 6, 100)]

    share = 0.5 + drawn / 2
    assert pauses == pytest.approx([share * s for s in (0.05, 0.1, 0.2, 1.6, 2.0, 2.0)])


def test_a_server_lives_another_life_after_a_restore_or_a_promotion() -> None:
    server = Server("7", False, "00000001", 160_000, "db", "me", 4, "UTF8", 99, "noon")

    assert server._replace(timeline="00000002").life != server.life
    assert server._replace(schema=100).life != server.life
    assert server._replace(system="8").life != server.life
    assert server._replace(start="one", pid=5).life == server.life

# SPDX-License-Identifier: Apache-2.0
"""Is a server known again?"""

from __future__ import annotations

from penstock.stores.postgres.connection import Server


def test_a_server_lives_another_life_after_a_restore_or_a_promotion() -> None:
    server = Server("7", False, "00000001", 160_000, "db", "me", 4, "UTF8", 99, "noon")

    assert server._replace(timeline="00000002").life != server.life
    assert server._replace(schema=100).life != server.life
    assert server._replace(system="8").life != server.life
    assert server._replace(start="one", pid=5).life == server.life

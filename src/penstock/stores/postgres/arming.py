# SPDX-License-Identifier: Apache-2.0
"""How are units of schedules found and started on the server, side by side with their ticks?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.group_commit import Contended
from penstock.stores.postgres.arrays import texts
from penstock.stores.postgres.paying import PayingTransaction
from penstock.stores.sql.statements import Row, as_json

LOOKS_MAX = 100  # for units that are leased, acknowledged or ended meanwhile


class ArmingTransaction(PayingTransaction):
    """Owns nothing more. Units that do not run are held from when they are found."""

    def find_units(self, keys: Sequence[str]) -> list[Row]:
        found: dict[str, Row] = {}
        missing = list(keys)
        for _ in range(LOOKS_MAX):
            for query in ("find_units", "find_ended_units"):
                if missing:
                    found |= {row[0]: row for row in self.rows(query, texts(missing))}
                    missing = [key for key in missing if key not in found]
            moving = {key for (key,) in self.rows("known_keys", texts(missing))} if missing else ()
            if not moving:
                return list(found.values())
            missing = sorted(moving)
        raise Contended("Units were leased as often as they were looked at.")

    def start_units(self, rows: Sequence[Row]) -> None:
        batch = (as_json(rows), self.now)
        self._write(("start_units", batch), ("revive_units", batch))

# SPDX-License-Identifier: Apache-2.0
"""How are units of schedules found and started on the server, side by side with their ticks?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.group_commit import Contended
from penstock.stores.postgres.arrays import texts
from penstock.stores.postgres.paying import PayingTransaction
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import Row, as_json

LOOKS_MAX = 100  # for units that are leased, acknowledged or ended meanwhile


class ArmingTransaction(PayingTransaction):
    """Owns nothing more. Units that do not run are held from when they are found."""

    def find_units(self, keys: Sequence[str]) -> list[Row]:
        """Held first and read afterwards: what is read is not older than the lock."""
        wanted, held, running = texts(keys), set[int](), int(RowState.IN_PROGRESS)
        questions = [
            (query, (wanted,)) for query in ("hold_units", "hold_ended_units", "find_units")
        ]
        for _ in range(LOOKS_MAX):
            self._still_time()
            at_rest, ended, found = self._round_trip.ask(questions)
            held.update(job_id for (job_id,) in (*at_rest, *ended))
            if all(row[3] == running or row[1] in held for row in found):
                return found
        raise Contended("Units were leased and ended as often as they were looked at.")

    def start_units(self, rows: Sequence[Row]) -> None:
        batch = (as_json(rows), self.now)
        self._write(("start_units", batch), ("revive_units", batch))

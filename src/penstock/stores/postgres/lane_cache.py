# SPDX-License-Identifier: Apache-2.0
"""What does a session remember between transactions? What never changes of lanes, and a hope."""

from __future__ import annotations

from collections.abc import Collection

LANES_KNOWN_MAX = 100_000

LaneFacts = tuple[str, str, bool]  # task, group, have its jobs limit keys


class KnownLanes:
    """Owns what one server has told; another one may have given the numbers to other lanes."""

    def __init__(self) -> None:
        self.facts: dict[int, LaneFacts] = {}
        self.numbers: dict[str, int] = {}  # by spec; a purge may have taken the lane away
        self.keys_are_new = True  # as those of the last batch were
        self.ids: list[int] = []  # for new jobs that wait for no other

    def clear(self) -> None:
        self.facts.clear()
        self.numbers.clear()
        self.ids.clear()

    def bound(self) -> None:
        """Begin anew when there are too many."""
        if len(self.facts) > LANES_KNOWN_MAX or len(self.numbers) > LANES_KNOWN_MAX:
            self.clear()

    def lacking(self, wanted: int) -> int:
        """How many ids are to be reserved, if so many jobs are to come."""
        return max(wanted - len(self.ids), 0)

    def forget(self, lane_ids: Collection[int]) -> None:
        """These may be gone."""
        gone = set(lane_ids)
        for spec in [spec for spec, lane_id in self.numbers.items() if lane_id in gone]:
            del self.numbers[spec]

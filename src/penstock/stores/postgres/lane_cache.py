# SPDX-License-Identifier: Apache-2.0
"""The cache of a session: what never changes of lanes, and where a scan of them may begin."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.clock import Clock
from penstock.model.job import JobKind

SLOW_SECONDS = 0.010  # a look that took longer has walked over dead rows
FRONT_SECONDS = 2.0  # how often a look begins at the front again, whatever it costs
LANES_MAX = 10_000
FRONT = (-(2**63), -(2**63), 0)

Place = tuple[int, int, int]  # rank, available_at, id


class ScanPlaces:
    """Owns the places of one process. Belongs to the writer's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: dict[int, Place] = {}
        self._until = 0.0

    def now(self) -> float:
        return self._clock.monotonic()

    def of(self, lane_ids: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Where to begin in each of these lanes, as three columns."""
        if self._places and self._clock.monotonic() >= self._until:
            self._places.clear()
        places = [self._places.get(lane_id, FRONT) for lane_id in lane_ids]
        return [p[0] for p in places], [p[1] for p in places], [p[2] for p in places]

    def is_behind(self, lane_id: int, rank: int, available_at: int) -> bool:
        """Whether a look that begins at the place of this lane would find a job with these."""
        place = self._places.get(lane_id)
        return place is None or (rank, available_at) > place[:2]

    def forget(self, lane_ids: Sequence[int]) -> bool:
        """Begin at the front of these lanes; True if that is news."""
        known = [lane_id for lane_id in lane_ids if self._places.pop(lane_id, None) is not None]
        return bool(known)

    def matter(self, begun: float) -> bool:
        """Whether this look was slow, or did not begin at the front."""
        return bool(self._places) or self._clock.monotonic() - begun >= SLOW_SECONDS

    def note(self, taken: Sequence[tuple[int, int, int, int]]) -> None:
        """Remember where a look ended: [lane, rank, available_at, id] of what it took."""
        if not self._places:
            self._until = self._clock.monotonic() + FRONT_SECONDS
        if len(self._places) < LANES_MAX:
            for lane_id, *at in taken:
                place = (at[0], at[1], at[2])
                if place > self._places.get(lane_id, FRONT):
                    self._places[lane_id] = place


LANES_KNOWN_MAX = 100_000

LaneFacts = tuple[str, str, bool, JobKind, int]  # task, group, are its jobs limited, kind, app


class LaneCache:
    """Owns what one server has told; another one may have given the numbers to other lanes."""

    def __init__(self, clock: Clock) -> None:
        self.places = ScanPlaces(clock)
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

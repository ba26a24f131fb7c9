# SPDX-License-Identifier: Apache-2.0
"""When may the next one leave, so that there is never a herd?"""

from __future__ import annotations

from math import inf

GAIN = 3.0  # × the rate that keeps a window full: how fast it is filled
GAIN_MIN = 1.2  # the same, where bursts seem to be what is refused
SMOOTHER = 0.7
CALM = 0.95  # the same, while another refusal would cost a long pause
CATCH_UP_SECONDS = 0.02  # a timer that was late by less does not slow the pace
FINEST_SECONDS = 1e-3  # a shorter gap is kept on average only: no timer is so fine
CAREFUL_SENDS = 2  # after a pause, a twentieth of the latency apart
CAREFUL_LATENCIES = 0.0505
PROBE_LATENCIES = 0.1  # the first one alone, if the pause before was in vain


class Pacer:
    """Owns the earliest time of the next request, and how closely they follow."""

    __slots__ = ("_careful", "_credit", "_is_in_vain", "gain", "next_at")

    def __init__(self) -> None:
        self.next_at = -inf
        self.gain = GAIN
        self._careful = 0
        self._credit = 0.0  # by which the next one may be early
        self._is_in_vain = False

    def smooth(self) -> None:
        """Requests may have left too close together."""
        self.gain = max(GAIN_MIN, SMOOTHER * self.gain)

    def loosen(self) -> None:
        """How close they leave does not matter, it seems."""
        self.gain = min(GAIN, self.gain / SMOOTHER)

    def be_careful(self, *, is_in_vain: bool = False) -> None:
        """A pause begins: after it the first ones leave slowly."""
        self._careful = CAREFUL_SENDS
        self._is_in_vain = is_in_vain

    def sent(self, now: float, gap: float, latency: float, transit: float) -> None:
        """One leaves; the next after so many seconds at the earliest.

        `transit` is how long a refusal takes to come back.
        """
        if self._careful:
            gap = max(gap, CAREFUL_LATENCIES * latency)
            if self._is_in_vain and self._careful == CAREFUL_SENDS:
                gap = max(gap, min(latency, max(PROBE_LATENCIES * latency, 2.0 * transit)))
            self._careful -= 1
        self._credit = FINEST_SECONDS if gap < FINEST_SECONDS else 0.0
        late = now - self.next_at
        self.next_at = (self.next_at if late < CATCH_UP_SECONDS else now) + gap

    def ready_at(self, now: float) -> float:
        """When the next one may leave: now, or later."""
        return now if self.next_at - now <= self._credit else self.next_at

# SPDX-License-Identifier: Apache-2.0
"""How one task waits after its failures, where that differs from the app's retry baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.clock import Duration, to_seconds
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class Retry:
    """How one task waits after its failures; what is left out is as for the whole app."""

    delay: Duration | None = None  # the longest first wait, which doubles with each failure
    max_delay: Duration | None = None  # the longest wait
    give_up_after: Duration | None = None  # of waiting for others, from the first failure on

    def __post_init__(self) -> None:
        delay, most, give_up = self.seconds()
        if delay is None and most is None and give_up is None:
            raise UsageError("Retry says nothing; give it delay=, max_delay= or give_up_after=.")
        if delay is not None and most is not None and most < delay:
            raise UsageError(
                f"Retry: max_delay= must be at least delay=, got {most:g} s and {delay:g} s."
            )

    def seconds(self) -> tuple[float | None, float | None, float | None]:
        """All of it in seconds; None where it says nothing."""
        return (
            _seconds("delay", self.delay),
            _seconds("max_delay", self.max_delay),
            _seconds("give_up_after", self.give_up_after),
        )


def _seconds(name: str, duration: Duration | None) -> float | None:
    if duration is None:
        return None
    seconds = to_seconds(duration)
    if not 0 < seconds < math.inf:
        raise UsageError(f"Retry: {name}= must be above 0 seconds and finite, got {seconds:g}.")
    return seconds

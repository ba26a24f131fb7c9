# SPDX-License-Identifier: Apache-2.0
"""What does a person mean by what was typed?"""

from __future__ import annotations

import re

PASTED_FROM = 8  # so many characters at once were not typed, and mean nothing
STOP_SECONDS = 1.0  # a second `q` within this time is a key that was held down

#: What a terminal sends for arrows, function keys, a mouse, or Alt with a key.
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]?|O.?|.)?", re.DOTALL)


def pressed(data: bytes) -> list[str]:
    """The keys of letters and signs in what a terminal sent; nothing if it was pasted."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "ignore"))
    return list(text) if len(text) < PASTED_FROM else []


class StopKey:
    """Lets a key that is held down stop a run once, and not at once."""

    def __init__(self) -> None:
        self._last: float | None = None

    def counts(self, now: float) -> bool:
        """Is this a press of its own?"""
        held = self._last is not None and now - self._last < STOP_SECONDS
        self._last = now
        return not held

# SPDX-License-Identifier: Apache-2.0
"""At which moments does a dataset have slices?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: Calendars have moments from the third day of year 1 to 9999-12-29, microseconds since 1970 UTC:
#: every one has a local time in every place.
CALENDAR_FIRST_AT = -62_135_424_000_000_000
CALENDAR_END_AT = 253_402_128_000_000_000


class Calendar(Protocol):
    """A finite or endless series of moments. Synchronous; microseconds since 1970 UTC."""

    @property
    def text(self) -> str:
        """Canonical, such as "daily 16:00 America/New_York". The same text, the same calendar."""
        ...

    @property
    def tz(self) -> str:
        """Whose days its dates mean: "UTC", "America/New_York"."""
        ...

    @property
    def daily(self) -> bool:
        """Has a local day at most one of them? Then slices are called by dates."""
        ...

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        ...

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        ...

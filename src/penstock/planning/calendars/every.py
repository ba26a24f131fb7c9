# SPDX-License-Identifier: Apache-2.0
"""A calendar of a fixed interval in absolute time, whatever local clocks show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from penstock.errors import UsageError
from penstock.model.dataset import CALENDAR_END_AT, CALENDAR_FIRST_AT
from penstock.planning.calendars.local import ByText

EVERY_MIN = timedelta(milliseconds=1)
EVERY_MAX = timedelta(days=36_500)  # a century; more is a slip of the pen

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = (("days", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


@dataclass(frozen=True, eq=False, repr=False)
class Every(ByText):
    """`Every(timedelta(minutes=15))`: counted both ways from `since`, or from 1970 UTC."""

    interval: timedelta
    since: datetime | date | None = None
    text: str = field(init=False)
    tz: str = field(init=False, default="UTC")
    micros: int = field(init=False)
    phase: int = field(init=False)  # microseconds of the first one from 1970 on

    def __post_init__(self) -> None:
        given: object = self.interval
        if not isinstance(given, timedelta):
            raise UsageError(f"Every takes a timedelta, got {given!r}.")
        if not EVERY_MIN <= given <= EVERY_MAX:
            raise UsageError(
                f"Every takes a timedelta from 1 millisecond to 36500 days, got {given!r}."
            )
        micros = given // _MICROSECOND
        phase = _micros_of(self.since) % micros
        object.__setattr__(self, "micros", micros)
        object.__setattr__(self, "phase", phase)
        suffix = f" from {_EPOCH + timedelta(microseconds=phase):%Y-%m-%dT%H:%M:%S.%fZ}"
        text = f"every {_duration(micros)}{suffix.replace('.000000Z', 'Z') if phase else ''}"
        object.__setattr__(self, "text", text)

    @property
    def daily(self) -> bool:
        """Whether a day of UTC has at most one."""
        return self.interval >= timedelta(days=1)

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        start, end = max(start, CALENDAR_FIRST_AT), min(end, CALENDAR_END_AT)
        first = start + (self.phase - start) % self.micros
        return range(first, max(first, end), self.micros)

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        moments = self.between(CALENDAR_FIRST_AT, at + 1)
        return moments[max(0, len(moments) - max(0, count)) :]


def _micros_of(since: object) -> int:
    if since is None:
        return 0
    if isinstance(since, datetime):
        aware = since if since.tzinfo else since.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(since, date):
        return (since - _EPOCH.date()) // _MICROSECOND
    raise UsageError(f"`since` of Every is a datetime or a date, got {since!r}.")


def _duration(micros: int) -> str:
    for unit, size in _UNITS:
        if micros % size == 0:
            return f"{micros // size} {unit}"
    return f"{micros / 1_000_000:.6f}".rstrip("0") + " s"

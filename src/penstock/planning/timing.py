# SPDX-License-Identifier: Apache-2.0
"""When does a schedule tick next: after an interval, or by the calendar of a place?

An interval counts from its first occurrence, so a slow tick does not move the others. A cron
expression is of one of two kinds, told apart by its hours:

- It runs at certain hours ("30 2 * * *", "*/15 2 * * *", "0 */2 * * *"): a local time that does not
  exist, because clocks go forward, moves to the first that does; one that occurs twice is taken
  once, the first time.
- It runs in every hour ("*/10 * * * *"): it is a rhythm and keeps it in absolute time: it goes on
  through an hour that occurs twice, and leaves out one that does not exist.
"""

from __future__ import annotations

import math
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from penstock.errors import UsageError
from penstock.model.timing import MISSED_MAX as MISSED_MAX
from penstock.model.timing import NextTick as NextTick
from penstock.model.timing import Timing as Timing

MICROSECONDS = 1_000_000  # per second
INTERVAL_SECONDS_MIN = 0.001
INTERVAL_SECONDS_MAX = 36_500 * 86_400.0  # a century; more is a slip of the pen
SPREAD_SECONDS = 30.0  # over which the first ticks of an interval's units lie, at most
SPREAD_PER_UNIT_SECONDS = 0.01
CRON_LENGTH_MAX = 200  # characters
SHOWN_MAX = 80  # characters of an expression in a sentence

_FIELDS = "minute hour day-of-month month day-of-week"
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_LOOKED_FROM = datetime(2000, 1, 1)  # an expression that has no date in 50 years from here has none
_LOOK_STEP = timedelta(hours=6)  # no place changes its clocks twice within
#: Where the calendar ends. What would come later comes then.
_END = datetime(9999, 12, 30)
END_AT = int((_END - _EPOCH).total_seconds()) * MICROSECONDS


def interval(seconds: float) -> Timing:
    """A tick every so many seconds; UsageError if that cannot be."""
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"An interval must be above 0 seconds, got {seconds:g}.")
    if not INTERVAL_SECONDS_MIN <= seconds <= INTERVAL_SECONDS_MAX:
        raise UsageError(
            f"An interval has at least {INTERVAL_SECONDS_MIN:g} seconds and at most 36500 days, "
            f"got {seconds:g} seconds."
        )
    return _Interval(round(seconds * MICROSECONDS))


def cron(expression: str, zone: str = "UTC") -> Timing:
    """A tick whenever the clocks of a place match five fields; UsageError if they never do."""
    fields = expression.split()
    shown = expression[:SHOWN_MAX]
    if len(fields) != 5 or len(expression) > CRON_LENGTH_MAX:
        raise UsageError(
            f"The cron expression {shown!r} must have five fields ({_FIELDS}), such as "
            '"0 3 * * 1-5"; for an interval write a timedelta or a number of seconds.'
        )
    text = " ".join(fields)
    try:
        sim = CronSim(text, _LOOKED_FROM)
        next(sim)
    except CronSimError as error:
        raise UsageError(
            f"The cron expression {shown!r} is wrong: {_problem(str(error), fields)}."
        ) from None
    except (AssertionError, ValueError, IndexError, TypeError):
        raise UsageError(
            f"The cron expression {shown!r} cannot be read; its fields are: {_FIELDS}."
        ) from None
    except StopIteration:
        raise UsageError(
            f"The cron expression {shown!r} matches no date until 2050; such a day does not exist."
        ) from None
    return _Cron(text, zone, _zone(zone), in_every_hour=len(sim.hours) == 24)


def timing_of(text: str) -> Timing:
    """The timing with this canonical text; UsageError if it is none."""
    kind, _, rest = text.partition(" ")
    if kind == "cron":
        expression, _, zone = rest.rpartition(" ")
        return cron(expression, zone)
    seconds = rest.removesuffix(" s")
    try:
        return interval(float(seconds))
    except ValueError:
        raise UsageError(f"{text[:SHOWN_MAX]!r} says neither an interval nor when.") from None


def _problem(said: str, fields: list[str]) -> str:
    name = said.removeprefix("Bad ").lower()
    names = _FIELDS.split()
    if name not in names:
        return f"{said[:1].lower()}{said[1:]}"
    value = fields[names.index(name)]
    if name == "day-of-month" and value.replace(",", "").replace("-", "").isdigit():
        return f"its {name} is {value!r}, which matches no date in those months"
    return f"its {name} cannot be {value!r}"


def _zone(name: str) -> ZoneInfo:
    given: object = name  # whatever a user without a type checker wrote
    if not isinstance(given, str) or not name:
        raise UsageError(f'A time zone is a name such as "Europe/Berlin", got {name!r}.')
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass  # OSError: the name of a folder
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        raise UsageError(
            f"The time zone {name!r} is not found, since this machine has no zone data; "
            "install the package tzdata."
        )
    near = get_close_matches(name, known, 1)
    hint = f"; the nearest known one is {near[0]!r}" if near else ""
    raise UsageError(
        f"There is no time zone {name[:SHOWN_MAX]!r}{hint}; write one such as 'Europe/Berlin'."
    )


class _Interval:
    """Occurrences at first + k × interval."""

    def __init__(self, micros: int) -> None:
        self._micros = micros
        self.text = f"every {micros / MICROSECONDS:.15g} s"

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def first(self, now: int, spread: float = 0.0, units_count: int = 1) -> int:
        seconds = min(SPREAD_SECONDS, SPREAD_PER_UNIT_SECONDS * units_count)
        return now + int(min(self._micros, round(seconds * MICROSECONDS)) * spread)

    def after(self, due_at: int, now: int) -> NextTick:
        missed = max(0, now - due_at) // self._micros
        return NextTick(due_at + (missed + 1) * self._micros, missed)


class _Cron:
    """Occurrences when local clocks match an expression."""

    def __init__(self, expression: str, name: str, zone: ZoneInfo, *, in_every_hour: bool) -> None:
        self._sim = CronSim(expression, _LOOKED_FROM)  # in naive local times
        self._zone = zone
        self._in_every_hour = in_every_hour
        self._counted: tuple[int, int, int] | None = None  # due_at, the last that passed, how many
        self.text = f"cron {expression} {name}"

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def first(self, now: int, spread: float = 0.0, units_count: int = 1) -> int:
        return self._next(now)

    def after(self, due_at: int, now: int) -> NextTick:
        # Units of one schedule ask about the same occurrence; nothing is counted twice.
        counted = self._counted
        passed, missed = due_at, 0
        if counted is not None and counted[0] == due_at and counted[1] <= now:
            passed, missed = counted[1:]
        at = self._next(passed)
        while at <= now and missed < MISSED_MAX:
            passed, missed = at, missed + 1
            at = self._next(at)
        self._counted = due_at, passed, missed
        return NextTick(at if at > now else self._next(now), missed)

    def _next(self, at: int) -> int:
        """The first occurrence later than a moment."""
        if at >= END_AT:
            return at + 86_400 * MICROSECONDS  # nobody is there to see it
        now = _EPOCH + timedelta(seconds=at // MICROSECONDS)  # a naive UTC
        found = self._in_rhythm(now) if self._in_every_hour else self._at_local_time(now)
        return min(int((found - _EPOCH).total_seconds()) * MICROSECONDS, END_AT)

    def _match(self, local: datetime) -> datetime:
        """The first local time from this one on that matches; the calendar's end if none does."""
        sim = copy(self._sim)  # parsed once
        sim.dt = local - _SECOND
        try:
            found: datetime = next(sim)
        except (StopIteration, OverflowError, ValueError):
            return _END + timedelta(days=1)
        return found

    def _at_local_time(self, now: datetime) -> datetime:
        """One that exists: the first later than now; one that does not: where the gap ends."""
        match = self._match(_local(now, self._zone) + _SECOND)
        while (moment := self._moment(match)) <= now:  # it was there before the clocks went back
            match = self._match(match + _SECOND)
        return moment

    def _moment(self, local: datetime) -> datetime:
        """When clocks first show a local time, as naive UTC; if they never do, when they go on."""
        if local >= _END:
            return local
        there = local.replace(tzinfo=self._zone)
        moment = there.astimezone(UTC).replace(tzinfo=None)
        if _local(moment, self._zone) == local:
            return moment
        # It lies in a gap, so the later offset gives a moment before it, the earlier one behind it.
        return _change(
            there.replace(fold=1).astimezone(UTC).replace(tzinfo=None), moment, self._zone
        )

    def _in_rhythm(self, now: datetime) -> datetime:
        """The first moment later than now at which clocks show a matching time."""
        position = now + _SECOND
        match = from_local = None
        while position < _END:
            offset = _offset(position, self._zone)
            local = position + offset
            if match is None or from_local is None or not from_local <= local <= match:
                match = self._match(local)
            from_local = local
            until = _next_change(position, self._zone)
            if match < until + offset:
                return match - offset
            position = until
        return _END


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    """How far clocks are ahead of UTC at a moment, a naive UTC."""
    return moment.replace(tzinfo=UTC).astimezone(zone).utcoffset() or timedelta()


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def _change(before: datetime, behind: datetime, zone: ZoneInfo) -> datetime:
    """The moment, in whole seconds, between two at which clocks are changed."""
    old = _offset(before, zone)
    while behind - before > _SECOND:
        middle = before + (behind - before) // 2
        middle -= timedelta(microseconds=middle.microsecond)
        if _offset(middle, zone) == old:
            before = middle
        else:
            behind = middle
    return behind


def _next_change(moment: datetime, zone: ZoneInfo) -> datetime:
    """The next moment at which clocks are changed, or the end of the next year if none is."""
    for year in (moment.year, moment.year + 1):
        for change in _changes(zone, year):
            if change > moment:
                return change
    return min(datetime(moment.year + 2, 1, 1), _END) if moment.year < 9998 else _END


@lru_cache(maxsize=256)
def _changes(zone: ZoneInfo, year: int) -> tuple[datetime, ...]:
    """The moments of one year of UTC, from its first on, at which clocks are changed."""
    if year > 9998:
        return ()
    start, end = datetime(year, 1, 1), datetime(year + 1, 1, 1)
    looks = [start - _SECOND]
    looks += [start + n * _LOOK_STEP - _SECOND for n in range(1, (end - start) // _LOOK_STEP + 1)]
    return tuple(
        _change(before, behind, zone)
        for before, behind in pairwise(looks)
        if _offset(before, zone) != _offset(behind, zone)
    )

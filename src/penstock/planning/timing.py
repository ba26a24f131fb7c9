# SPDX-License-Identifier: Apache-2.0
"""The next tick of a schedule: intervals, and cron expressions in a time zone.

Occurrences that were missed (misfires) are counted and not made up for: the next tick is the first
after now. An interval counts from its first occurrence, so a slow tick does not move the others. A
cron expression is of one of two kinds, told apart by its hours:

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
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.errors import UsageError
from penstock.model.dataset import MICROSECONDS
from penstock.model.schedule import MISSED_MAX, NextTick, Timing
from penstock.planning.zones import END, find_change, find_zone, local_at, next_change, offset_at

CRON_LENGTH_MAX = 200  # characters
SHOWN_MAX = 80  # characters of an expression in a sentence

#: What other tools understand, with @ or without.
_ALIASES = {
    "annually": "0 0 1 1 *",
    "daily": "0 0 * * *",
    "hourly": "0 * * * *",
    "midnight": "0 0 * * *",
    "minutely": "1m",
    "monthly": "0 0 1 * *",
    "weekly": "0 0 * * 0",
    "yearly": "0 0 1 1 *",
}

_FIELDS = "minute hour day-of-month month day-of-week"
_LOOKED_FROM = datetime(2000, 1, 1)  # an expression that has no date in 50 years from here has none

INTERVAL_SECONDS_MIN = 0.001
INTERVAL_SECONDS_MAX = 36_500 * 86_400.0  # a century; more is a slip of the pen
SPREAD_SECONDS = 30.0  # over which the first ticks of an interval's units lie, at most
SPREAD_PER_UNIT_SECONDS = 0.01

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)

#: Where the calendar ends. What would come later comes then.
END_AT = int((END - _EPOCH).total_seconds()) * MICROSECONDS


def read_cron(expression: str) -> tuple[str, CronSim]:
    """An expression with single spaces, and its fields; UsageError if it matches no date."""
    given: object = expression  # whatever a user without a type checker wrote
    fields = expression.split() if isinstance(given, str) else []
    shown = expression[:SHOWN_MAX] if isinstance(given, str) else given
    if isinstance(given, str) and (meant := _ALIASES.get(given.lower().removeprefix("@"))):
        raise UsageError(f"{given!r} is no interval and no cron expression here; write {meant!r}.")
    if len(fields) != 5 or len(expression) > CRON_LENGTH_MAX:
        raise UsageError(
            f"The cron expression {shown!r} must have five fields ({_FIELDS}), such as "
            '"0 3 * * 1-5"; for an interval write "5m", a timedelta or a number of seconds.'
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
    return text, sim


def runs_every_hour(sim: CronSim) -> bool:
    """Whether it runs in every hour."""
    return len(sim.hours) == 24


def _problem(said: str, fields: list[str]) -> str:
    name = said.removeprefix("Bad ").lower()
    names = _FIELDS.split()
    if name not in names:
        return f"{said[:1].lower()}{said[1:]}"
    value = fields[names.index(name)]
    if name == "day-of-month" and value.replace(",", "").replace("-", "").isdigit():
        return f"its {name} is {value!r}, which matches no date in those months"
    return f"its {name} cannot be {value!r}"


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
    text, sim = read_cron(expression)
    return _Cron(text, sim, zone, find_zone(zone))


def parse_timing(text: str) -> Timing:
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


class _Interval:
    """Occurrences at first + k × interval."""

    def __init__(self, micros: int) -> None:
        self.period = micros
        self.text = f"every {micros / MICROSECONDS:.15g} s"

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def first(self, now: int, spread: float = 0.0, units_count: int = 1) -> int:
        seconds = min(SPREAD_SECONDS, SPREAD_PER_UNIT_SECONDS * units_count)
        return now + int(min(self.period, round(seconds * MICROSECONDS)) * spread)

    def after(self, due_at: int, now: int) -> NextTick:
        missed = max(0, now - due_at) // self.period
        return NextTick(due_at + (missed + 1) * self.period, missed)


class _Cron:
    """Occurrences when local clocks match an expression."""

    period = None

    def __init__(self, expression: str, sim: CronSim, name: str, zone: ZoneInfo) -> None:
        self._sim = sim  # in naive local times
        self._zone = zone
        self._in_every_hour = runs_every_hour(sim)
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
            return END + timedelta(days=1)
        return found

    def _at_local_time(self, now: datetime) -> datetime:
        """One that exists: the first later than now; one that does not: where the gap ends."""
        match = self._match(local_at(now, self._zone) + _SECOND)
        while (moment := self._moment(match)) <= now:  # it was there before the clocks went back
            match = self._match(match + _SECOND)
        return moment

    def _moment(self, local: datetime) -> datetime:
        """When clocks first show a local time, as naive UTC; if they never do, when they go on."""
        if local >= END:
            return local
        there = local.replace(tzinfo=self._zone)
        moment = there.astimezone(UTC).replace(tzinfo=None)
        if local_at(moment, self._zone) == local:
            return moment
        # It lies in a gap, so the later offset gives a moment before it, the earlier one behind it.
        return find_change(
            there.replace(fold=1).astimezone(UTC).replace(tzinfo=None), moment, self._zone
        )

    def _in_rhythm(self, now: datetime) -> datetime:
        """The first moment later than now at which clocks show a matching time."""
        position = now + _SECOND
        match = from_local = None
        while position < END:
            offset = offset_at(position, self._zone)
            local = position + offset
            if match is None or from_local is None or not from_local <= local <= match:
                match = self._match(local)
            from_local = local
            until = next_change(position, self._zone)
            if match < until + offset:
                return match - offset
            position = until
        return END

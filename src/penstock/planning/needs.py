# SPDX-License-Identifier: Apache-2.0
"""Maps timestamps to the upstream slices that they need: latest, exact, lookback, window.

A rule takes slices that are neighbours in the upstream calendar. So in any sorted list that has all
slices that are needed, those of one moment are a range, and both its ends grow with the moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.errors import UsageError
from penstock.model.dataset import Calendar, DatasetSpec, Need, Rule, slice_name, utc_text

SPARSE = 4  # a calendar with so many times more slices than are needed is asked moment by moment
SPARSE_MIN = 1_000  # slices; fewer are read at once, however few of them are needed
OVERSHOT = 4  # a range that seems to have so many times the slices that may be is not read at all


class CalendarReader:
    """Reads calendars, each range once; owns the bound on how much is read.

    Args:
        most: slices that one range may have; None: however many.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._read: dict[tuple[str, int, int], list[int]] = {}

    def between(self, spec: DatasetSpec, start: int, end: int) -> list[int]:
        """The moments of a dataset in [start, end); not to be changed."""
        key = (spec.calendar.text, start, end)
        found = self._read.get(key)
        if found is None:
            if self._most is not None and start < end:
                self._refuse_many(spec, start, end, self._most)
            found = self._read[key] = list(spec.calendar.between(start, end))
        return found

    def _refuse_many(self, spec: DatasetSpec, start: int, end: int, most: int) -> None:
        about = (end - start) // spacing(spec.calendar, end - 1)
        if about > OVERSHOT * most:
            raise too_many_slices(f"about {about:,} slices of {spec.name!r}", most)


def too_many_slices(what: str, most: int) -> UsageError:
    """The refusal of a request that is larger than people mean it to be."""
    return UsageError(
        f"This needs {what}, and more than {most:,} must be confirmed: "
        "ask for a shorter range, or confirm with --yes."
    )


def spacing(calendar: Calendar, at: int) -> int:
    """Microseconds between the last two moments up to one; a whole age if there are no two."""
    last = calendar.before(at, 2)
    return last[1] - last[0] if len(last) == 2 else 1 << 62


def needed_moments(
    down: DatasetSpec, moments: Sequence[int], need: Need, up: DatasetSpec, reader: CalendarReader
) -> list[int]:
    """The upstream slices that a dataset needs for some moments, both in order.

    Raises:
        UsageError: one of them is not in the upstream calendar.
    """
    if not moments:
        return []
    if need.rule is Rule.WINDOW:
        return _by_windows(moments, need.micros, up, reader)
    count = need.count if need.rule is Rule.LOOKBACK else 1
    if _is_sparse(up.calendar, moments, count):
        return _by_moment(down, moments, need, up, count)
    first = up.calendar.before(moments[0], count)
    if len(first) < count or (need.rule is Rule.EXACT and first[0] != moments[0]):
        raise missing_slice(down, moments[0], need, up)
    found = reader.between(up, first[0], moments[-1] + 1)
    if need.rule is Rule.EXACT:
        if found != moments:
            there = set(found)
            for at in moments:
                if at not in there:
                    raise missing_slice(down, at, need, up)
        return found if found == moments else list(moments)
    if len(found) - count + 1 == len(moments):
        shifted = found[count - 1 :] if count > 1 else found
        if shifted == moments:
            return found
    return _by_ranges(found, moments, count)


def index_ranges(
    moments: Sequence[int], need: Need, found: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """For each moment, its range [first, end) in `found`, which has all that is needed."""
    if need.rule is Rule.WINDOW:
        ends = [bisect_right(found, at) for at in moments]
        micros = need.micros
        return [bisect_right(found, at - micros) for at in moments], ends
    count = need.count if need.rule is Rule.LOOKBACK else 1
    same = found if count == 1 else found[count - 1 :]
    if moments is same or (len(moments) == len(same) and moments == same):
        return range(len(moments)), range(count, count + len(moments))
    ends = [bisect_right(found, at) for at in moments]
    return [end - count for end in ends], ends


def missing_slice(down: DatasetSpec, at: int, need: Need, up: DatasetSpec) -> UsageError:
    """The refusal of a slice that needs one which cannot be."""
    who = slice_name(down.name, at, down.calendar)
    when = utc_text(at)
    calendar = f"the calendar of {up.name} ({up.calendar.text})"
    last = up.calendar.before(at, need.count if need.rule is Rule.LOOKBACK else 1)
    if need.rule is Rule.EXACT:
        newest = [slice_name(up.name, other, up.calendar) for other in last]
        near = f" (the newest before it is {newest[0]})" if newest else ""
        return UsageError(
            f"{who} needs {up.name} at exactly {when}, but {calendar} has no slice there"
            f"{near}; give both one calendar, or use {up.name}.latest()."
        )
    if need.rule is Rule.LOOKBACK and last:
        first = slice_name(up.name, last[0], up.calendar)
        return UsageError(
            f"{who} needs {need.count:,} slices of {up.name} up to {when}, but {calendar} has only "
            f"{len(last):,} of them, the first at {first}; begin later, or look back less far."
        )
    return UsageError(
        f"{who} needs {up.name} at or before {when}, but {calendar} has no slice there; "
        f"begin later, or give {up.name} a calendar that begins earlier."
    )


def _is_sparse(calendar: Calendar, moments: Sequence[int], count: int) -> bool:
    """Whether most slices between the first and the last moment would be read for nothing."""
    reach = moments[-1] - moments[0]
    if not reach:
        return True
    wanted = len(moments) * count
    return reach // spacing(calendar, moments[-1]) > SPARSE * wanted + SPARSE_MIN


def _by_moment(
    down: DatasetSpec, moments: Sequence[int], need: Need, up: DatasetSpec, count: int
) -> list[int]:
    found: set[int] = set()
    for at in moments:
        last = up.calendar.before(at, count)
        if len(last) < count or (need.rule is Rule.EXACT and last[0] != at):
            raise missing_slice(down, at, need, up)
        found.update(last)
    return sorted(found)


def _by_windows(
    moments: Sequence[int], micros: int, up: DatasetSpec, reader: CalendarReader
) -> list[int]:
    """All in (at - micros, at]; windows that touch are read as one."""
    found: list[int] = []
    start, end = moments[0] - micros, moments[0]
    for at in moments:
        if at - micros > end:
            found += reader.between(up, start + 1, end + 1)
            start = at - micros
        end = at
    found += reader.between(up, start + 1, end + 1)
    return found


def _by_ranges(found: list[int], moments: Sequence[int], count: int) -> list[int]:
    """The union of the last `count` up to each moment."""
    kept: list[int] = []
    first = end = 0
    for at in moments:
        last = bisect_right(found, at)
        if last - count > end:
            kept += found[first:end]
            first = last - count
        end = last
    kept += found[first:end]
    return kept

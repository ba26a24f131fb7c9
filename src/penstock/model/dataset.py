# SPDX-License-Identifier: Apache-2.0
"""Datasets: calendars, slices and their names, dependencies, and marks of committed slices."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol
from zoneinfo import ZoneInfo

import msgspec

from penstock.errors import UsageError
from penstock.model.job import SLICE
from penstock.model.table import ColumnFigures

MICROSECONDS = 1_000_000  # per second
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

#: Calendars have moments from the third day of year 1 to 9999-12-29, microseconds since 1970 UTC:
#: every one has a local time in every place.
CALENDAR_FIRST_AT = -62_135_424_000_000_000
CALENDAR_END_AT = 253_402_128_000_000_000
BUILD = "build:"  # how the keys of a plan's jobs begin
SLICES_UNASKED_MAX = 1_000_000  # a request of more needs a yes
LOOKBACK_MAX = 1_000_000  # slices
ROWS = "rows"  # in place of a zone: moments are numbers of rows, of the row groups of a table
DATASET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")


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
        """Whether a local day has at most one of them: then slices are named by dates."""
        ...

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        ...

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        ...


class Rule(StrEnum):
    """Which upstream slices one moment needs."""

    LATEST = "latest"  # the newest at or before it
    EXACT = "exact"  # the one at that very moment
    LOOKBACK = "lookback"  # the newest `count` at or before it
    WINDOW = "window"  # all in (at - micros, at]


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset needs of another one."""

    dataset: str
    rule: Rule = Rule.LATEST
    count: int = 1
    micros: int = 0

    @property
    def text(self) -> str:
        """Canonical, such as "prices.lookback(20)"."""
        said = {Rule.LOOKBACK: f"{self.count}", Rule.WINDOW: f"{self.micros / 1e6:.15g} s"}
        return f"{self.dataset}.{self.rule}({said.get(self.rule, '')})"

    @property
    def argument(self) -> str:
        """What the function calls it: its name, with `.` and `-` as `_`."""
        return self.dataset.replace(".", "_").replace("-", "_")


class DatasetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset, as planning sees it."""

    name: str
    calendar: Calendar
    needs: tuple[Need, ...] = ()
    version: str = "1"
    batch: int = 1  # slices that one job builds, at most


class SliceMarks(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed of one dataset in a range: parallel arrays, in order of time."""

    ats: array[int]  # of the version that was asked for
    seqs: array[int]  # the number of the commit that made it visible
    bases: array[int]  # the store's number when its inputs were read
    outdated: array[int]  # slices of another version or root; in order
    seq: int  # the store's number at this read


class SliceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One written slice: what its manifest says. Its JSON is the manifest's document."""

    at: int
    path: str  # below the root of outputs
    kind: str  # "parquet" or "raw"
    rows: int | None  # None: bytes have none
    bytes: int
    checksum: str  # blake2b, hexadecimal
    code: str | None = None  # fingerprint of the function that built it; None: it has none
    part: TablePart | None = None  # what else is known of a part of a table

    @property
    def paths(self) -> tuple[str, ...]:
        """Of all files that the manifest names."""
        return (self.path,) if self.part is None else (self.path, *self.part.paths)


class TablePart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of the rows of one row group, beside the file that has them."""

    size: int  # of a whole row group
    asked: int  # rows, made or dropped
    identities: dict[str, str]  # by column: what made its values
    cells: SliceOutput  # the file with a row for each cell
    dropped: SliceOutput | None = None  # the rows that were dropped; None: none was
    dropped_count: int = 0
    columns: dict[str, ColumnFigures] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the files beside the part."""
        files = [self.cells] if self.dropped is None else [self.cells, self.dropped]
        return tuple(one.path for one in files)


def built_as(version: str, root_id: str) -> str:
    """What a slice was built by and for. One that lies in another root is as good as none here."""
    return f"{version}#{root_id}"


def version_of(built: str) -> str:
    """The version in that."""
    version, mark, _ = built.rpartition("#")
    return version if mark else built


def root_of(built: str) -> str:
    """The root in that."""
    return built.rpartition("#")[2]


def task_name(task: str) -> str:
    """A task as people know it: `dataset:prices` of `dataset:prices#ROOT`; others as they are."""
    return task.partition("#")[0] if task.startswith(SLICE) else task


def slice_of(key: str) -> str:
    """What people call the slices of a job: `prices@2024-01-05` of `build:PLAN:prices@…`."""
    return key.split(":", 2)[-1]


class Days(Protocol):
    """What of a calendar the names of its slices depend on."""

    @property
    def tz(self) -> str: ...

    @property
    def daily(self) -> bool: ...


def slice_name(dataset: str, at: int, calendar: Days) -> str:
    """How people call a slice: `prices@2024-01-05`."""
    return f"{dataset}@{moment_name(at, calendar)}"


def utc_datetime(at: int) -> datetime:
    """Microseconds since 1970 UTC as an aware time of UTC, exactly."""
    return EPOCH + timedelta(microseconds=at)


def utc_micros(moment: datetime) -> int:
    """An aware time as microseconds since 1970 UTC."""
    return (moment - EPOCH) // MICROSECOND


def utc_text(at: int) -> str:
    """A moment as an ISO time of UTC; with a fraction if it has one."""
    seconds, micros = divmod(at, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}{fraction}Z"


def moment_name(at: int, calendar: Days) -> str:
    """A date where a day has at most one slice, else a time of UTC; of a table a row's number."""
    if calendar.tz == ROWS:
        return str(at)
    if not calendar.daily:
        return utc_text(at)
    moment = datetime.fromtimestamp(at // 1_000_000, UTC)
    return moment.astimezone(ZoneInfo(calendar.tz)).date().isoformat()


def check_dataset_name(name: object) -> str:
    """The name of a dataset, which is that of its folder, too; UsageError if it cannot be one."""
    if isinstance(name, str) and DATASET_NAME.fullmatch(name):
        return name
    raise UsageError(
        f"A dataset cannot be called {name!r:.100}: at most 128 letters, digits, '_', '.' and '-', "
        "beginning with a letter, so that it can be a folder."
    )


def latest(name: str) -> Need:
    """The newest slice at or before a timestamp."""
    return Need(dataset=check_dataset_name(name), rule=Rule.LATEST)


def exact(name: str) -> Need:
    """The slice of that very timestamp."""
    return Need(dataset=check_dataset_name(name), rule=Rule.EXACT)


def lookback(name: str, count: int) -> Need:
    """The newest `count` slices at or before a timestamp."""
    given: object = count
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= LOOKBACK_MAX:
        raise UsageError(
            f"A lookback of {name!r} takes a whole number from 1 to {LOOKBACK_MAX:,}, got "
            f"{given!r:.100}."
        )
    return Need(dataset=check_dataset_name(name), rule=Rule.LOOKBACK, count=given)


def window(name: str, duration: timedelta) -> Need:
    """All slices of a duration that ends with the timestamp: after `at - duration`, up to `at`."""
    given: object = duration
    if not isinstance(given, timedelta) or given <= timedelta():
        raise UsageError(f"A window of {name!r} takes a timedelta above 0, got {given!r:.100}.")
    return Need(dataset=check_dataset_name(name), rule=Rule.WINDOW, micros=given // MICROSECOND)

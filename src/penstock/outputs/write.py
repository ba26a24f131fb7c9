# SPDX-License-Identifier: Apache-2.0
"""Writes slices durably: staging file, fsync, atomic rename, fsync of the folders.

Nothing is ever at its place that would not survive a power cut. The store names the files to
readers; until then nobody sees them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock import failpoints
from penstock.errors import OutputFailed, UsageError
from penstock.model.dataset import SliceOutput, check_dataset_name, utc_micros
from penstock.outputs.parquet import TableError, arrow, encode_table, to_table
from penstock.outputs.paths import (
    PARQUET,
    RAW,
    STAGING,
    Disk,
    SliceNames,
    attempt_mark,
    checksum_of,
    folder_name,
    part_name,
    part_stem,
    reason,
    staged_name,
)
from penstock.outputs.root import OutputRoot

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX = 32  # of lists and dicts in each other

#: What a value may be, and what it is called; the first that fits.
_FAMILIES: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    (bytearray, "bytes"),
    (datetime, "datetime"),
    (date, "date"),
    (time, "time"),
    (timedelta, "timedelta"),
    (Decimal, "Decimal"),
    (dict, "dict"),
    (list, "list"),
    (tuple, "list"),
)
_NUMBERS = {"int", "float"}
_ALLOWED = "bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, list and dict"

NAMED_MAX = 5  # timestamps that a message names
OPEN_MAX = 64  # files at a time
SYNCS_APART_MAX = 4  # fewer are not worth threads
SYNCS_MAX = 8  # at a time
RENAMES_MAX = 20  # tries, if whoever sweeps removes the empty folder each time
ALLOWED = "a list of dicts, an Arrow table, a pandas or polars frame, or bytes"

T = TypeVar("T")


def table_of_rows(rows: Sequence[object]) -> pa.Table:
    """A table with columns in the order in which the rows first name them; or `TableError`."""
    pa = arrow()
    columns = {name: _array(name, values) for name, values in _columns(rows).items()}
    if rows and not columns:
        raise TableError("its rows have no columns")
    return pa.table(columns)


def _columns(rows: Sequence[object]) -> dict[str, list[object]]:
    """The values of each column; None where a row lacks it."""
    names: dict[str, None] = {}
    before: object = None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TableError(f"row {number} is not a dict but of type {type(row).__name__}")
        keys = row.keys()
        if keys == before:  # most rows are like the last
            continue
        before = keys
        for name in keys:
            if not isinstance(name, str):
                kind = type(name).__name__
                raise TableError(f"row {number} has a column name that is not a str but a {kind}")
            if not _is_unicode(name):
                raise TableError(f"row {number} has a column name that is not Unicode text")
            names[name] = None
    return {name: [row.get(name) for row in rows] for name in names}  # type: ignore[attr-defined]


def _array(name: str, values: list[object]) -> pa.Array:
    pa = arrow()
    kind = _one_family(name, values, DEPTH_MAX)
    asked = None
    if kind == "datetime" and _zone_count(values) > 1:
        asked = pa.timestamp("us", "UTC")
    try:
        return pa.array(values, asked)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise TableError(f"column {name!r}: {_why(values, kind, error)}") from error


def _one_family(name: str, values: Iterable[object], depth: int) -> str | None:
    """What all the values of a column are; None if there are none."""
    values = list(values)
    kinds = {type(value) for value in values} - {type(None)}
    families = {_family(name, kind) for kind in kinds}
    if len(families) > 1 and families != _NUMBERS:
        told = " and ".join(sorted(families))
        raise TableError(f"column {name!r} has values of several types, {told}")
    family = next(iter(families), None)
    if family == "datetime":
        _one_sort_of_time(name, values)
    elif family == "time" and any(_has_zone(value) for value in values):
        raise TableError(f"column {name!r} has a time of day with a zone, which cannot be kept")
    elif family in ("list", "dict"):
        _look_inside(name, values, family, depth)
    return family


def _look_inside(name: str, values: list[Any], family: str, depth: int) -> None:
    if depth == 0:
        raise TableError(f"column {name!r} is nested more than {DEPTH_MAX} deep")
    there = [value for value in values if value is not None]
    if family == "list":
        _one_family(f"{name}[]", chain.from_iterable(there), depth - 1)
        return
    inner: dict[str, list[object]] = {}
    for value in there:
        for key, part in value.items():
            if not isinstance(key, str):
                kind = type(key).__name__
                raise TableError(f"column {name!r} has a key that is not a str but a {kind}")
            if not _is_unicode(key):
                raise TableError(f"column {name!r} has a key that is not Unicode text")
            inner.setdefault(key, []).append(part)
    if not inner:
        raise TableError(f"column {name!r} has only empty dicts, and no column can be of those")
    for key, parts in inner.items():
        _one_family(f"{name}.{key}", parts, depth - 1)


def _family(name: str, kind: type) -> str:
    for known, family in _FAMILIES:
        if issubclass(kind, known):
            return family
    raise TableError(f"column {name!r} has a value of type {kind.__name__}; allowed are {_ALLOWED}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_zone(value: object) -> bool:
    return getattr(value, "tzinfo", None) is not None


def _one_sort_of_time(name: str, values: list[object]) -> None:
    if len({_has_zone(value) for value in values if value is not None}) > 1:
        raise TableError(f"column {name!r} has times with and without a zone")


def _zone_count(values: list[object]) -> int:
    """How many zones a column's times are in; several are kept as times of UTC."""
    return len({getattr(value, "tzinfo", None) for value in values if value is not None})


def _why(values: list[object], kind: str | None, error: Exception) -> str:
    """In our words where we know it; values are never shown."""
    if isinstance(error, UnicodeError):
        return "a str that is not Unicode text"
    if isinstance(error, OverflowError) or kind == "int":
        return f"a value of type {kind} is out of range (whole numbers have 64 bits)"
    if kind == "float":
        return "whole numbers beyond 2**53 among fractions"
    if kind == "Decimal":
        return "a Decimal that is not finite, or has more than 76 digits"
    return f"Arrow cannot keep its values of type {kind}"


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a slice's file."""

    at: int
    kind: str
    rows: int | None
    data: memoryview


def encode_slices(
    value: object, ats: Sequence[int], named: SliceNames, *, batch: bool
) -> Iterator[Encoded]:
    """What the function of a dataset returned, slice by slice.

    Args:
        value: what was returned; with `batch` a mapping of the asked moments to such values.
        ats: the asked moments.
        named: how the slices are called in errors.
        batch: whether a mapping was asked for.
    """
    parts = _parts(value, ats, named) if batch else {ats[0]: value}
    return (_encode(parts[at], at, named) for at in ats)


def write_slices(
    root: OutputRoot,
    named: SliceNames,
    slices: Iterable[Encoded],
    attempt: str,
) -> tuple[SliceOutput, ...]:
    """Write slices of one dataset durably; all of them, or an error and none is left.

    Args:
        attempt: what no other attempt of any job is called by, such as its id and token.
    """
    check_dataset_name(named.dataset)
    job = _SliceWriter(root, named, attempt_mark(attempt))
    with root.opened() as folder:
        try:
            return job.write(folder, slices)
        except OSError as error:
            job.undo(folder)
            raise OutputFailed(
                f"{named.dataset} could not be written below {root.path}: {reason(error)}. "
                "Nothing of it is visible.",
                error.errno,
            ) from error
        except BaseException:
            job.undo(folder)
            raise


class _SliceWriter:
    """One job's files, from staging to their places."""

    def __init__(self, root: OutputRoot, named: SliceNames, mark: str) -> None:
        self._root = root
        self._disk: Disk = root.disk
        self._dataset = named.dataset
        self._mark = mark
        self._staged: list[str] = []  # names in the staging folder
        self._placed: list[tuple[str, str]] = []  # folder and file of what was renamed

    def write(self, root: int, slices: Iterable[Encoded]) -> tuple[SliceOutput, ...]:
        outputs: list[SliceOutput] = []
        self._disk.make_folder(root, STAGING)
        with self._disk.folder(root, STAGING) as staging:
            coming = iter(slices)
            while group := list(islice(coming, OPEN_MAX)):
                outputs += self._stage(staging, group)
            self._disk.make_folder(root, self._dataset)
            with self._disk.folder(root, self._dataset) as folder:
                for output, staged in zip(outputs, tuple(self._staged), strict=True):
                    self._place(staging, staged, folder, output)
                self._sync_folders(root, folder)
        return tuple(outputs)

    def undo(self, root: int) -> None:
        """Take back what was written; what cannot be is swept later."""
        disk = self._disk
        with contextlib.suppress(OSError), disk.folder(root, STAGING) as staging:
            for name in self._staged:
                with contextlib.suppress(OSError):
                    disk.unlink(staging, name)
        with contextlib.suppress(OSError), disk.folder(root, self._dataset) as folder:
            for moment, part in self._placed:
                with contextlib.suppress(OSError):
                    with disk.folder(folder, moment) as inner:
                        disk.unlink(inner, part)
                    disk.remove_folder(folder, moment)

    def _stage(self, staging: int, group: Sequence[Encoded]) -> list[SliceOutput]:
        """Write all, then sync all."""
        disk, files = self._disk, []
        outputs = []
        try:
            for one in group:
                checksum = checksum_of(one.data)
                stem = part_stem(checksum, one.at, self._mark)
                files.append(self._create(staging, staged_name(self._dataset, stem)))
                disk.write(files[-1], one.data)
                failpoints.hit("dataset.part_written")
                outputs.append(
                    SliceOutput(
                        at=one.at,
                        path=f"{self._dataset}/{folder_name(one.at)}/{part_name(stem, one.kind)}",
                        kind=one.kind,
                        rows=one.rows,
                        bytes=len(one.data),
                        checksum=checksum,
                    )
                )
            _sync_in_parallel(disk.sync, files)
            failpoints.hit("dataset.part_synced")
        finally:
            for file in files:
                disk.close(file)
        return outputs

    def _create(self, staging: int, name: str) -> int:
        self._staged.append(name)
        try:
            return self._disk.create(staging, name)
        except FileExistsError:  # left by this very attempt, which did not come to its end
            self._disk.unlink(staging, name)
            return self._disk.create(staging, name)

    def _place(self, staging: int, staged: str, folder: int, output: SliceOutput) -> None:
        """Rename to its place; whoever sweeps may remove the folder while it is empty."""
        _, moment, part = output.path.split("/")
        for tries in count(1):
            self._disk.make_folder(folder, moment)
            try:
                with self._disk.folder(folder, moment) as inner:
                    self._disk.rename(staging, staged, inner, part)
                break
            except FileNotFoundError:
                if tries == RENAMES_MAX:
                    raise
        self._placed.append((moment, part))
        failpoints.hit("dataset.renamed")

    def _sync_folders(self, root: int, folder: int) -> None:
        """Make the new names durable, innermost first.

        All renames come before the first sync: on a journaling file system that one carries them
        all, and the others find little to do. The folder of the dataset is synced even if the
        moment's was there: another writer may have made it and not yet synced.
        """
        disk = self._disk

        def sync(moment: str) -> None:
            with disk.folder(folder, moment) as inner:
                disk.sync_folder(inner)

        _sync_in_parallel(sync, [moment for moment, _ in self._placed])
        disk.sync_folder(folder)
        self._root.sync_entry(root, folder)
        failpoints.hit("dataset.dir_synced")


def _sync_in_parallel(sync: Callable[[T], None], what: Sequence[T]) -> None:
    """Sync all. Each waits for the disk, and the system lets those who wait share one flush."""
    if len(what) < SYNCS_APART_MAX:
        for one in what:
            sync(one)
        return
    with ThreadPoolExecutor(min(len(what), SYNCS_MAX), "penstock-sync") as threads:
        for done in [threads.submit(sync, one) for one in what]:
            done.result()


def _parts(value: object, ats: Sequence[int], named: SliceNames) -> dict[int, object]:
    """The mapping of a batch, by moments; for exactly those that were asked for."""
    asked = f"{named.dataset} builds several slices at once"
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{asked} and must return a mapping of timestamps to {ALLOWED}, "
            f"not {type(value).__name__}."
        )
    parts: dict[int, object] = {}
    for moment, part in value.items():
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise UsageError(
                f"{asked}, and a key of what it returned is no datetime with a zone: "
                "use the given timestamps."
            )
        parts[utc_micros(moment)] = part
    if len(parts) < len(value):
        raise UsageError(f"{asked}, and two keys of what it returned are the same moment.")
    missing, extra = sorted(set(ats) - parts.keys()), sorted(parts.keys() - set(ats))
    if missing or extra:
        wrong = [("lacks", missing)] * bool(missing) + [("has, unasked,", extra)] * bool(extra)
        told = " and ".join(f"{verb} {_few(which, named)}" for verb, which in wrong)
        raise UsageError(
            f"{asked}, and what it returned {told}. Return each timestamp that was given, once."
        )
    return parts


def _few(ats: Sequence[int], named: SliceNames) -> str:
    shown = ", ".join(named.of(at) for at in ats[:NAMED_MAX])
    more = len(ats) - NAMED_MAX
    return f"{shown} and {more:,} more" if more > 0 else shown


def _encode(value: object, at: int, named: SliceNames) -> Encoded:
    if isinstance(value, bytes | bytearray | memoryview):
        data = memoryview(value)
        if not data.c_contiguous:
            raise UsageError(
                f"{named.of(at)} returned a view of memory that is not in one piece. Return "
                f"{ALLOWED}."
            )
        return Encoded(at=at, kind=RAW, rows=None, data=data.cast("B"))
    try:
        table = table_of_rows(value) if isinstance(value, list | tuple) else to_table(value)
        if table is not None:
            content, rows = encode_table(table)
            return Encoded(at=at, kind=PARQUET, rows=rows, data=content)
    except TableError as error:
        raise UsageError(
            f"{named.of(at)} cannot be written as a table: {error}. Return {ALLOWED}."
        ) from error
    kind = "nothing" if value is None else f"a value of type {type(value).__name__}"
    raise UsageError(
        f"{named.of(at)} returned {kind}. Return {ALLOWED}; an empty list is an empty table."
    )

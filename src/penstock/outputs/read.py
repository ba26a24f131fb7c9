# SPDX-License-Identifier: Apache-2.0
"""Reads slices: verifies size and checksum, decodes Parquet, joins tables."""

from __future__ import annotations

import builtins
import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from penstock.errors import DatasetDamaged, OutputFailed, UsageError
from penstock.model.dataset import SliceOutput, utc_datetime, utc_micros
from penstock.outputs.parquet import (
    TableError,
    column_type,
    concat_tables,
    decode_table,
    find_type_conflict,
)
from penstock.outputs.paths import (
    PARQUET,
    RAW,
    SliceNames,
    checksum_of,
    read_all,
    reason,
    split_path,
)
from penstock.outputs.root import OutputRoot

if TYPE_CHECKING:
    import pyarrow as pa

_LINKS = (errno.ELOOP, errno.EMLINK)  # what O_NOFOLLOW says of a link

CACHED_BYTES_MAX = 1 << 26  # of tables in memory, so that slices which overlap are read once


def read_content(root: OutputRoot, named: SliceNames, output: SliceOutput) -> bytes:
    """The bytes of a slice's file, once their size and checksum have been compared."""
    place = split_path(output.path)
    if place is None or place[0] != named.dataset:
        raise _damaged(named, output, "its manifest names a path that no slice has")
    try:
        data = _read(root, place, output.bytes + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _damaged(named, output, "it is not there", missing=True) from error
    except OSError as error:
        if error.errno in _LINKS:
            raise _damaged(named, output, "a link is in its place") from error
        raise OutputFailed(
            f"{root.path}/{output.path} cannot be read: {reason(error)}.", error.errno
        ) from error
    if data is None:
        raise _damaged(named, output, "it is not a file")
    if len(data) != output.bytes:
        found = "more" if len(data) > output.bytes else f"{len(data):,}"
        raise _damaged(named, output, f"it should have {output.bytes:,} bytes and has {found}")
    if checksum_of(data) != output.checksum:
        raise _damaged(named, output, "its checksum differs")
    return data


def read_raw(root: OutputRoot, named: SliceNames, output: SliceOutput) -> bytes:
    """The bytes of a raw slice."""
    if output.kind != RAW:
        raise UsageError(f"{named.of(output.at)} is a table, not bytes: use table() or rows().")
    return read_content(root, named, output)


def read_table(root: OutputRoot, named: SliceNames, output: SliceOutput) -> pa.Table:
    """The table of a slice."""
    if output.kind != PARQUET:
        raise UsageError(
            f"{named.of(output.at)} is raw bytes, not a table: a function that needs it calls "
            "bytes(), others read its files, which files() and 'penstock dataset show' name."
        )
    try:
        return decode_table(read_content(root, named, output))
    except TableError as error:
        raise _damaged(named, output, f"it cannot be read as Parquet ({error})") from error


def join_tables(
    named: SliceNames, outputs: Sequence[SliceOutput], tables: Sequence[pa.Table]
) -> pa.Table:
    """The tables of several slices as one, columns by name."""
    try:
        return concat_tables(tables)
    except TableError as error:
        found = find_type_conflict(tables)
        if found is None:
            raise UsageError(f"Slices of {named.dataset} cannot be joined: {error}.") from error
        column, first, second = found
        raise UsageError(
            f"Column {column!r} is {column_type(tables[first], column)} in "
            f"{named.of(outputs[first].at)} and {column_type(tables[second], column)} in "
            f"{named.of(outputs[second].at)}: read them separately, or build one of them again."
        ) from error


def _read(root: OutputRoot, place: tuple[str, str, str], size_max: int) -> bytes | None:
    """What is in a file below the root; None if it is no plain file."""
    dataset, moment, part = place
    disk = root.disk
    with (
        root.opened() as top,
        disk.folder(top, dataset) as folder,
        disk.folder(folder, moment) as inner,
        disk.file(inner, part) as file,
    ):
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return read_all(file, size_max)


def _damaged(
    named: SliceNames, output: SliceOutput, what: str, missing: bool = False
) -> DatasetDamaged:
    return DatasetDamaged(
        f"The file {output.path} of {named.of(output.at)} is damaged: {what}. "
        f"Build it again with: {named.rebuild_command(output.at)}",
        output.path,
        missing,
    )


class SlicesData(msgspec.Struct, frozen=True, kw_only=True):
    """All that a `Slices` is made of; as JSON it crosses to another process."""

    named: SliceNames
    root_path: str
    root_id: str
    outputs: tuple[SliceOutput, ...]  # in order of time
    needed_by: dict[int, tuple[int, ...]] = {}  # moment of the job → moments it needs; in order


class Slices:
    """Slices of a needed dataset, in order of time; their files are read when asked for.

    `len` counts them, and a loop gives them one by one, each a `Slices` of its own. Owns a small
    cache of tables, which it shares with what `of` and a loop give. Any thread may use it.
    """

    def __init__(self, given: SlicesData, root: OutputRoot | None = None) -> None:
        """Slices from plain data.

        Args:
            root: where they lie, if somebody knows it already.
        """
        self._given = given
        self._root = root or OutputRoot(given.root_path, given.root_id)
        self._tables = _TableCache(self._root, given.named)
        self._outputs = given.outputs
        self._by_at = {output.at: output for output in given.outputs}

    def __repr__(self) -> str:
        return f"<Slices {self._given.named.dataset} {len(self):,}>"

    def __len__(self) -> int:
        return len(self._outputs)

    def __iter__(self) -> Iterator[Slices]:
        return (self._only((output,)) for output in self._outputs)

    @property
    def dataset(self) -> str:
        """Whose slices they are."""
        return self._given.named.dataset

    @property
    def timestamps(self) -> list[datetime]:
        """Their moments, in the zone of the dataset's calendar."""
        zone = ZoneInfo(self._given.named.tz)
        return [utc_datetime(output.at).astimezone(zone) for output in self._outputs]

    def rows(self) -> list[dict[str, Any]]:
        """All rows of all slices, in order of time; a column that a slice lacks is None."""
        return self.table().to_pylist()  # type: ignore[no-any-return]

    def table(self) -> pa.Table:
        """All slices as one Arrow table; polars and pandas make frames of it without a copy."""
        tables = [self._tables.of(output) for output in self._outputs]
        return join_tables(self._given.named, self._outputs, tables)

    def bytes(self) -> builtins.bytes:
        """The content of the only slice, of a dataset whose function returns bytes."""
        if len(self._outputs) != 1:
            raise UsageError(
                f"bytes() reads exactly one slice, and these are {len(self)} of {self.dataset}: "
                "take them one by one in a loop, or with of(at)."
            )
        return read_raw(self._root, self._given.named, self._outputs[0])

    def of(self, at: datetime) -> Slices:
        """What one timestamp of a batch needs."""
        if at.utcoffset() is None:
            raise UsageError("of(at) takes one of the given timestamps; this one has no zone.")
        needed = self._given.needed_by.get(utc_micros(at))
        if needed is None:
            raise UsageError(
                f"of({at.isoformat()}) is none of the timestamps that this job was given."
            )
        return self._only(tuple(self._by_at[at] for at in needed))

    def _only(self, outputs: tuple[SliceOutput, ...]) -> Slices:
        some = object.__new__(Slices)
        some._given = self._given
        some._root = self._root
        some._tables = self._tables
        some._outputs = outputs
        some._by_at = self._by_at
        return some


class _TableCache:
    """Tables that were read, the newest up to a size."""

    def __init__(self, root: OutputRoot, named: SliceNames) -> None:
        self._root = root
        self._named = named
        self._lock = threading.Lock()  # guards the two below
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._bytes = 0

    def of(self, output: SliceOutput) -> pa.Table:
        with self._lock:
            table = self._kept.get(output.at)
            if table is not None:
                self._kept.move_to_end(output.at)
                return table
        table = read_table(self._root, self._named, output)
        with self._lock:
            if output.at not in self._kept and table.nbytes <= CACHED_BYTES_MAX:
                self._kept[output.at] = table
                self._bytes += table.nbytes
            while self._bytes > CACHED_BYTES_MAX:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.nbytes
        return table

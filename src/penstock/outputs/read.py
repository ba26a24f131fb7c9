# SPDX-License-Identifier: Apache-2.0
"""Is a slice's file still what was written, and what does it say?"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import DatasetDamaged, OutputFailed, UsageError
from penstock.model.dataset import SliceOutput
from penstock.outputs.disk import read_all, reason
from penstock.outputs.parquet import NoTable, decoded, disagreement, joined, type_in
from penstock.outputs.paths import PARQUET, RAW, Named, checksum_of, split_path
from penstock.outputs.root import OutputRoot

if TYPE_CHECKING:
    import pyarrow as pa

_LINKS = (errno.ELOOP, errno.EMLINK)  # what O_NOFOLLOW says of a link


def read_content(root: OutputRoot, named: Named, output: SliceOutput) -> bytes:
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
        raise _damaged(named, output, "its checksum is another")
    return data


def read_raw(root: OutputRoot, named: Named, output: SliceOutput) -> bytes:
    """The bytes of a raw slice."""
    if output.kind != RAW:
        raise UsageError(f"{named.of(output.at)} is a table, not bytes: use table() or rows().")
    return read_content(root, named, output)


def read_table(root: OutputRoot, named: Named, output: SliceOutput) -> pa.Table:
    """The table of a slice."""
    if output.kind != PARQUET:
        raise UsageError(
            f"{named.of(output.at)} is raw bytes, not a table: a function that needs it calls "
            "bytes(), others read its files, which files() and 'penstock dataset show' name."
        )
    try:
        return decoded(read_content(root, named, output))
    except NoTable as error:
        raise _damaged(named, output, f"it cannot be read as Parquet ({error})") from error


def join_tables(
    named: Named, outputs: Sequence[SliceOutput], tables: Sequence[pa.Table]
) -> pa.Table:
    """The tables of several slices as one, columns by name."""
    try:
        return joined(tables)
    except NoTable as error:
        found = disagreement(tables)
        if found is None:
            raise UsageError(f"Slices of {named.dataset} cannot be joined: {error}.") from error
        column, first, second = found
        raise UsageError(
            f"Column {column!r} is {type_in(tables[first], column)} in "
            f"{named.of(outputs[first].at)} and {type_in(tables[second], column)} in "
            f"{named.of(outputs[second].at)}: read them apart, or build one of them again."
        ) from error


def _read(root: OutputRoot, place: tuple[str, str, str], size_max: int) -> bytes | None:
    """What is in a file below the root; None if it is no plain file."""
    dataset, moment, part = place
    disk = root.disk
    with (
        root.entered() as top,
        disk.folder(top, dataset) as folder,
        disk.folder(folder, moment) as inner,
        disk.file(inner, part) as file,
    ):
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return read_all(file, size_max)


def _damaged(named: Named, output: SliceOutput, what: str, missing: bool = False) -> DatasetDamaged:
    return DatasetDamaged(
        f"The file {output.path} of {named.of(output.at)} is damaged: {what}. "
        f"Build it again with: {named.rebuilding(output.at)}",
        output.path,
        missing,
    )

# SPDX-License-Identifier: Apache-2.0
"""How does what a function returned become durable files?

First to a staging folder and synced, then renamed to its place, then the folders that gained an
entry are synced: nothing is ever at its place that would not survive a power cut. Who names it to
readers is the store; until then nobody sees it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import count, islice
from typing import TypeVar

import msgspec

from penstock import failpoints
from penstock.errors import OutputFailed, UsageError
from penstock.model.dataset import SliceOutput
from penstock.outputs.disk import Disk, reason
from penstock.outputs.parquet import NoTable, encoded, table_in
from penstock.outputs.paths import (
    PARQUET,
    RAW,
    STAGING,
    Named,
    at_of,
    attempt_mark,
    check_name,
    checksum_of,
    folder_name,
    part_name,
    part_stem,
    staged_name,
)
from penstock.outputs.root import OutputRoot
from penstock.outputs.rows import table_of_rows

NAMED_MAX = 5  # timestamps that a message names
OPEN_MAX = 64  # files at a time
SYNCS_APART_MAX = 4  # fewer are not worth threads
SYNCS_MAX = 8  # at a time
RENAMES_MAX = 20  # tries, if whoever sweeps removes the empty folder each time
ALLOWED = "a list of dicts, an Arrow table, a pandas or polars frame, or bytes"

T = TypeVar("T")


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a slice's file."""

    at: int
    kind: str
    rows: int | None
    data: memoryview


def encode_slices(
    value: object, ats: Sequence[int], named: Named, *, batch: bool
) -> Iterator[Encoded]:
    """What the function of a dataset returned, slice by slice.

    Args:
        value: what was returned; with `batch` a mapping of the asked moments to such values.
        ats: the asked moments.
        named: how the slices are called in errors.
        batch: was a mapping asked for?
    """
    parts = _parts(value, ats, named) if batch else {ats[0]: value}
    return (_encode(parts[at], at, named) for at in ats)


def write_slices(
    root: OutputRoot,
    named: Named,
    slices: Iterable[Encoded],
    attempt: str,
) -> tuple[SliceOutput, ...]:
    """Write slices of one dataset durably; all of them, or an error and none is left.

    Args:
        attempt: what no other attempt of any job is called by, such as its id and token.
    """
    check_name(named.dataset)
    job = _Writing(root, named, attempt_mark(attempt))
    with root.entered() as folder:
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


class _Writing:
    """One job's files, from staging to their places."""

    def __init__(self, root: OutputRoot, named: Named, mark: str) -> None:
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
            _side_by_side(disk.sync, files)
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

        _side_by_side(sync, [moment for moment, _ in self._placed])
        disk.sync_folder(folder)
        self._root.sync_entry(root, folder)
        failpoints.hit("dataset.dir_synced")


def _side_by_side(sync: Callable[[T], None], what: Sequence[T]) -> None:
    """Sync all. Each waits for the disk, and the system lets those who wait share one flush."""
    if len(what) < SYNCS_APART_MAX:
        for one in what:
            sync(one)
        return
    with ThreadPoolExecutor(min(len(what), SYNCS_MAX), "penstock-sync") as threads:
        for done in [threads.submit(sync, one) for one in what]:
            done.result()


def _parts(value: object, ats: Sequence[int], named: Named) -> dict[int, object]:
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
        parts[at_of(moment)] = part
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


def _few(ats: Sequence[int], named: Named) -> str:
    shown = ", ".join(named.of(at) for at in ats[:NAMED_MAX])
    more = len(ats) - NAMED_MAX
    return f"{shown} and {more:,} more" if more > 0 else shown


def _encode(value: object, at: int, named: Named) -> Encoded:
    if isinstance(value, bytes | bytearray | memoryview):
        data = memoryview(value)
        if not data.c_contiguous:
            raise UsageError(
                f"{named.of(at)} returned a view of memory that is not in one piece. Return "
                f"{ALLOWED}."
            )
        return Encoded(at=at, kind=RAW, rows=None, data=data.cast("B"))
    try:
        table = table_of_rows(value) if isinstance(value, list | tuple) else table_in(value)
        if table is not None:
            content, rows = encoded(table)
            return Encoded(at=at, kind=PARQUET, rows=rows, data=content)
    except NoTable as error:
        raise UsageError(
            f"{named.of(at)} cannot be written as a table: {error}. Return {ALLOWED}."
        ) from error
    kind = "nothing" if value is None else f"a value of type {type(value).__name__}"
    raise UsageError(
        f"{named.of(at)} returned {kind}. Return {ALLOWED}; an empty list is an empty table."
    )

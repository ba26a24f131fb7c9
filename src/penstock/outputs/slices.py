# SPDX-License-Identifier: Apache-2.0
"""What does a function get of a dataset that it needs?"""

from __future__ import annotations

import builtins
import threading
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from penstock.errors import UsageError
from penstock.model.dataset import SliceOutput
from penstock.outputs.paths import Named, at_of, moment_of
from penstock.outputs.read import join_tables, read_raw, read_table
from penstock.outputs.root import OutputRoot

if TYPE_CHECKING:
    import pyarrow as pa

CACHED_BYTES_MAX = 1 << 26  # of tables in memory, so that slices which overlap are read once


class SlicesGiven(msgspec.Struct, frozen=True, kw_only=True):
    """All that a `Slices` is made of; as JSON it crosses to another process."""

    named: Named
    root_path: str
    root_id: str
    outputs: tuple[SliceOutput, ...]  # in order of time
    needed_by: dict[int, tuple[int, ...]] = {}  # moment of the job → moments it needs; in order


class Slices:
    """Slices of a needed dataset, in order of time; their files are read when asked for.

    `len` counts them, and a loop gives them one by one, each a `Slices` of its own. Owns a small
    cache of tables, which it shares with what `of` and a loop give. Any thread may use it.
    """

    def __init__(self, given: SlicesGiven, root: OutputRoot | None = None) -> None:
        """Slices from plain data.

        Args:
            root: where they lie, if somebody knows it already.
        """
        self._given = given
        self._root = root or OutputRoot(given.root_path, given.root_id)
        self._tables = _Tables(self._root, given.named)
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
        return [moment_of(output.at).astimezone(zone) for output in self._outputs]

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
                f"bytes() is of one slice, and here are {len(self)} of {self.dataset}: "
                "take them one by one with a loop, or with of(at)."
            )
        return read_raw(self._root, self._given.named, self._outputs[0])

    def of(self, at: datetime) -> Slices:
        """What one timestamp of a batch needs."""
        if at.utcoffset() is None:
            raise UsageError("of(at) takes one of the given timestamps; this one has no zone.")
        needed = self._given.needed_by.get(at_of(at))
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


class _Tables:
    """Tables that were read, the newest up to a size."""

    def __init__(self, root: OutputRoot, named: Named) -> None:
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

# SPDX-License-Identifier: Apache-2.0
"""Sources of seeds: rows and frames in memory, files of CSV, JSON lines and Parquet.

A source knows its type and its count once it has been looked through, and reads any range of its
records. Of a text file it keeps the place of every 64th record, and nothing of its content.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import re
import threading
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import msgspec

from penstock.errors import UsageError
from penstock.outputs.parquet import arrow, to_table
from penstock.sentences import counted
from penstock.tables.value_types import (
    BOOL,
    FLOAT,
    INT,
    NULL,
    TEXT,
    NoType,
    ValueType,
    join,
    record_of,
    type_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

STRIDE = 64  # records of a text file between two places that are kept
CHUNK_BYTES = 1 << 20
ROW_GROUPS_KEPT = 2  # of a Parquet file, decoded

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_TRUTHS = {"true": True, "false": False}

csv.field_size_limit(2**31 - 1)  # a field may be a document


class SeedSource(Protocol):
    """Records in an order that does not change."""

    @property
    def count(self) -> int: ...

    @property
    def type(self) -> ValueType:
        """What all of its records are."""
        ...

    def read(self, first: int, count: int) -> list[Any]:
        """Some of them; there are as many."""
        ...

    def digest(self) -> bytes:
        """Of the whole content."""
        ...


def open_source(what: str, given: Any, fields: tuple[str, ...] | None) -> SeedSource:  # noqa: ANN401
    """The source that an author has named; `what` begins each refusal.

    Args:
        what: whose source it is.
        given: files, rows, a frame, a dataset, or a function that gives one of them.
        fields: of each record; None: all.
    """
    if hasattr(given, "files"):  # a dataset
        paths = [Path(path) for path in given.files()]
        return _FileSource([_ParquetFile(what, path, fields) for path in paths])
    if isinstance(given, str | Path):
        return _FileSource([_file(what, path, fields) for path in _matching(what, str(given))])
    table = to_table(given)
    if table is not None:
        return _FrameSource(what, table, fields)
    if callable(given):
        return open_source(what, given(), fields)
    records = list(given)
    if records and all(isinstance(one, Path) for one in records):
        return _FileSource([_file(what, path, fields) for path in records])
    return _RowSource(what, records, fields)


def _matching(what: str, name: str) -> list[Path]:
    if not glob.has_magic(name) or Path(name).exists():
        return [Path(name)]
    found = sorted(map(Path, glob.glob(name, recursive=True)))
    if not found:
        where = str(Path(name).absolute())
        raise UsageError(f"{what}: no file matches {where!r}; put one there, or correct source=.")
    return found


def _file(what: str, path: Path, fields: tuple[str, ...] | None) -> _SeedFile:
    if not path.is_file():
        raise UsageError(
            f"{what}: there is no file {str(path.absolute())!r}; put it there, or correct source=."
        )
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _ParquetFile(what, path, fields)
    where = f"{what}: {str(path)!r}"
    if suffix in (".csv", ".tsv"):
        delimiter = "\t" if suffix == ".tsv" else ","
        return _TextFile(what, path, fields, _Csv(where, path, delimiter))
    return _TextFile(what, path, fields, _JsonLines(where))


def _check_fields(what: str, fields: tuple[str, ...] | None, known: Sequence[str]) -> None:
    for field in fields or ():
        if field not in known:
            raise UsageError(
                f"{what}: its records have no field {field!r}; they have "
                f"{', '.join(map(repr, known)) or 'none'}."
            )


def _chosen(what: str, found: ValueType, fields: tuple[str, ...] | None) -> ValueType:
    """The type of a record of which only some fields are taken."""
    if fields is None:
        return found
    known = dict(found.fields)
    _check_fields(what, fields, list(known))
    return record_of({name: known[name] for name in fields})


def _record(value: Any, kind: ValueType) -> Any:  # noqa: ANN401
    """A record with all of its fields; what it lacks is None, as it will be when read again."""
    if kind.kind != "record":
        return value
    return {name: value.get(name) for name, _ in kind.fields}


class _RowSource:
    """Rows that a program has made."""

    def __init__(self, what: str, records: list[Any], fields: tuple[str, ...] | None) -> None:
        self._records = records
        found = NULL
        for number, record in enumerate(records, start=1):
            try:
                found = join(found, type_of(record))
            except NoType as error:
                raise UsageError(
                    f"{what}: record {number} holds {error}; records are plain data: texts, "
                    "numbers, dates, lists and mappings."
                ) from None
        self.type = _chosen(what, found, fields)
        self.count = len(records)

    def read(self, first: int, count: int) -> list[Any]:
        return [_record(one, self.type) for one in self._records[first : first + count]]

    def digest(self) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        for record in self._records:
            found.update(msgspec.json.encode(_record(record, self.type), order="deterministic"))
            found.update(b"\n")
        return found.digest()


class _FrameSource:
    """A frame in memory."""

    def __init__(self, what: str, table: pa.Table, fields: tuple[str, ...] | None) -> None:
        _check_fields(what, fields, table.column_names)
        self._table = (table if fields is None else table.select(list(fields))).combine_chunks()
        self.type = _arrow_record(self._table.schema)
        self.count: int = self._table.num_rows

    def read(self, first: int, count: int) -> list[Any]:
        found: list[Any] = self._table.slice(first, count).to_pylist()
        return found

    def digest(self) -> bytes:
        pa = arrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return hashlib.blake2b(sink.getvalue(), digest_size=16).digest()


def _arrow_record(schema: pa.Schema) -> ValueType:
    return record_of({field.name: ValueType("arrow", known=field.type) for field in schema})


class _SeedFile:
    """One file of records."""

    def __init__(self, what: str, path: Path, fields: tuple[str, ...] | None) -> None:
        self.what, self.path, self.fields = what, path, fields
        self._seen = self._state()

    @property
    @abstractmethod
    def count(self) -> int: ...

    @property
    @abstractmethod
    def type(self) -> ValueType: ...

    @abstractmethod
    def _read(self, first: int, count: int) -> list[Any]: ...

    def settle(self, kind: ValueType) -> None:
        """Take the type that all files of a source have together."""

    def read(self, first: int, count: int) -> list[Any]:
        self._refuse_change()
        return self._read(first, count)

    def digest(self) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                found.update(chunk)
        return found.digest()

    def _state(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise UsageError(
                f"{self.what}: {str(self.path)!r} cannot be read ({error.strerror}); put it back."
            ) from None
        return found.st_size, found.st_mtime_ns

    def _refuse_change(self) -> None:
        if self._state() != self._seen:
            raise UsageError(
                f"{self.what}: {str(self.path)!r} has changed while it was in use; start again, "
                "and rows whose records are other ones are made anew."
            )


class _ParquetFile(_SeedFile):
    """A Parquet file: of its row groups the last ones are kept decoded."""

    def __init__(self, what: str, path: Path, fields: tuple[str, ...] | None) -> None:
        super().__init__(what, path, fields)
        self._decoded: dict[int, pa.Table] = {}
        self._lock = threading.Lock()

    @cached_property
    def _layout(self) -> tuple[pa.Schema, list[int]]:
        pa = arrow()
        try:
            with pa.parquet.ParquetFile(self.path) as file:
                groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
                return file.schema_arrow, list(accumulate(groups, initial=0))
        except (pa.ArrowException, OSError) as error:
            raise UsageError(
                f"{self.what}: {str(self.path)!r} is no Parquet file that can be read "
                f"({type(error).__name__})."
            ) from None

    @property
    def count(self) -> int:
        return self._layout[1][-1]

    @cached_property
    def type(self) -> ValueType:
        return _chosen(self.what, _arrow_record(self._layout[0]), self.fields)

    def _read(self, first: int, count: int) -> list[Any]:
        starts, found = self._layout[1], []
        with self._lock:
            while count > 0:
                group = bisect_right(starts, first) - 1
                taken = min(count, starts[group + 1] - first)
                found += self._group(group).slice(first - starts[group], taken).to_pylist()
                first, count = first + taken, count - taken
        return found

    def _group(self, number: int) -> pa.Table:
        if number not in self._decoded:
            while len(self._decoded) >= ROW_GROUPS_KEPT:
                del self._decoded[next(iter(self._decoded))]
            with arrow().parquet.ParquetFile(self.path) as file:
                self._decoded[number] = file.read_row_group(number, columns=self.fields)
        return self._decoded[number]


class _Format(Protocol):
    """How records stand in a text file."""

    def records(self, file: BinaryIO, at: int) -> Iterator[tuple[int, Any]]:
        """Raw records from a place on, each with its own place."""
        ...

    def joined(self, records: Iterable[Any]) -> ValueType:
        """The one type of raw records."""
        ...

    def value(self, raw: Any, kind: ValueType) -> Any:  # noqa: ANN401
        """A record, once the type of all is known."""
        ...


class _TextFile(_SeedFile):
    """A text file, looked through once for the places of its records and their type."""

    def __init__(
        self, what: str, path: Path, fields: tuple[str, ...] | None, form: _Format
    ) -> None:
        super().__init__(what, path, fields)
        self.form = form
        self._settled: ValueType | None = None
        self._lock = threading.Lock()

    @cached_property
    def _found(self) -> tuple[array[int], int, ValueType]:
        places: array[int] = array("Q")
        count = 0

        def look() -> Iterator[Any]:
            nonlocal count
            with self.path.open("rb") as file:
                for at, raw in self.form.records(file, 0):
                    if count % STRIDE == 0:
                        places.append(at)
                    count += 1
                    yield raw

        found = self.form.joined(look())
        return places, count, found

    @property
    def count(self) -> int:
        with self._lock:
            return self._found[1]

    @cached_property
    def type(self) -> ValueType:
        with self._lock:
            return _chosen(self.what, self._found[2], self.fields)

    def settle(self, kind: ValueType) -> None:
        self._settled = kind

    def _read(self, first: int, count: int) -> list[Any]:
        kind = self._settled or self.type
        skipped = first % STRIDE
        with self.path.open("rb") as file:
            records = self.form.records(file, self._found[0][first // STRIDE])
            return [
                _record(self.form.value(raw, kind), kind)
                for _, raw in islice(records, skipped, skipped + count)
            ]


class _JsonLines:
    """A JSON document in each line."""

    def __init__(self, where: str) -> None:
        self._where = where

    def records(self, file: BinaryIO, at: int) -> Iterator[tuple[int, Any]]:
        file.seek(at)
        for number, line in enumerate(file, start=1):
            place, at = at, at + len(line)
            if line.strip():
                try:
                    yield place, msgspec.json.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    raise _refused(self._where, number, "this is no JSON") from None

    def joined(self, records: Iterable[Any]) -> ValueType:
        found = NULL
        for number, record in enumerate(records, start=1):
            try:
                found = join(found, type_of(record))
            except NoType as error:
                raise UsageError(f"{self._where}, record {number:,}: it holds {error}.") from None
        return found

    def value(self, raw: Any, kind: ValueType) -> Any:  # noqa: ANN401
        return raw


class _Csv:
    """Comma- or tab-separated values under a line of names.

    A field whose values are all whole numbers, numbers, or true and false is one of these; numbers
    with leading zeros are texts.
    """

    def __init__(self, where: str, path: Path, delimiter: str) -> None:
        self._where, self._path, self._delimiter = where, path, delimiter

    @cached_property
    def _names(self) -> tuple[list[str], int]:
        """The names of the fields, and where the records begin."""
        with self._path.open("rb") as file:
            lines = _Lines(file, 0)
            names = next(self._parsed(lines, 1), [])
        if names:
            names[0] = names[0].removeprefix("\ufeff")
        for name in names:
            if not name.strip() or names.count(name) > 1:
                problem = "has no name" if not name.strip() else "is there twice"
                told = f"the field {name!r} {problem}; the first line names fields"
                raise _refused(self._where, 1, told)
        return names, lines.at

    def _parsed(self, lines: _Lines, line: int) -> Iterator[list[str]]:
        reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        while True:
            try:
                row = next(reader, None)
            except (csv.Error, UnicodeDecodeError) as error:
                problem = "it is not UTF-8" if isinstance(error, ValueError) else str(error)
                raise _refused(self._where, line + lines.number - 1, problem) from None
            if row is None:
                return
            yield row

    def records(self, file: BinaryIO, at: int) -> Iterator[tuple[int, Any]]:
        names, begin = self._names
        lines = _Lines(file, max(at, begin))
        place = lines.at
        for row in self._parsed(lines, 2):
            if row and len(row) != len(names):
                raise _refused(
                    self._where,
                    lines.number + 1,
                    f"it has {counted(len(row), 'field')}, and the first line has {len(names)}",
                )
            if row:
                yield place, row
            place = lines.at

    def joined(self, records: Iterable[list[str]]) -> ValueType:
        names = self._names[0]
        kinds = [NULL] * len(names)
        for row in records:
            for index, text in enumerate(row):
                if kinds[index] is not TEXT and text:
                    kinds[index] = _text_type(kinds[index], text)
        settled = [TEXT if kind is NULL else kind for kind in kinds]
        return record_of(dict(zip(names, settled, strict=True)))

    def value(self, raw: list[str], kind: ValueType) -> dict[str, Any]:
        texts = dict(zip(self._names[0], raw, strict=True))
        return {
            name: _CONVERTERS[inner.kind](texts[name])
            for name, inner in kind.fields
            if name in texts
        }


def _refused(where: str, line: int, problem: str) -> UsageError:
    return UsageError(f"{where}, line {line:,}: {problem}.")


class _Lines:
    """The lines of a file as text, and the place of the next one."""

    def __init__(self, file: BinaryIO, at: int) -> None:
        self._file = file
        self.at = at
        self.number = 0
        file.seek(at)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline()
        if not line:
            raise StopIteration
        self.at += len(line)
        self.number += 1
        return line.decode()


def _text_type(known: ValueType, text: str) -> ValueType:
    """What a field is whose values were of a type, and now there is this text."""
    if _WHOLE.fullmatch(text):
        found = INT
    elif _NUMBER.fullmatch(text):
        found = FLOAT
    elif text.lower() in _TRUTHS:
        found = BOOL
    else:
        return TEXT
    both = join(known, found)
    return both if both in (INT, FLOAT, BOOL) else TEXT


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text) if text else None,
    "float": lambda text: float(text) if text else None,
    "bool": lambda text: _TRUTHS[text.lower()] if text else None,
    "text": lambda text: text,
}


class _FileSource:
    """Files one after the other."""

    def __init__(self, files: list[_SeedFile]) -> None:
        self._files = files

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((file.count for file in self._files), initial=0))

    @property
    def count(self) -> int:
        return self._starts[-1]

    @cached_property
    def type(self) -> ValueType:
        found = NULL
        for file in self._files:
            found = join(found, file.type)
        if all(isinstance(file, _TextFile) and type(file.form) is _Csv for file in self._files):
            found = record_of({name: TEXT if k.is_json else k for name, k in found.fields})
            for file in self._files:
                file.settle(found)
        return found

    def read(self, first: int, count: int) -> list[Any]:
        found: list[Any] = []
        kind = self.type
        while count > 0:
            number = bisect_right(self._starts, first) - 1
            taken = min(count, self._starts[number + 1] - first)
            records = self._files[number].read(first - self._starts[number], taken)
            found += [_record(one, kind) for one in records]
            first, count = first + taken, count - taken
        return found

    def digest(self) -> bytes:
        return b"".join(file.digest() for file in self._files)

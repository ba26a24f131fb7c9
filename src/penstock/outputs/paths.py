# SPDX-License-Identifier: Apache-2.0
"""Paths of slices below the output root, their file names and checksums, and file system calls.

`NAME/2024-01-05T210000Z/part-HASH.parquet`. A moment between two seconds has its microseconds
behind the Z, so that folders in order of their names are in order of time. The hash is of the
content and ends in the mark of the attempt: no two attempts write one file, and whoever sweeps
knows whose it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.model.dataset import DATASET_NAME, ROWS, DatasetSpec, moment_name, utc_datetime
from penstock.sentences import command

_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe does not block
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})  # the file system has no such

STAGING = ".staging"
ROOT_FILE = ".penstock-root"
OWNER_FILE = ".penstock-store"  # the store whose slices these are
PARQUET, RAW = "parquet", "raw"  # kinds
CELLS, DROPPED = "cells", "dropped"  # of files beside a part of a table
ENDINGS = {PARQUET: ".parquet", RAW: ".bin", CELLS: ".parquet", DROPPED: ".jsonl"}
CHECKSUM_BYTES = 16
CONTENT_DIGITS = 24  # of a part's name
MARK_DIGITS = 16

_PART = re.compile(
    rf"(?:part|{CELLS}|{DROPPED})-[0-9a-f]{{{CONTENT_DIGITS}}}([0-9a-f]{{{MARK_DIGITS}}})"
    r"\.(?:parquet|bin|jsonl)"
)
_STAGED = re.compile(
    rf"({DATASET_NAME.pattern})@[0-9a-f]{{{CONTENT_DIGITS}}}([0-9a-f]{{{MARK_DIGITS}}})"
)
_FOLDER = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}Z(?:\.[0-9]{6})?")


class Disk:
    """The file system. Names are single components, but for that of the root."""

    def open_root(self, path: str) -> int:
        return os.open(path, _OPEN_FOLDER)

    def open_folder(self, folder: int, name: str) -> int:
        return os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=folder)

    def open_file(self, folder: int, name: str) -> int:
        return os.open(name, _READ, dir_fd=folder)

    def create(self, folder: int, name: str) -> int:
        """A new file; FileExistsError if there is anything of that name."""
        return os.open(name, _CREATE, 0o666, dir_fd=folder)

    def write(self, file: int, data: memoryview) -> None:
        while data:
            data = data[os.write(file, data) :]

    def sync(self, file: int) -> None:
        os.fsync(file)

    def sync_folder(self, folder: int) -> None:
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def make_folder(self, folder: int, name: str) -> bool:
        """Make a folder in a folder; False if there is anything of that name."""
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            return False
        return True

    def rename(self, folder: int, name: str, into: int, new: str) -> None:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=into)

    def link(self, folder: int, name: str, new: str) -> None:
        """A second name of a file; FileExistsError if it is taken."""
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def unlink(self, folder: int, name: str) -> None:
        os.unlink(name, dir_fd=folder)

    def remove_folder(self, folder: int, name: str) -> None:
        os.rmdir(name, dir_fd=folder)

    @contextlib.contextmanager
    def folder(self, folder: int, name: str) -> Iterator[int]:
        """A folder in a folder, for as long as the block."""
        opened = self.open_folder(folder, name)
        try:
            yield opened
        finally:
            self.close(opened)

    @contextlib.contextmanager
    def file(self, folder: int, name: str) -> Iterator[int]:
        """A file in a folder, to be read."""
        opened = self.open_file(folder, name)
        try:
            yield opened
        finally:
            self.close(opened)


def read_all(file: int, size_max: int) -> bytes:
    """What a file has, up to a size."""
    parts, left = [], size_max
    while left > 0 and (part := os.read(file, min(left, 1 << 24))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def reason(error: OSError) -> str:
    """Why the system refused, in its words."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


class SliceNames(msgspec.Struct, frozen=True, kw_only=True):
    """How people call a dataset and its slices."""

    dataset: str
    tz: str = "UTC"
    daily: bool = False

    def of(self, at: int) -> str:
        """`prices@2024-01-05`."""
        return f"{self.dataset}@{moment_name(at, self)}"

    def rebuild_command(self, at: int) -> str:
        """The command that builds a slice anew."""
        if self.tz == ROWS:
            return command("table", "generate", self.dataset)
        start, end = moment_name(at, self), moment_name(at - at % 1_000_000 + 1_000_000, self)
        if self.daily:
            day = datetime.fromisoformat(start).date()
            end = (day + timedelta(days=1)).isoformat()
        return command("build", self.dataset, "--from", start, "--to", end, "--force")


def slice_names(spec: DatasetSpec) -> SliceNames:
    """How outputs call a dataset and its slices."""
    return SliceNames(dataset=spec.name, tz=spec.calendar.tz, daily=spec.calendar.daily)


def folder_name(at: int) -> str:
    """The folder of a moment; in order of time."""
    text = utc_datetime(at).replace(tzinfo=None).isoformat().replace(":", "")
    second, _, fraction = text.partition(".")
    return f"{second}Z.{fraction}" if fraction else f"{second}Z"


def is_folder_name(name: str) -> bool:
    """Whether this can be the folder of a moment."""
    return _FOLDER.fullmatch(name) is not None


def attempt_mark(attempt: str) -> str:
    """What the names of an attempt's files end in."""
    return blake2b(attempt.encode(), digest_size=MARK_DIGITS // 2).hexdigest()


def part_stem(checksum: str, at: int, mark: str) -> str:
    """What a slice's file and its staging file are called by."""
    told = blake2b(f"{checksum}:{at}".encode(), digest_size=CONTENT_DIGITS // 2)
    return told.hexdigest() + mark


def part_name(stem: str, kind: str) -> str:
    first = kind if kind in (CELLS, DROPPED) else "part"
    return f"{first}-{stem}{ENDINGS[kind]}"


def mark_of_part(name: str) -> str | None:
    """Whose file this is, by its name; None: not one that we write."""
    found = _PART.fullmatch(name)
    return found[1] if found else None


def staged_name(dataset: str, stem: str) -> str:
    return f"{dataset}@{stem}"


def mark_of_staged(name: str, dataset: str) -> str | None:
    """Whose staging file of this dataset; None: of another, or not one that we write."""
    found = _STAGED.fullmatch(name)
    return found[2] if found and found[1] == dataset else None


def split_path(path: str) -> tuple[str, str, str] | None:
    """Dataset, folder and file of a slice's path; None if no slice can lie there."""
    parts = path.split("/")
    if len(parts) != 3:
        return None
    dataset, folder, part = parts
    if DATASET_NAME.fullmatch(dataset) and _FOLDER.fullmatch(folder) and _PART.fullmatch(part):
        return dataset, folder, part
    return None


def checksum_of(data: memoryview | bytes) -> str:
    return blake2b(data, digest_size=CHECKSUM_BYTES).hexdigest()

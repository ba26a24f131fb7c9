# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of outputs: removes files that no manifest names.

These are files of attempts that died and of slices that were built anew. Only files that we write,
by their place and name, are ever touched, and no link is followed. Names take eight bytes each in
memory: two that share a fingerprint keep a file too long, and lose none.
"""

from __future__ import annotations

import contextlib
import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from hashlib import blake2b

import msgspec

from penstock.errors import OutputFailed
from penstock.model.dataset import check_dataset_name
from penstock.outputs.paths import (
    STAGING,
    Disk,
    folder_name,
    is_folder_name,
    mark_of_part,
    mark_of_staged,
    reason,
    staged_name,
)
from penstock.outputs.root import OutputRoot

_PROBE = "0" * 40  # the stem of the staging file that tells the time


class GarbageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

    files: int = 0
    bytes: int = 0
    folders: int = 0
    staged: int = 0  # files in the staging folder


def collect_garbage(
    root: OutputRoot,
    dataset: str,
    named: Callable[[], Iterable[str]],
    alive: Container[str] = (),
) -> GarbageReport:
    """Remove the files of a dataset that no manifest names; for whoever holds its lock.

    Args:
        named: gives the paths that manifests name, visible or staged. It is called after the
            sweep has noted the time, and what is younger than that is left alone: no file can be
            lost that is being written, or is named, meanwhile.
        alive: marks (`attempt_mark`) of attempts that may still end well; theirs is left alone.
    """
    check_dataset_name(dataset)
    try:
        with root.opened() as folder:
            return _GarbageCollection(root.disk, dataset, alive).run(folder, named)
    except OSError as error:
        raise OutputFailed(
            f"Unreferenced files of {dataset} below {root.path} could not be removed: "
            f"{reason(error)}.",
            error.errno,
        ) from error


def remove_attempt_files(
    root: OutputRoot, dataset: str, ats: Iterable[int], dead: Container[str]
) -> None:
    """Remove what attempts that are over left of some slices; what cannot be removed stays.

    Args:
        dead: marks (`attempt_mark`) of attempts that can name no file any more.
    """
    check_dataset_name(dataset)
    with contextlib.suppress(OSError), root.opened() as folder:
        with root.disk.folder(folder, STAGING) as staging:
            _remove_dead_files(root.disk, staging, lambda name: mark_of_staged(name, dataset), dead)
        with root.disk.folder(folder, dataset) as top:
            for at in ats:
                with contextlib.suppress(OSError), root.disk.folder(top, folder_name(at)) as inner:
                    _remove_dead_files(root.disk, inner, mark_of_part, dead)


def _remove_dead_files(
    disk: Disk, folder: int, mark_of: Callable[[str], str | None], dead: Container[str]
) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if mark_of(entry.name) in dead and entry.is_file(follow_symlinks=False):
                disk.unlink(folder, entry.name)


class _GarbageCollection:
    """One pass over the files of a dataset."""

    def __init__(self, disk: Disk, dataset: str, alive: Container[str]) -> None:
        self._disk = disk
        self._dataset = dataset
        self._alive = alive
        self._names: array[int] = array("Q")
        self._began_ns = 0
        self._files = self._bytes = self._folders = self._staged = 0

    def run(self, root: int, named: Callable[[], Iterable[str]]) -> GarbageReport:
        self._disk.make_folder(root, STAGING)
        with self._disk.folder(root, STAGING) as staging:
            self._began_ns = self._time_of(staging)
            self._names = array("Q", sorted(map(_fingerprint, named())))
            self._sweep_staging(staging)
        with contextlib.suppress(FileNotFoundError), self._disk.folder(root, self._dataset) as top:
            self._sweep_folders(top)
        return GarbageReport(
            files=self._files, bytes=self._bytes, folders=self._folders, staged=self._staged
        )

    def _time_of(self, staging: int) -> int:
        """Now, by the clock that stamps the files: it may be that of a server."""
        name = staged_name(self._dataset, _PROBE)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(staging, name)
        file = self._disk.create(staging, name)
        try:
            return os.fstat(file).st_mtime_ns
        finally:
            self._disk.close(file)
            self._disk.unlink(staging, name)

    def _sweep_staging(self, staging: int) -> None:
        with os.scandir(staging) as entries:
            for entry in entries:
                mark = mark_of_staged(entry.name, self._dataset)
                if mark is not None and mark not in self._alive and self._remove(staging, entry):
                    self._staged += 1

    def _sweep_folders(self, top: int) -> None:
        with os.scandir(top) as entries:
            for entry in entries:
                if is_folder_name(entry.name) and entry.is_dir(follow_symlinks=False):
                    self._sweep_moment(top, entry.name)

    def _sweep_moment(self, top: int, moment: str) -> None:
        try:
            inner = self._disk.open_folder(top, moment)
        except (FileNotFoundError, NotADirectoryError):  # exchanged a moment ago
            return
        left = 0
        try:
            old = os.fstat(inner).st_mtime_ns < self._began_ns
            with os.scandir(inner) as entries:
                for entry in entries:
                    if self._is_ours_and_unnamed(moment, entry.name) and self._remove(inner, entry):
                        self._files += 1
                    else:
                        left += 1
        finally:
            self._disk.close(inner)
        if old and not left:
            with contextlib.suppress(OSError):  # it is not empty any more: somebody writes
                self._disk.remove_folder(top, moment)
                self._folders += 1

    def _is_ours_and_unnamed(self, moment: str, name: str) -> bool:
        mark = mark_of_part(name)
        if mark is None or mark in self._alive:
            return False
        wanted = _fingerprint(f"{self._dataset}/{moment}/{name}")
        place = bisect_left(self._names, wanted)
        return place == len(self._names) or self._names[place] != wanted

    def _remove(self, folder: int, entry: os.DirEntry[str]) -> bool:
        """Remove a plain file that is older than this sweep."""
        try:
            facts = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(facts.st_mode):
                return False
            if max(facts.st_mtime_ns, facts.st_ctime_ns) >= self._began_ns:
                return False
            self._disk.unlink(folder, entry.name)
        except FileNotFoundError:
            return False
        self._bytes += facts.st_size
        return True


def _fingerprint(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "big")

# SPDX-License-Identifier: Apache-2.0
"""Is the place of a store fit for it: writable, private, local, with room?

Nothing is written or made to find out. The questions to the machine are a protocol, so that a
test can be a machine on which root is refused.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from penstock.model.doctor_finding import Finding, problem, well
from penstock.stores.sqlite.connection import WAL_BYTES_MAX
from penstock.stores.sqlite.location_check import beside, file_system_of, is_remote

SPACE_BYTES_MIN = WAL_BYTES_MAX  # the log alone may take as much
BESIDE = ("", "-wal", "-shm", "-turn")
_MIB = 1024 * 1024


class Probe(Protocol):
    """What can be asked of the machine."""

    def refusal(self, path: Path) -> str | None:
        """Why may this file or folder not be written? None: it may."""
        ...

    def free_bytes(self, folder: Path) -> int: ...

    def file_system(self, folder: Path) -> str: ...

    def user(self) -> int: ...


class SystemProbe:
    """Asks the kernel, which also knows of read-only mounts and immutable files."""

    def refusal(self, path: Path) -> str | None:
        # Not by opening it: to close it again would take locks away from SQLite.
        wanted = os.W_OK | (os.X_OK if path.is_dir() else 0)
        if os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids):
            return None
        return "the file system is read-only" if _read_only(path) else "permission denied"

    def free_bytes(self, folder: Path) -> int:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def file_system(self, folder: Path) -> str:
        return file_system_of(folder.resolve())

    def user(self) -> int:
        return os.geteuid()


def _read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def place_findings(path: Path, probe: Probe) -> Iterator[Finding]:
    """One finding per check of the folder and the files of a store."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        yield problem(
            "folder", f"{str(folder)!r} is a file, but the store needs a folder there; rename it."
        )
        return
    if path.is_dir():
        yield problem(
            "folder", f"{str(path)!r} is a folder; name a file for the store with --store."
        )
        return
    yield _writable(path, folder, probe)
    yield _local(path, folder, probe)
    yield _space(folder, probe)
    if path.exists():
        yield _private(path, probe)


def _writable(path: Path, folder: Path, probe: Probe) -> Finding:
    refusal = probe.refusal(folder)
    if refusal is not None:
        return problem(
            "folder",
            f"The folder {str(folder)!r} of the store cannot be written: {refusal}. Give this user "
            "write access to it (or mount it writable), or name another place with --store.",
        )
    for end in BESIDE:
        file = beside(path, end)
        refusal = probe.refusal(file) if file.exists() else None
        if refusal is not None:
            return problem(
                "folder",
                f"The file {str(file)!r} of the store cannot be written: {refusal}. Give this user "
                "write access to it, or name another place with --store.",
            )
    what = "" if folder == path.parent else f"; {str(path.parent)!r} is made in it when needed"
    return well("folder", f"{str(folder)!r} can be written{what}")


def _local(path: Path, folder: Path, probe: Probe) -> Finding:
    kind = probe.file_system(folder)
    if is_remote(kind):
        return problem(
            "file system",
            f"The store {str(path)!r} is on a file system that is not known to be local ({kind}), "
            "where SQLite can lose data; name a local place with --store.",
        )
    return well("file system", kind or "unknown")


def _space(folder: Path, probe: Probe) -> Finding:
    free = probe.free_bytes(folder)
    if free < SPACE_BYTES_MIN:
        return problem(
            "space",
            f"Only {free // _MIB:,} MiB are free in {str(folder)!r}, less than the log of a busy "
            f"store may take ({SPACE_BYTES_MIN // _MIB} MiB); free some.",
        )
    return well("space", f"{free // _MIB:,} MiB are free")


def _private(path: Path, probe: Probe) -> Finding:
    user = probe.user()
    for end in BESIDE:
        file = beside(path, end)
        if not file.exists():
            continue
        found = file.stat()
        if found.st_uid != user:
            return problem(
                "private",
                f"{str(file)!r} belongs to {_name(found.st_uid)}, not to {_name(user)}, who asks; "
                "run Penstock as its owner, or give it to this user with 'chown'.",
            )
        if found.st_mode & 0o077:
            return problem(
                "private",
                f"{str(file)!r} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); "
                f"close it with 'chmod 600 {file}'.",
            )
    mode = stat.S_IMODE(path.parent.stat().st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return problem(
            "private",
            f"Other users may replace files in {str(path.parent)!r} (mode {mode:04o}); close it "
            f"with 'chmod 700 {path.parent}'.",
        )
    return well("private", f"the files are {_name(user)}'s alone")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"

# SPDX-License-Identifier: Apache-2.0
"""The output root: the folder of all slices, its id, and the store that owns it.

A root carries a random id in `.penstock-root`. Jobs that write files belong to that id, so that a
worker with another folder, or with an unmounted one, cannot publish into the wrong place.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import OutputFailed, UsageError
from penstock.ids import IdSource
from penstock.outputs.paths import OWNER_FILE, ROOT_FILE, STAGING, Disk, read_all, reason

LINE_BYTES_MAX = 300  # of a file that has one line
DAMAGED = ""  # what such a file says that has another line

_ID_LINE = re.compile(rb"penstock-root 1 ([A-Za-z0-9-]{1,64})\n")
_OWNER_LINE = re.compile(rb"penstock-store 1 ([A-Za-z0-9-]{1,200})\n")


class OutputRoot:
    """A folder with an id. Owns neither descriptors nor locks: any thread or process may use it."""

    def __init__(self, path: str, root_id: str, disk: Disk | None = None) -> None:
        """A root that is known to be there; `open_root` and `find_root` look."""
        self.path = path
        self.id = root_id
        self.disk = disk or Disk()
        self._synced: set[tuple[int, int]] = set()  # folders whose entry we know to be durable

    def __repr__(self) -> str:
        return f"<OutputRoot {self.path} {self.id}>"

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Its descriptor, once its id has been compared."""
        with _opened(self.path, self.disk) as folder:
            found = _read_id(folder, self.path, self.disk)
            if found != self.id:
                what = "has none now" if found is None else f"is now {found}"
                raise OutputFailed(
                    f"The output root {self.path} is not the folder it was: its id was {self.id} "
                    f"and {what}. Mount it again, or start again."
                )
            yield folder

    def sync_entry(self, root: int, folder: int) -> None:
        """Make the name of a folder in the root durable; once in a process, whoever made it."""
        known = os.fstat(folder)
        key = (known.st_dev, known.st_ino)
        if key not in self._synced:
            self.disk.sync_folder(root)
            self._synced.add(key)


def open_root(path: str | Path, ids: IdSource, disk: Disk | None = None) -> OutputRoot:
    """The root in a folder; both are made if they are not there."""
    disk = disk or Disk()
    shown = _resolved(path)
    _make_folders(shown, disk)
    with _opened(shown, disk) as folder:
        found = _read_id(folder, shown, disk)
        if found is None:
            try:
                found = _make_id(folder, ids, shown, disk)
            except OSError as error:
                raise _refused(shown, error) from error
    return OutputRoot(shown, found, disk)


def find_root(path: str | Path, disk: Disk | None = None) -> OutputRoot | None:
    """The root in a folder; None if there is none. Makes nothing."""
    disk = disk or Disk()
    shown = _resolved(path)
    if not os.path.lexists(shown):
        return None
    with _opened(shown, disk) as folder:
        found = _read_id(folder, shown, disk)
    return None if found is None else OutputRoot(shown, found, disk)


def _resolved(path: str | Path) -> str:
    """The folder that is meant; the way to it may lead through links, what is below it may not."""
    try:
        return os.path.realpath(path)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"The output root {str(path)!r} is not a path ({error}). Name another folder."
        ) from error


def _make_folders(path: str, disk: Disk) -> None:
    """Make a folder and those above it; each is durable before the next."""
    missing = []
    above = path
    while not os.path.lexists(above):
        above, name = os.path.split(above)
        missing.append(name)
    for name in reversed(missing):
        with _opened(above, disk) as folder:
            try:
                disk.make_folder(folder, name)
                disk.sync_folder(folder)
            except OSError as error:
                raise _refused(path, error) from error
        above = os.path.join(above, name)


@contextlib.contextmanager
def _opened(path: str, disk: Disk) -> Iterator[int]:
    try:
        folder = disk.open_root(path)
    except NotADirectoryError as error:
        raise UsageError(f"The output root {path} is not a folder. Name another folder.") from error
    except OSError as error:
        raise _refused(path, error) from error
    try:
        yield folder
    finally:
        disk.close(folder)


def _read_id(folder: int, path: str, disk: Disk) -> str | None:
    try:
        found = _read_line(folder, ROOT_FILE, _ID_LINE, disk)
    except OSError as error:
        raise OutputFailed(f"{path}/{ROOT_FILE} cannot be read: {reason(error)}.") from error
    if found == DAMAGED:
        raise OutputFailed(
            f"{path}/{ROOT_FILE} is damaged: it has no id of an output root. Put it back from a "
            "backup; without one, remove it and build again, which builds everything anew."
        )
    return found


def _make_id(folder: int, ids: IdSource, path: str, disk: Disk) -> str:
    """Give a folder an id, or learn the one that somebody else has just given it."""
    root_id = ids.new_id("root")
    _link_line(folder, ROOT_FILE, root_id, f"penstock-root 1 {root_id}\n", disk)
    disk.make_folder(folder, STAGING)
    disk.sync_folder(folder)
    found = _read_id(folder, path, disk)
    if found is None:
        raise OutputFailed(f"{path}/{ROOT_FILE} vanished right after it was created. Try again.")
    return found


def _read_line(folder: int, name: str, line: re.Pattern[bytes], disk: Disk) -> str | None:
    """What the only line of a file says; None without a file, DAMAGED for another line."""
    try:
        with disk.file(folder, name) as file:
            found = line.fullmatch(read_all(file, LINE_BYTES_MAX))
    except FileNotFoundError:
        return None
    return DAMAGED if found is None else found[1].decode()


def _link_line(folder: int, name: str, owner: str, line: str, disk: Disk) -> None:
    """Make a file of one line durable under its name, unless somebody else was faster."""
    draft = f"{name}.{owner}"
    with contextlib.suppress(FileNotFoundError):  # left by one who died here
        disk.unlink(folder, draft)
    file = disk.create(folder, draft)
    try:
        try:
            disk.write(file, memoryview(line.encode()))
            disk.sync(file)
        finally:
            disk.close(file)
        with contextlib.suppress(FileExistsError):
            disk.link(folder, draft, name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(folder, draft)


def _refused(path: str, error: OSError) -> OutputFailed:
    return OutputFailed(
        f"The output root {path} cannot be used: {reason(error)}. "
        "Make it a folder that this user may write to, or name another.",
        error.errno,
    )


def claim_root(root: OutputRoot, owner: str) -> None:
    """Make a root the own one of a store, or see that it is.

    Raises:
        UsageError: it is another store's.
    """
    with root.opened() as folder:
        try:
            found = _owner(folder, root) or _make_owner(folder, root, owner)
        except OSError as error:
            raise _refused(root.path, error) from error
    if found != owner:
        raise UsageError(
            f"The output root {root.path} keeps the slices of another store ({found}; this one is "
            f"{owner}), and a build here would sweep them: set datasets.root to another folder, or "
            f"if that store is gone for good, remove {root.path}/{OWNER_FILE}."
        )


def _owner(folder: int, root: OutputRoot) -> str | None:
    found = _read_line(folder, OWNER_FILE, _OWNER_LINE, root.disk)
    if found == DAMAGED:
        raise OutputFailed(
            f"{root.path}/{OWNER_FILE} is damaged: it names no store. Put it back from a backup, "
            "or remove it if only this store is used with this root."
        )
    return found


def _make_owner(folder: int, root: OutputRoot, owner: str) -> str:
    """Write who owns it; or learn who was faster."""
    _link_line(folder, OWNER_FILE, owner, f"penstock-store 1 {owner}\n", root.disk)
    root.disk.sync_folder(folder)
    found = _owner(folder, root)
    if found is None:
        raise OutputFailed(
            f"{root.path}/{OWNER_FILE} vanished right after it was created. Try again."
        )
    return found

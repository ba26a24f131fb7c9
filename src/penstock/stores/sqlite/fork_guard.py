# SPDX-License-Identifier: Apache-2.0
"""Keeps a forked child from using what its parent had open.

SQLite keeps books about a process's locks in memory. A child inherits the books but not the
locks, so neither the parent's connections nor a new one to the same file would be safe in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from weakref import WeakKeyDictionary

import apsw

from penstock.errors import StoreForked
from penstock.stores.group_commit import forked

FileId = tuple[int, int]  # device and inode

_open: WeakKeyDictionary[apsw.Connection, FileId] = WeakKeyDictionary()
_lock_files: set[int] = set()  # descriptors of turns
_inherited: set[FileId] = set()  # files that an ancestor had open when this process was forked


def opened(connection: apsw.Connection, path: Path) -> None:
    """A connection of this process is open."""
    about = path.stat()
    _open[connection] = (about.st_dev, about.st_ino)


def closed(connection: apsw.Connection) -> None:
    _open.pop(connection, None)


def lock_file_opened(descriptor: int) -> None:
    _lock_files.add(descriptor)


def lock_file_closed(descriptor: int) -> None:
    _lock_files.discard(descriptor)


def refuse_inherited(path: Path) -> None:
    """Refuse a file that the parent had open when it forked this process."""
    if not _inherited:
        return
    with contextlib.suppress(FileNotFoundError):
        about = path.stat()
        if (about.st_dev, about.st_ino) in _inherited:
            raise forked_from(path)


def forked_from(path: Path) -> StoreForked:
    """Whoever had this store open is our parent."""
    return forked(f"the store {str(path)!r}")


def _in_child() -> None:
    """Keep the parent's connections for ever, unused: closing one would write to the file.

    A turn that the parent holds must end with the parent, so the child lets go of its copy.
    """
    for connection, file in list(_open.items()):
        _inherited.add(file)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()
    for descriptor in _lock_files:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _lock_files.clear()


os.register_at_fork(after_in_child=_in_child)

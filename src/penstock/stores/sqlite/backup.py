# SPDX-License-Identifier: Apache-2.0
"""How is a copy of a store made while workers use it?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import UsageError
from penstock.ids import IdSource
from penstock.stores.sqlite.copying import check_store, copy_store, make_durable, unfinished
from penstock.stores.sqlite.open import statements

#: What the files beside a store end in: its log, the index of it, its lock, what is being made.
COMPANIONS = ("-wal", "-shm", "-journal", "-turn", "-new")


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds."""

    jobs: int
    bytes: int


def back_up(store: Path, target: Path, ids: IdSource, *, force: bool = False) -> BackupReport:
    """Write a consistent, checked and durable copy; the name appears when all of it is there."""
    _refuse(store, target, force)
    queries = statements()
    part = target.with_name(f".{ids.new_id(target.name[:100])}.part")
    with unfinished(part):
        jobs = copy_store(store, part, queries)
        check_store(part, queries, full=True)
        make_durable(part)
        size = part.stat().st_size
        _give_name(part, target, force)
    make_durable(target.parent)
    return BackupReport(jobs, size)


def _refuse(store: Path, target: Path, force: bool) -> None:
    name = repr(str(target))
    refuse_unnameable(target)
    if not target.parent.is_dir():
        raise UsageError(
            f"There is no folder {str(target.parent)!r} to write the backup to; make it first."
        )
    if target.is_dir():
        raise UsageError(f"{name} is a folder; name a file to write the backup to.")
    if target.exists() and target.samefile(store):
        raise UsageError(f"{name} is the store itself; name another file to write the backup to.")
    refuse_companion(store, target)
    if os.path.lexists(target) and not force:
        raise _exists(target)


def refuse_unnameable(file: Path) -> None:
    """Refuse a name that SQLite cannot be told."""
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"The name {str(file)!r} is not UTF-8; name a file that is, in such a folder."
        ) from None


def refuse_companion(store: Path, file: Path) -> None:
    """Refuse a name that SQLite or we use beside the store, whether or not it is there now."""
    own = os.path.realpath(store)
    if os.path.realpath(file) in {own + end for end in COMPANIONS}:
        raise UsageError(
            f"{str(file)!r} belongs to the store {own!r} and is no backup; name another file."
        )


def _exists(target: Path) -> UsageError:
    return UsageError(
        f"{str(target)!r} exists already; name another file, or overwrite it with --force."
    )


def _give_name(part: Path, target: Path, force: bool) -> None:
    if force:
        os.replace(part, target)
        return
    try:
        os.link(part, target)  # unlike a rename, it never overwrites
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        os.replace(part, target)

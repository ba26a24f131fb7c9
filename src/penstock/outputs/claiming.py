# SPDX-License-Identifier: Apache-2.0
"""Whose slices does a root keep?

Files that the store does not name are swept. So a root is that of one store: a second one would
sweep what the first one names. Its name is in `.penstock-store`, and stays there until a person
removes the file.
"""

from __future__ import annotations

import contextlib
import re

from penstock.errors import OutputFailed, UsageError
from penstock.outputs.disk import Disk, read_all, reason
from penstock.outputs.paths import OWNER_FILE
from penstock.outputs.root import OutputRoot

BYTES_MAX = 300  # of the file
_LINE = re.compile(rb"penstock-store 1 ([A-Za-z0-9-]{1,200})\n")


def claim_root(root: OutputRoot, owner: str) -> None:
    """Make a root the own one of a store, or see that it is.

    Raises:
        UsageError: it is another store's.
    """
    disk = root.disk
    with root.entered() as folder:
        try:
            found = _owner(folder, root, disk) or _made(folder, root, owner, disk)
        except OSError as error:
            raise OutputFailed(
                f"The output root {root.path} cannot be used: {reason(error)}. "
                "Make it a folder that this user may write to, or name another.",
                error.errno,
            ) from error
    if found != owner:
        raise UsageError(
            f"The output root {root.path} keeps the slices of another store ({found}; this one is "
            f"{owner}), and a build here would sweep them: set datasets.root to another folder, or "
            f"if that store is gone for good, remove {root.path}/{OWNER_FILE}."
        )


def _owner(folder: int, root: OutputRoot, disk: Disk) -> str | None:
    try:
        with disk.file(folder, OWNER_FILE) as file:
            found = _LINE.fullmatch(read_all(file, BYTES_MAX))
    except FileNotFoundError:
        return None
    if found is None:
        raise OutputFailed(
            f"{root.path}/{OWNER_FILE} is damaged: it names no store. Put it back from a backup, "
            "or remove it if only this store is used with this root."
        )
    return found[1].decode()


def _made(folder: int, root: OutputRoot, owner: str, disk: Disk) -> str:
    """Write who owns it; or learn who was faster."""
    draft = f"{OWNER_FILE}.{owner}"
    with contextlib.suppress(FileNotFoundError):  # left by one who died here
        disk.unlink(folder, draft)
    file = disk.create(folder, draft)
    try:
        try:
            disk.write(file, memoryview(f"penstock-store 1 {owner}\n".encode()))
            disk.sync(file)
        finally:
            disk.close(file)
        with contextlib.suppress(FileExistsError):
            disk.link(folder, draft, OWNER_FILE)
    finally:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(folder, draft)
    disk.sync_folder(folder)
    found = _owner(folder, root, disk)
    if found is None:
        raise OutputFailed(f"{root.path}/{OWNER_FILE} has gone while it was made. Try again.")
    return found

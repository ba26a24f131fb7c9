# SPDX-License-Identifier: Apache-2.0
"""Trust in the files of a folder: refuses settings and code that another user may have written.

Code is run, and settings say where keys and prompts are sent. Whoever names an app in a folder, or
lets Python import from it, trusts the folder.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import AppNotFound


def is_trusted(folder: Path, named: object) -> bool:
    """Whether the app that was named lies in a folder, or Python imports from there anyway."""
    return is_app_of(folder, named) or os.path.realpath(folder) in map(os.path.realpath, sys.path)


def is_app_of(folder: Path, named: object) -> bool:
    """Whether a name means an app of this folder: a file below it, or a module."""
    if not isinstance(named, str):
        return False
    file = Path(os.path.abspath(folder / named))
    return not named.endswith(".py") or file.is_relative_to(os.path.abspath(folder))


def refuse_untrusted(folder: Path, names: Iterable[str]) -> list[str]:
    """Return those of the files that are there.

    Raises:
        AppNotFound: another user may have written one of them, or a module beside it.
    """
    found = [name for name in names if os.path.lexists(folder / name)]
    for path in (folder, *(folder / name for name in found)) if found else ():
        why = reason_for_distrust(path)
        if why is not None:
            raise AppNotFound(
                f"{str(path)!r} {why}, so settings and code of this folder are not used unasked. "
                "Run this in the folder of your app; or if you trust this one, name the app in it "
                "with --app or PENSTOCK_APP."
            )
    return found


def reason_for_distrust(path: Path) -> str | None:
    """How another user may have written a file, or put one into a folder; None: root alone."""
    try:
        for found in (path.lstat(), path.stat()):  # a link, and what it leads to
            if found.st_uid not in (0, os.geteuid()):
                return f"belongs to another user (number {found.st_uid})"
            if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
                return f"may be written by every user (mode {stat.S_IMODE(found.st_mode):04o})"
    except OSError:
        return None  # whoever needs it says that it is missing
    return None

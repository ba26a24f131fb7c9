# SPDX-License-Identifier: Apache-2.0
"""Opens, copies and restores the store that a URL names.

With `stores/doctor.py` the only importer of concrete stores. What a server needs is imported only
for those who use one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import ConfigError, StoreMissing, UsageError
from penstock.ids import SystemIds
from penstock.model.job import JobId
from penstock.model.views import BackupReport
from penstock.redaction.secrets import redacted_url
from penstock.stores.protocol import Store
from penstock.stores.sqlite.backup import back_up
from penstock.stores.sqlite.read import keys_with_prefix
from penstock.stores.sqlite.restore import Restore
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.url import SQLITE_PREFIX, is_server, refuse_unknown

PART_BYTES_MAX = 255  # file systems take no more
NAME_BYTES_MAX = 220  # a store that was replaced has a longer name, and so has its log
PATH_BYTES_MAX = 500  # SQLite takes 512, with what it adds
SHOWN_MAX = 60  # characters of a name that is too long


class OpenServer(Protocol):
    """How a store on a server is opened."""

    def __call__(
        self, url: str, *, durability: str, reading_will_do: bool, make: bool
    ) -> Store: ...


def store_file(url: str, folder: Path | None = None) -> Path:
    """The file of an embedded store; a relative one lies in `folder`."""
    refuse_unknown(url)
    path = Path(url.removeprefix(SQLITE_PREFIX))
    if not path.name or path.name == ":memory:":
        raise ConfigError(
            f"The store {url!r} names no file; write sqlite:///path. A store in memory would be "
            f"lost with its process; tests use penstock.testing.harness."
        )
    place = (folder or Path.cwd()) / path
    if _no_name(place):
        raise ConfigError(
            f"The store {url[:SHOWN_MAX]!r} has a name that no file can have: it is longer than "
            f"{NAME_BYTES_MAX} bytes, its whole path is longer than {PATH_BYTES_MAX}, or there is "
            "a NUL in it. Name another place with --store."
        )
    return place


def _no_name(path: Path) -> bool:
    """Whether neither the file system nor SQLite can use it, with what they add to its name."""
    longest = max(len(os.fsencode(part)) for part in path.parts)
    return (
        "\0" in str(path)
        or len(os.fsencode(path.name)) > NAME_BYTES_MAX
        or longest > PART_BYTES_MAX
        or len(os.fsencode(path)) > PATH_BYTES_MAX
    )


def open_store(
    url: str,
    *,
    app: str | None = None,
    tasks: Sequence[str] | None = None,
    durability: str = "full",
    folder: Path | None = None,
    reading_will_do: bool = False,
    make: bool = True,
) -> Store:
    """Open the store that a URL names; relative files lie in `folder`.

    Without `make` one that is not there yet is StoreMissing. With `reading_will_do` a store that
    may not be written can still be read. A server that cannot be reached is StoreUnavailable at
    once: whoever wants to wait for it asks again.

    An `app` signs on: the store is about its jobs. With `tasks` it takes over what has no owner.
    """
    store = _opened(url, durability, folder, reading_will_do, make)
    if app is not None:
        try:
            _sign_on(store, app, tasks)
        except BaseException:
            store.close()
            raise
    return store


def _sign_on(store: Store, app: str, tasks: Sequence[str] | None) -> None:
    moved = store.sign_on(app, tasks, JobId(0)).result()
    while moved.more:
        moved = store.sign_on(app, tasks, moved.last).result()


def _opened(
    url: str, durability: str, folder: Path | None, reading_will_do: bool, make: bool
) -> Store:
    if is_server(url):
        open_postgres: OpenServer = of_postgres("open", url).open_postgres
        return open_postgres(url, durability=durability, reading_will_do=reading_will_do, make=make)
    path = store_file(url, folder)
    if not make and not path.exists():
        raise StoreMissing(redacted_url(url))
    return SqliteStore.open(path, durability=durability, reading_will_do=reading_will_do)


def of_postgres(module: str, url: str) -> Any:  # noqa: ANN401 (a module)
    """What only a store on PostgreSQL needs; psycopg is imported for nobody else."""
    try:
        return import_module(f"penstock.stores.postgres.{module}")
    except ImportError as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"The store {redacted_url(url)} needs psycopg, which cannot be imported ({why}); "
            "install it with 'pip install psycopg[binary]'."
        ) from None


def keys_beginning(url: str, start: str, limit: int, *, folder: Path) -> list[str]:
    """Keys of jobs, by a look that leaves no trace."""
    if is_server(url):
        found: list[str] = of_postgres("open", url).keys_with_prefix(url, start, limit)
        return found
    return keys_with_prefix(store_file(url, folder), start, limit)


def copy_of_store(url: str, file: Path, *, force: bool, folder: Path) -> BackupReport:
    """Copy an embedded store to a file while it is in use."""
    path = store_file(url, folder)
    if not os.path.lexists(path):
        raise UsageError(f"There is no store {url} to back up; name another with --store.")
    return back_up(path, folder / file, SystemIds(), force=force)


def restore_of_store(url: str, file: Path, *, folder: Path) -> Restore:
    """The restore of an embedded store from a file, still to be run."""
    return Restore(folder / file, store_file(url, folder), SystemIds())

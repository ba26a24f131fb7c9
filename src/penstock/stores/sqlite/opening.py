# SPDX-License-Identifier: Apache-2.0
"""How does a file become a store of the present schema?"""

from __future__ import annotations

from pathlib import Path

import apsw

from penstock.errors import SchemaTooNew
from penstock.stores.migrate import read_migrations
from penstock.stores.sqlite.connection import mapped_errors
from penstock.stores.sqlite.turn import Turn

PACKAGE = "penstock.stores.sqlite"


def migrate(path: Path, connection: apsw.Connection, queries: dict[str, str]) -> None:
    """Apply the missing steps under the turn, all in one transaction; refuse a newer schema."""
    steps = read_migrations(PACKAGE)
    if schema_version(path, connection, queries) == len(steps):
        return
    turn = Turn(path)
    try:
        turn.take()
        with mapped_errors(path, "preparing the store"):
            connection.execute(queries["begin_write"]).fetchall()
            try:
                version = schema_version(path, connection, queries)
                if version > len(steps):
                    raise SchemaTooNew(
                        f"The store {str(path)!r} has schema {version}, made by a newer "
                        f"Penstock; this one knows {len(steps)}. Upgrade Penstock to use it."
                    )
                for step in steps[version:]:
                    connection.execute(step.script).fetchall()
                connection.pragma("user_version", len(steps))
                connection.execute(queries["commit"]).fetchall()
            except BaseException:
                connection.execute(queries["rollback"]).fetchall()
                raise
    finally:
        turn.give()
        turn.close()


def schema_version(path: Path, connection: apsw.Connection, queries: dict[str, str]) -> int:
    with mapped_errors(path, "opening the store"):
        return int(str(connection.execute(queries["schema_version"]).fetchall()[0][0]))

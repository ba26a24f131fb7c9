# SPDX-License-Identifier: Apache-2.0
"""How is a store on a server looked at for a moment, by somebody who does not open it?"""

from __future__ import annotations

import psycopg

from penstock.stores.postgres import errors
from penstock.stores.postgres.address import Address
from penstock.stores.postgres.connection import closed_quietly, connect
from penstock.stores.postgres.open import statements

LAST_CHARACTER = "\U0010ffff"


def keys_with_prefix(url: str, start: str, limit: int) -> list[str]:
    """The first keys that begin with a text, by the index of keys."""
    address = Address.of(url)
    queries = statements()
    connection = None
    try:
        connection = connect(address, queries).connection
        found = connection.execute(
            queries["keys_between"], (start, start + LAST_CHARACTER, limit)
        ).fetchall()
    except psycopg.Error as error:
        raise errors.as_store_error(error, address.shown, "looking at") from error
    finally:
        closed_quietly(connection)
    return [str(key) for (key,) in found]

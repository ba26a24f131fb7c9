# SPDX-License-Identifier: Apache-2.0
"""Which server does a URL mean, and how is that told without its password?"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import ConfigError

APPLICATION = "penstock"

#: What libpq says of a parameter; only if its name is plain, lest it is a piece of a password.
_UNKNOWN = re.compile(r'query parameter: "([a-z_]{1,40})"')

#: How long the way to the server may be silent. The URL may say otherwise.
_PATIENCE: dict[str, str] = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Address(NamedTuple):
    """Where a store is, for libpq and for people."""

    conninfo: dict[str, str]
    shown: str  # a URL without password

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a URL; ConfigError if libpq cannot."""
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        except psycopg.Error as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is not None:
                raise ConfigError(
                    "The URL of the PostgreSQL store has a parameter that libpq does not know: "
                    f"{unknown[1]!r}. Correct its name, or leave it out."
                ) from None
            raise ConfigError(
                "The URL of the PostgreSQL store cannot be read; write "
                "postgresql://user@host:5432/database, and special characters of a password "
                "percent-encoded."
            ) from None
        given.setdefault("application_name", APPLICATION)
        given["client_encoding"] = "utf8"  # a role may have another one
        return cls(_PATIENCE | given, _shown(given))


def _shown(given: dict[str, str]) -> str:
    user = f"{quote(given['user'], safe='')}@" if given.get("user") else ""
    host = given.get("host") or given.get("hostaddr") or ""
    database = quote(given.get("dbname") or "", safe="")
    if host.startswith("/"):
        return f"postgresql://{user}/{database}?host={quote(host)}"
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{host}{port}/{database}"

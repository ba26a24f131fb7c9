# SPDX-License-Identifier: Apache-2.0
"""Which kind of store a URL names, and where the store of an app is that names none."""

from __future__ import annotations

import difflib
from pathlib import Path

from penstock.errors import ConfigError
from penstock.redaction.secrets import redacted_url

SQLITE_PREFIX = "sqlite:///"
SERVER_PREFIXES = ("postgresql://", "postgres://")
_EXAMPLES = {
    "sqlite": f"{SQLITE_PREFIX}.penstock/app.db",
    "postgresql": "postgresql://user@host:5432/database",
    "postgres": "postgresql://user@host:5432/database",
}


def is_server(url: str) -> bool:
    """Whether the store is kept by a server, and not in a file."""
    return url.startswith(SERVER_PREFIXES)


def default_store_url(app_name: str) -> str:
    """Where an app keeps its jobs that says nothing about it."""
    return f"{SQLITE_PREFIX}.penstock/{app_name}.db"


def default_stores(folder: Path) -> list[str]:
    """The stores that lie where those of apps lie that name none."""
    return [
        f"{SQLITE_PREFIX}{path.relative_to(folder)}"
        for path in sorted((folder / ".penstock").glob("*.db"))
    ]


def refuse_unknown(url: str) -> None:
    """ConfigError for a URL that names no store we know; with the nearest that we do."""
    if url.startswith((SQLITE_PREFIX, *SERVER_PREFIXES)):
        return
    scheme = url.partition(":")[0].lower()
    near = difflib.get_close_matches(scheme, _EXAMPLES, 1)
    if near:
        hint = f"write it as {_EXAMPLES[near[0]]}"
    else:
        hint = f"write sqlite:///path, for example {_EXAMPLES['sqlite']}, or postgresql://…"
    raise ConfigError(f"The store {redacted_url(url)!r} is not known; {hint}.")

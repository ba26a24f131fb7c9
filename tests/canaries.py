# SPDX-License-Identifier: Apache-2.0
"""Has something that must not be written down been written down?

A canary is a word that stands nowhere else: part of a secret, or of what was asked and answered.
Secrets may be found nowhere. Content may be found where it is kept on purpose, and nowhere else.
Each is looked for as it is, in base64 and in hexadecimal digits.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Where secrets stand in real programs.
SECRETS = (
    *("authorization_key", "x_api_key", "query_key", "code_url_password", "config_url_password"),
    *("environment_token", "vault_key", "store_password", "cookie", "set_cookie", "proxy_password"),
    *("many_lines", "echoed_header"),
)
#: What was asked, answered, given and returned.
CONTENT = (
    *("prompt", "completion", "streamed", "tool_arguments", "embedding_input", "image", "payload"),
    *("result", "malformed", "local_variable", "quoted_prompt", "broken_stream", "skipped"),
)
#: The columns that keep content, and must.
KEPT = frozenset(
    {("jobs", "payload"), ("jobs", "result"), ("ended", "result"), ("answers", "body")}
)


def word(name: str) -> str:
    """The canary of this name: letters and digits, so that no quoting changes it."""
    return f"Kx{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def prose(name: str) -> str:
    """Some words of content, with the canary among them, on two lines."""
    return f'Please tell me all that you\nknow about the "{word(name)}" of the northern hills.'


def _forms(canary: str) -> Iterator[bytes]:
    data = canary.encode()
    yield data
    yield data.hex().encode()
    for shift in range(3):  # what stands before it moves it
        encoded = base64.b64encode(b"\0" * shift + data).rstrip(b"=")
        yield encoded[(shift * 8 + 5) // 6 : -1]


_BY_FORM = {form: name for name in (*SECRETS, *CONTENT) for form in _forms(word(name))}
_ANY = re.compile(b"|".join(map(re.escape, _BY_FORM)))


def found_in(data: str | bytes, names: Iterable[str] = (*SECRETS, *CONTENT)) -> set[str]:
    """The names of the canaries in it."""
    raw = data.encode(errors="replace") if isinstance(data, str) else data
    return {_BY_FORM[found] for found in _ANY.findall(raw)} & set(names)


@dataclass
class Sweep:
    """Looks in one place after the other, and remembers what it found and where it looked."""

    leaks: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def look(self, place: str, data: str | bytes, *, keeps_content: bool = False) -> None:
        """Look in a text or a file; content may stand where it is kept on purpose."""
        self.places.append(place)
        for name in sorted(found_in(data, SECRETS if keeps_content else (*SECRETS, *CONTENT))):
            self.leaks.append(f"{name} in {place}")

    def job_document(self, place: str, text: str) -> None:
        """Look at `show --json` or `list --json`: payload and result are the user's."""
        document = json.loads(text)
        for job in document.get("jobs", [document]):
            for column in ("payload", "result"):
                self.look(f"{place}: {column}", json.dumps(job.pop(column)), keeps_content=True)
        self.look(place, json.dumps(document))

    def sqlite(self, path: Path) -> None:
        """Look in every column of every table, and in the bytes of the file and its logs."""
        for file in sorted(path.parent.glob(f"{path.name}*")):
            self.look(f"the bytes of {file.name}", file.read_bytes(), keeps_content=True)
        with contextlib.closing(sqlite3.connect(path)) as store:
            tables = store.execute("select name from sqlite_master where type = 'table'")
            for (table,) in tables.fetchall():
                cursor = store.execute(f"select * from {table}")
                self.rows(table, [column[0] for column in cursor.description], cursor.fetchall())

    def rows(self, table: str, columns: list[str], rows: Iterable[tuple[object, ...]]) -> None:
        """Look in all rows of a table, column by column."""
        values: dict[str, list[bytes]] = {column: [] for column in columns}
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                values[column].append(value if isinstance(value, bytes) else str(value).encode())
        for column, found in values.items():
            kept = (table, column) in KEPT
            self.look(f"column {table}.{column}", b"\n".join(found), keeps_content=kept)

    def folder(self, folder: Path, *, but: Iterable[str] = ()) -> None:
        """Look in every file that a run may have left, but for what the user wrote."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in but and not path.name.endswith(".pyc"):
                self.look(f"the file {path.relative_to(folder)}", path.read_bytes())

# SPDX-License-Identifier: Apache-2.0
"""Runs named statements, reads migrations, and refuses a newer schema, whatever the database."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec

from penstock.errors import SchemaTooNew

_HEAD = re.compile(r"^-- ([a-z_0-9]+) --$", re.MULTILINE)


def read_queries(package: str) -> dict[str, str]:
    """The statements of a backend's queries.sql by name; their comments stay behind."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = _HEAD.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"a query of {package} has two definitions")
    return {name: _strip(body) for name, body in zip(names, bodies, strict=True)}


def _strip(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().rstrip(";")


_NAME = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step forward; its file never changes once released."""

    number: int
    name: str
    script: str


def read_migrations(package: str) -> list[Migration]:
    """All steps of a backend, in order, numbered from 1 without gaps."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        if match := _NAME.match(entry.name):
            script = entry.read_text(encoding="utf-8")
            found.append(Migration(int(match.group(1)), entry.name, script))
    found.sort(key=lambda step: step.number)
    if [step.number for step in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered 1, 2, 3 …")
    return found


Row = tuple[Any, ...]

_encode = msgspec.json.Encoder().encode


def as_json(value: object) -> str:
    """A batch, as one parameter."""
    return _encode(value).decode()


class Statements(ABC):
    """Runs statements by name on one connection."""

    @abstractmethod
    def rows(self, query: str, *parameters: object) -> list[Row]: ...

    def array(self, query: str, *parameters: object) -> list[Any]:
        """The rows of a query that may answer with many; single columns without their tuple."""
        found = self.rows(query, *parameters)
        if found and len(found[0]) == 1:
            return [value for (value,) in found]
        return found

    def row(self, query: str, *parameters: object) -> Row | None:
        found = self.rows(query, *parameters)
        return found[0] if found else None

    def value(self, query: str, *parameters: object) -> Any:  # noqa: ANN401 (a column)
        return self.rows(query, *parameters)[0][0]

    def first(self, query: str, *parameters: object) -> Any:  # noqa: ANN401 (a column)
        """The first column of the first row; None without one."""
        found = self.rows(query, *parameters)
        return found[0][0] if found else None


def newer_schema(where: str, found: int, known: int) -> SchemaTooNew:
    """Another process has migrated the store under us: we do not know what it means now."""
    whose = "a newer" if found > known else "another"  # an older backup may have been restored
    return SchemaTooNew(
        f"The store {where} was brought to schema {found} by {whose} version of Penstock; this "
        f"process knows {known} and writes nothing more. Start it again with that version."
    )

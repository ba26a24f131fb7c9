# SPDX-License-Identifier: Apache-2.0
"""How are named statements run, whatever the database?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

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

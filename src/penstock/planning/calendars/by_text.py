# SPDX-License-Identifier: Apache-2.0
"""When are two calendars the same?"""

from __future__ import annotations


class ByText:
    """Calendars of one text are one calendar."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByText) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<{self.text}>"

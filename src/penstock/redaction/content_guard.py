# SPDX-License-Identifier: Apache-2.0
"""What has an attempt asked, and what was it told?

Kept while it runs, the last of it and the beginning of each, for one reason: what the text of its
error quotes of it must not be written down.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.redaction.stored_text import texts_of

BODIES_MAX = 8  # requests and replies, the last ones
BODY_BYTES_MAX = 32 * 1024  # of each, its beginning


class Heard:
    """Owns copies of what went to providers and came from them. Belongs to one loop."""

    __slots__ = ("_bodies",)

    def __init__(self) -> None:
        self._bodies: list[HeardBody] = []

    def __repr__(self) -> str:
        return f"<Heard: {len(self._bodies)} bodies>"

    def body(self, start: bytes | None = None) -> HeardBody:
        """One more request or reply; what is known of it, and what comes later."""
        body = HeardBody()
        if start:
            body.add(start)
        self._bodies.append(body)
        del self._bodies[:-BODIES_MAX]
        return body

    def texts(self) -> Iterator[str]:
        """All that was said, as people read it."""
        for body in self._bodies:
            yield from body.texts()


class HeardBody:
    """The beginning of one body."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def __repr__(self) -> str:
        return f"<HeardBody of {len(self._data)} bytes>"

    def add(self, piece: bytes) -> None:
        if len(self._data) < BODY_BYTES_MAX:
            self._data += piece[: BODY_BYTES_MAX - len(self._data)]

    def texts(self) -> list[str]:
        return texts_of(self._data.decode(errors="replace"))

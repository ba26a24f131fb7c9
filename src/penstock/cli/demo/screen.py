# SPDX-License-Identifier: Apache-2.0
"""How is the story told: on a terminal with a line that moves, elsewhere line by line?"""

from __future__ import annotations

import os
import shutil
import sys

from penstock.clock import Clock
from penstock.terminal_text import write

PLAIN_SECONDS = 2.0  # between two lines about the same thing
CLEAR = "\r\x1b[2K"
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


class ReaderLeft(Exception):
    """Nobody reads the story any more."""


class Screen:
    """Owns the last line of the story."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_bold = self._is_live and "NO_COLOR" not in os.environ
        self._drawn = ""
        self._next_at = 0.0

    def act(self, title: str) -> None:
        """A new part begins."""
        self.line()
        self.line(f"{BOLD}{title}{PLAIN}" if self._is_bold else title)

    def line(self, text: str = "") -> None:
        """Say something that stays, under what was drawn last."""
        end = "\n" if self._drawn else ""
        self._drawn = ""
        self._write(f"{end}{text}\n")

    def status(self, text: str, *, moved: bool) -> None:
        """Say how it goes: in place, or as a line now and then and whenever something moved."""
        if self._is_live:
            text = text[: shutil.get_terminal_size().columns - 1]
            if text != self._drawn:
                self._drawn = text
                self._write(f"{CLEAR}{text}")
        elif moved or self._clock.monotonic() >= self._next_at:
            self._next_at = self._clock.monotonic() + PLAIN_SECONDS
            self.line(text)

    def close(self) -> None:
        """Leave the cursor where the shell expects it."""
        if self._drawn:
            self._drawn = ""
            write(CLEAR)

    def _write(self, text: str) -> None:
        if not write(text):
            raise ReaderLeft


def bar(part: int, whole: int) -> str:
    """A limit, drawn as wide as it is."""
    encoding = (sys.stdout.encoding or "").lower()
    full, empty = ("█", "░") if encoding.startswith("utf") else ("#", ".")
    part = min(part, whole)
    return full * part + empty * (whole - part)

# SPDX-License-Identifier: Apache-2.0
"""How wide is a text on a terminal, and how is it cut to fit?"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

ELLIPSIS = "…"


class Style(StrEnum):
    """What a piece of text is; the value is what a terminal is told to show it so."""

    PLAIN = ""
    HEAD = "1"
    DIM = "2"
    GOOD = "32"
    BAD = "31"
    BUSY = "33"
    NOTE = "36"


class Piece(NamedTuple):
    """Some text of one line, in one style; it has no control characters."""

    text: str
    style: Style = Style.PLAIN


Line = Sequence[Piece]


def width_of(text: str) -> int:
    """The columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """As much of a text as fits; what is left out is marked."""
    if width_of(text) <= columns:
        return text
    kept, used = "", 0
    for character in text:
        used += _width(character)
        if used > columns - 1:
            break
        kept += character
    return f"{kept}{ELLIPSIS}" if columns > 0 else ""


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """A text cut or filled to a number of columns; `right` puts it there."""
    text = cut(text, columns)
    fill = " " * (columns - width_of(text))
    return fill + text if right else text + fill


def cut_line(line: Line, columns: int) -> list[Piece]:
    """As much of a line as fits."""
    kept: list[Piece] = []
    for piece in line:
        room = columns - sum(width_of(one.text) for one in kept)
        if width_of(piece.text) > room:
            shown = cut(piece.text, room)
            return [*kept, Piece(shown, piece.style)] if shown else kept
        kept.append(piece)
    return kept


def fitting(parts: Iterable[Piece], columns: int, gap: str) -> list[Piece]:
    """Those parts that fit into one line, in their order; the first is cut if it must be."""
    line: list[Piece] = []
    used = 0
    for part in parts:
        if not line:
            line.append(Piece(cut(part.text, columns), part.style))
            used = width_of(line[0].text)
        elif used + len(gap) + width_of(part.text) <= columns:
            line += [Piece(gap, Style.DIM), part]
            used += len(gap) + width_of(part.text)
    return line


def wrapped(parts: Iterable[Piece], columns: int, gap: str) -> list[list[Piece]]:
    """Parts in as many lines as they need; none is broken, one that is too wide is cut."""
    lines: list[list[Piece]] = []
    used = columns
    for part in parts:
        wide = width_of(part.text)
        if lines and used + len(gap) + wide <= columns:
            lines[-1] += [Piece(gap, Style.DIM), part]
            used += len(gap) + wide
        else:
            lines.append([Piece(cut(part.text, columns), part.style)])
            used = wide
    return lines


def coloured(line: Line) -> str:
    """The line with the orders that give it its colours."""
    return "".join(f"\x1b[{one.style}m{one.text}\x1b[0m" if one.style else one.text for one in line)

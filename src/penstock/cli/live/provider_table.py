# SPDX-License-Identifier: Apache-2.0
"""How do the providers of a run look in as many columns as there are?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.cli.live.text_width import Piece, Style, padded, width_of
from penstock.model.provider import ANY
from penstock.observe.live import ProviderLine
from penstock.observe.live_reasons import Binding
from penstock.terminal_text import dollars, escaped

NAME_WIDTH_MAX = 28
NAME_WIDTH_MIN = 8
GAP = "  "


class Column(NamedTuple):
    """One fact of a provider."""

    head: str
    text: Callable[[ProviderLine], str]
    style: Callable[[ProviderLine], Style] = lambda line: Style.PLAIN
    right: bool = True


def _is_bad(count: int) -> Style:
    return Style.BAD if count else Style.PLAIN


def _of_cap(used: int, cap: float | None) -> str:
    if cap is None:
        return short_number(used) if used else "–"
    return f"{short_number(used)}/{short_number(cap)}"


def _binding_style(line: ProviderLine) -> Style:
    if line.binding is Binding.NOTHING:
        return Style.DIM
    return Style.BAD if line.binding is Binding.DOWN else Style.BUSY


def _name(line: ProviderLine) -> str:
    return escaped(line.name.removesuffix(f"/{ANY}"))


LIMIT = Column("limit", lambda line: f"{line.live.limit:,} of {line.live.limit_max:,}")
BINDS = Column("binds now", lambda line: binding_words(line), _binding_style, right=False)
IN_FLIGHT = Column("in flight", lambda line: f"{line.live.in_flight:,}")
REFUSED = Column(
    "429s", lambda line: f"{line.live.refused:,}", lambda line: _is_bad(line.live.refused)
)
WAITING = Column("waiting", lambda line: f"{line.live.waiting:,}")
SPENT = Column("spent", lambda line: "–" if not line.spent_micros else dollars(line.spent_micros))
RPM = Column("rpm", lambda line: _of_cap(line.live.requests_last_minute, line.live.rpm))
FAILED = Column(
    "failed", lambda line: f"{line.live.failed:,}", lambda line: _is_bad(line.live.failed)
)
TPM = Column("tpm", lambda line: _of_cap(line.live.tokens_last_minute, line.live.tpm))

#: From left to right.
ORDER = (LIMIT, IN_FLIGHT, WAITING, REFUSED, FAILED, RPM, TPM, SPENT, BINDS)
#: Those that come first are left out last.
WANTED = (LIMIT, BINDS, IN_FLIGHT, REFUSED, WAITING, SPENT, RPM, FAILED, TPM)


def provider_table(lines: Sequence[ProviderLine], columns: int) -> list[list[Piece]]:
    """A head and a line for each; facts that do not fit are left out, least wanted first."""
    told = [column for column in WANTED if _is_told(column, lines)]
    widths = {
        column.head: max(width_of(text) for text in (column.head, *map(column.text, lines)))
        for column in told
    }
    longest = max([width_of("provider"), *(width_of(_name(line)) for line in lines)])
    name_width = min(longest, NAME_WIDTH_MAX)
    room = columns - min(name_width, max(NAME_WIDTH_MIN, columns // 3))
    chosen = []
    for column in told:
        if widths[column.head] + len(GAP) <= room:
            chosen.append(column.head)
            room -= widths[column.head] + len(GAP)
    shown = [column for column in ORDER if column.head in chosen]
    taken = sum(widths[column.head] + len(GAP) for column in shown)
    name_width = min(name_width, max(columns - taken, 1))
    head = [Piece(padded("provider", name_width), Style.DIM)]
    for column in shown:
        text = padded(column.head, widths[column.head], right=column.right)
        head.append(Piece(GAP + text, Style.DIM))
    return [head, *(_row(line, shown, widths, name_width) for line in lines)]


def _row(
    line: ProviderLine, shown: Sequence[Column], widths: dict[str, int], name_width: int
) -> list[Piece]:
    name = Piece(padded(_name(line), name_width), Style.BAD if line.down else Style.HEAD)
    return [
        name,
        *(
            Piece(
                GAP + padded(column.text(line), widths[column.head], right=column.right),
                column.style(line),
            )
            for column in shown
        ),
    ]


def _is_told(column: Column, lines: Sequence[ProviderLine]) -> bool:
    """Is there anything to say in a column?"""
    if column is SPENT:
        return any(line.spent_micros is not None for line in lines)
    if column is TPM:
        return any(line.live.tokens_last_minute or line.live.tpm is not None for line in lines)
    return True


def binding_words(line: ProviderLine) -> str:
    """Which limit binds, and for how long if that is known."""
    if line.binding in (Binding.COOLDOWN, Binding.DOWN):
        rest = f"{max(line.live.cooldown_seconds, 1):,.0f} s"
        return f"cool-down {rest}" if line.binding is Binding.COOLDOWN else f"down, tried in {rest}"
    return line.binding.value


def short_number(number: float) -> str:
    """9,999, 12k, 3.4M."""
    if number < 10_000:
        return f"{number:,.0f}"
    if number < 1_000_000:
        return f"{number / 1_000:.0f}k"
    return f"{number / 1_000_000:.1f}M"

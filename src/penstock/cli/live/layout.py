# SPDX-License-Identifier: Apache-2.0
"""Lays out the live view of a run for a terminal of a given size.

Pure: values in, lines out. What matters most gets its lines first; the log gets the rest.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from penstock.cli.render.throughput import Throughput
from penstock.model.provider import ANY
from penstock.model.spending import Balance
from penstock.observe.live import ProviderLine, RunSnapshot, Units
from penstock.observe.providers import Binding
from penstock.sentences import counted
from penstock.stores.protocol import DELAYED_IN_STATS
from penstock.supervisor.display import Course
from penstock.supervisor.protocol import Checking
from penstock.terminal_text import escaped, format_dollars, format_duration, format_spending

ELLIPSIS = "…"


class Style(StrEnum):
    """The style of a piece of text; the value is its SGR code."""

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
    """The line with its SGR escape sequences."""
    return "".join(f"\x1b[{one.style}m{one.text}\x1b[0m" if one.style else one.text for one in line)


NAME_WIDTH_MAX = 28
NAME_WIDTH_MIN = 8
COLUMN_GAP = "  "


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
    return Style.BAD if line.binding in (Binding.DOWN, Binding.ACCOUNT) else Style.BUSY


def _name(line: ProviderLine) -> str:
    return escaped(line.name.removesuffix(f"/{ANY}"))


LIMIT = Column("limit", lambda line: f"{line.live.limit:,} of {line.live.limit_max:,}")
BINDS = Column("binds now", lambda line: format_binding(line), _binding_style, right=False)
IN_FLIGHT = Column("in flight", lambda line: f"{line.live.in_flight:,}")
REFUSED = Column(
    "429s", lambda line: f"{line.live.refused:,}", lambda line: _is_bad(line.live.refused)
)
WAITING = Column("waiting", lambda line: f"{line.live.waiting:,}")
SPENT = Column(
    "spent", lambda line: "–" if not line.spent_micros else format_dollars(line.spent_micros)
)
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
        if widths[column.head] + len(COLUMN_GAP) <= room:
            chosen.append(column.head)
            room -= widths[column.head] + len(COLUMN_GAP)
    shown = [column for column in ORDER if column.head in chosen]
    taken = sum(widths[column.head] + len(COLUMN_GAP) for column in shown)
    name_width = min(name_width, max(columns - taken, 1))
    head = [Piece(padded("provider", name_width), Style.DIM)]
    for column in shown:
        text = padded(column.head, widths[column.head], right=column.right)
        head.append(Piece(COLUMN_GAP + text, Style.DIM))
    return [head, *(_row(line, shown, widths, name_width) for line in lines)]


def _row(
    line: ProviderLine, shown: Sequence[Column], widths: dict[str, int], name_width: int
) -> list[Piece]:
    name = Piece(padded(_name(line), name_width), Style.BAD if line.down else Style.HEAD)
    return [
        name,
        *(
            Piece(
                COLUMN_GAP + padded(column.text(line), widths[column.head], right=column.right),
                column.style(line),
            )
            for column in shown
        ),
    ]


def _is_told(column: Column, lines: Sequence[ProviderLine]) -> bool:
    """Whether a column has anything to show."""
    if column is SPENT:
        return any(line.spent_micros is not None for line in lines)
    if column is TPM:
        return any(line.live.tokens_last_minute or line.live.tpm is not None for line in lines)
    return True


def format_binding(line: ProviderLine) -> str:
    """The limit that binds, and for how long if that is known."""
    if line.binding in (Binding.COOLDOWN, Binding.DOWN):
        rest = f"{max(line.live.cooldown_seconds, 1):,.0f} s"
        return (
            f"cool-down {rest}" if line.binding is Binding.COOLDOWN else f"down, probed in {rest}"
        )
    return line.binding.value


def short_number(number: float) -> str:
    """9,999, 12k, 3.4M."""
    if number < 10_000:
        return f"{number:,.0f}"
    if number < 1_000_000:
        return f"{number / 1_000:.0f}k"
    return f"{number / 1_000_000:.1f}M"


BAR_COLUMNS = 30
BAR_FROM_COLUMNS = 60  # narrower terminals get no bar
SHORT_BELOW_COLUMNS = 40
BAR_STEPS = " ▏▎▍▌▋▊▉█"
PIDS_SHOWN = 4
GAP = " · "

_LOG_TIME = re.compile(r"^\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d)\.\d+Z ")
_BAD = re.compile(r"^(\d\d:\d\d:\d\d )?(WARNING|ERROR|CRITICAL) ")

KEYS_HELP = (
    "p  pause: no further jobs start, running ones continue; p again resumes",
    "d  drain: end when nothing is left",
    "q  stop, as Ctrl-C does; once more, a second later: at once",
    "?  hide this",
    "Keys are never needed: see the commands queue pause, queue resume, why and providers.",
)


@dataclass(frozen=True, slots=True)
class ScreenView:
    """Everything that a screen shows."""

    snapshot: RunSnapshot
    pace: Throughput
    course: Course
    store: str  # its URL, without secrets
    log: Sequence[str] = ()  # the last lines, oldest first
    keys: bool = True  # can a person type?
    help: bool = False
    checking: Checking | None = None  # preflights run: nothing else does


class Part(Enum):
    """A part of the screen, from top to bottom."""

    HEAD = auto()
    STATES = auto()
    PACE = auto()
    UNITS = auto()
    PROVIDERS = auto()
    REASONS = auto()
    MONEY = auto()
    HELP = auto()
    LOG = auto()
    FOOT = auto()


#: Who gets lines, in this order, while there are any; the number is how many it then has.
GRANTS = (
    (Part.HEAD, 1),
    (Part.STATES, 1),
    (Part.PACE, 1),
    (Part.UNITS, 1),
    (Part.PROVIDERS, 1),
    (Part.REASONS, 1),
    (Part.MONEY, 1),
    (Part.FOOT, 1),
    (Part.HELP, 5),
    (Part.PROVIDERS, 2),
    (Part.LOG, 2),
    (Part.STATES, 2),
    (Part.PROVIDERS, 5),
    (Part.REASONS, 3),
    (Part.STATES, 4),
    (Part.LOG, 4),
    (Part.PROVIDERS, 12),
    (Part.REASONS, 8),
    (Part.LOG, 8),
    (Part.PROVIDERS, 60),
    (Part.REASONS, 20),
)

#: These have an empty line above them, while there are any.
SET_APART = (Part.PROVIDERS, Part.REASONS, Part.HELP, Part.LOG)


def compose(view: ScreenView, columns: int, rows: int) -> list[list[Piece]]:
    """The lines of the screen; none is wider than it, and there are no more than it has."""
    table = provider_table(view.snapshot.providers, columns) if view.snapshot.providers else []
    whole: dict[Part, list[list[Piece]]] = {
        Part.HEAD: [_head(view, columns)],
        Part.STATES: wrapped(_states(view), columns, "   "),
        Part.PACE: [_pace(view, columns)],
        Part.UNITS: _special(view.snapshot, columns),
        Part.PROVIDERS: table,
        Part.REASONS: _reasons(view, columns),
        Part.MONEY: [] if view.snapshot.money is None else [_money(view.snapshot.money, columns)],
        Part.HELP: [[Piece(text)] for text in KEYS_HELP] if view.help else [],
        Part.LOG: _log(view, columns, rows),
        Part.FOOT: [_foot(columns)] if view.keys else [],
    }
    granted = _granted({part: len(lines) for part, lines in whole.items()}, rows)
    lines: list[list[Piece]] = []
    spare = rows - sum(granted.values())
    for part in Part:
        shown = _shown(part, whole[part], granted[part], columns)
        if part in SET_APART and shown and spare > 0:
            lines.append([])
            spare -= 1
        if part is Part.FOOT:
            lines += [[]] * spare
        lines += shown
    return [cut_line(line, columns) for line in lines[:rows]]


def _granted(wanted: dict[Part, int], rows: int) -> dict[Part, int]:
    granted = dict.fromkeys(Part, 0)
    left = rows
    for part, count in (*GRANTS, (Part.LOG, rows)):
        more = min(min(count, wanted[part]) - granted[part], left)
        if more > 0:
            granted[part] += more
            left -= more
    return granted


def _shown(part: Part, lines: list[list[Piece]], granted: int, columns: int) -> list[list[Piece]]:
    """What a part shows in the lines it was given: the log its last ones, others their first."""
    if granted >= len(lines):
        return lines
    if part is Part.LOG:
        return lines[-granted:] if granted else []
    if part is Part.PROVIDERS and granted == 1:
        return lines[1:2]  # without its head
    if part in (Part.PROVIDERS, Part.REASONS) and granted > 2:
        hidden = len(lines) - granted + 1
        return [*lines[: granted - 1], [Piece(cut(f"… {hidden:,} more", columns), Style.DIM)]]
    return lines[:granted]


def _head(view: ScreenView, columns: int) -> list[Piece]:
    workers, work = view.snapshot.workers, view.snapshot.work
    course = Piece(view.course.value, Style.BUSY if view.course is Course.STOPPING else Style.HEAD)
    if work.paused:
        course = Piece("paused", Style.BUSY)
    parts = [course, Piece(format_duration(view.pace.elapsed_seconds))]
    if workers.pids:
        shown = ", ".join(map(str, workers.pids[:PIDS_SHOWN]))
        more = ", …" if len(workers.pids) > PIDS_SHOWN else ""
        noun = "worker" if len(workers.pids) == 1 else "workers"
        count = f"{len(workers.pids):,} {noun} (pid {shown}{more})"
        parts.append(Piece(count))
        parts.append(Piece(f"{workers.used:,} of {workers.slots:,} slots"))
    else:
        parts.append(Piece("no worker now"))
    if workers.others:
        parts.append(Piece(f"{workers.others:,} of other runs", Style.DIM))
    parts.append(Piece(escaped(view.store), Style.DIM))
    if columns >= BAR_FROM_COLUMNS:
        parts.insert(0, Piece("penstock", Style.HEAD))
    return fitting(parts, columns, GAP)


def format_checking(checking: Checking) -> str:
    """The progress of the preflights."""
    preflights = f"{checking.passed:,} of {counted(checking.total, 'preflight')}"
    failed = f", {checking.failed:,} failed" if checking.failed else ""
    return f"{preflights} {'has' if checking.total == 1 else 'have'} passed{failed}"


def _special(snapshot: RunSnapshot, columns: int) -> list[list[Piece]]:
    """Lines that not every run has: units of schedules, or a plan."""
    lines = [] if snapshot.units is None else [_units(snapshot.units, columns)]
    if snapshot.build is not None:
        head, *rest = snapshot.build.parts()
        parts = [Piece(head, Style.HEAD), *map(Piece, rest)]
        lines.append(fitting(parts, columns, GAP))
    if snapshot.progress:
        told = [Piece(f"{escaped(one.key)} {one.progress.format()}") for one in snapshot.progress]
        lines.append(fitting(told, columns, GAP))
    return lines


def _units(units: Units, columns: int) -> list[Piece]:
    head, ticking, *troubles = units.parts()
    parts = [Piece(head), Piece(ticking, Style.BUSY), *(Piece(one, Style.BAD) for one in troubles)]
    return fitting(parts, columns, GAP)


def _states(view: ScreenView) -> list[Piece]:
    if view.checking is not None:
        bad = Style.BAD if view.checking.failed else Style.GOOD
        return [Piece(format_checking(view.checking), bad)]
    if view.course is Course.CHECKING:
        return [Piece("preflights run")]
    if view.course is Course.PLANNING:
        return [Piece("a build waits for its datasets, or is planned")]
    work = view.snapshot.work
    many = "+" if work.delayed >= DELAYED_IN_STATS else ""
    parts = [
        Piece(f"{work.done:,} done", Style.GOOD),
        Piece(f"{work.failed:,} failed", Style.BAD if work.failed else Style.PLAIN),
        Piece(f"{work.running:,} running", Style.BUSY),
        Piece(f"{work.queued:,} queued", Style.NOTE),
    ]
    if work.lost:
        parts.insert(3, Piece(f"{work.lost:,} lost with a worker", Style.BAD))
    if work.delayed:
        parts.append(Piece(f"{work.delayed:,}{many} delayed"))
    if work.waiting:
        parts.append(Piece(f"{work.waiting:,} waiting for others"))
    if work.skipped:
        parts.append(Piece(f"{work.skipped:,} skipped"))
    if work.suspects:
        parts.append(Piece(f"{work.suspects:,} in quarantine", Style.BAD))
    return parts


def _pace(view: ScreenView, columns: int) -> list[Piece]:
    pace, checking = view.pace, view.checking
    if checking is not None:
        part = (checking.passed + checking.failed) / max(checking.total, 1)
        return [Piece(_bar(part, BAR_COLUMNS), Style.GOOD)]
    if view.course in (Course.CHECKING, Course.PLANNING):
        return []
    total = pace.ended_count + pace.left
    if not total and view.snapshot.units is not None:
        return [Piece("no job has come yet", Style.DIM)]
    part = pace.ended_count / total if total else 1.0
    parts = [
        Piece(f"{pace.rate:,.1f}/s", Style.HEAD),
        Piece(time_left(pace, short=columns < SHORT_BELOW_COLUMNS)),
        Piece(f"mean {pace.mean:,.1f}/s"),
        Piece(f"{100 * pace.ended_count // total if total else 100}% of {total:,}"),
    ]
    if columns < BAR_FROM_COLUMNS:
        return fitting(parts, columns, GAP)
    bar = _bar(part, BAR_COLUMNS)
    return [Piece(bar, Style.GOOD), Piece("  "), *fitting(parts, columns - BAR_COLUMNS - 2, GAP)]


def _bar(part: float, columns: int) -> str:
    eighths = int(part * columns * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BAR_STEPS[rest] if rest else "")).ljust(columns, "░")


def time_left(pace: Throughput, *, short: bool) -> str:
    """The time left, if there is an estimate."""
    if not pace.left:
        return "0 left" if short else "nothing left"
    if pace.seconds_left is None:
        return "– left" if short else "time left –"
    return f"{'' if short else 'about '}{format_duration(pace.seconds_left)} left"


def _reasons(view: ScreenView, columns: int) -> list[list[Piece]]:
    found = view.snapshot.reasons
    if not found:
        return []
    counts = ["–" if reason.jobs is None else f"{reason.jobs:,}" for reason in found]
    width = max(map(len, counts))
    title = "waiting for  " if columns >= BAR_FROM_COLUMNS else ""
    return [
        [
            Piece((title if not index else " " * len(title)), Style.DIM),
            Piece(f"{count:>{width}}  "),
            Piece(escaped(reason.text)),
        ]
        for index, (count, reason) in enumerate(zip(counts, found, strict=True))
    ]


def _money(money: Balance, columns: int) -> list[Piece]:
    parts = [Piece(f"{format_spending(money.spent.micros, money.spent.tokens)} spent", Style.HEAD)]
    if money.reserved.micros:
        parts.append(Piece(f"{format_dollars(money.reserved.micros)} reserved"))
    if money.in_doubt.micros:
        parts.append(Piece(f"{format_dollars(money.in_doubt.micros)} in doubt"))
    parts.append(Piece(f"{money.bought:,} bought"))
    parts.append(Piece(f"{money.reused:,} reused"))
    if money.spent.tokens:
        parts.append(Piece(f"{short_number(money.spent.tokens)} tokens"))
    return fitting(parts, columns, GAP)


def _log(view: ScreenView, columns: int, rows: int) -> list[list[Piece]]:
    lines = []
    for text in view.log[-rows:]:
        shown = cut(_LOG_TIME.sub(r"\1 ", text), columns)
        lines.append([Piece(shown, Style.BUSY if _BAD.match(shown) else Style.DIM)])
    return lines


def _foot(columns: int) -> list[Piece]:
    keys = ("p pause", "d drain", "q stop", "? keys")
    return fitting([Piece(key, Style.DIM) for key in keys], columns, "   ")


def plain(lines: Sequence[Line]) -> str:
    """The screen as text."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)

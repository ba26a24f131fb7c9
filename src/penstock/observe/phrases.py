# SPDX-License-Identifier: Apache-2.0
"""How are times, lists and names put into a sentence?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta

from penstock.clock import MICROSECONDS, to_datetime
from penstock.model.job import AttemptError
from penstock.model.schedule import SCHEDULE

NAMES_SHOWN = 3
TEXT_SHOWN = 200  # characters of an error


def at(micros: int) -> str:
    """A stored time, to the second."""
    return to_datetime(micros).strftime("%Y-%m-%d %H:%M:%SZ")


def span(micros: int) -> str:
    """How long: 0.4 s, 12 s, 3:20, 2:03:20."""
    seconds = max(micros, 0) / MICROSECONDS
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


def some(names: Sequence[str], total: int | None = None) -> str:
    """The first of some names, and how many there are besides."""
    shown = list(names[:NAMES_SHOWN])
    more = (len(names) if total is None else total) - len(shown)
    if more > 0:
        return f"{', '.join(shown)} and {more:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """A number of things: 1 group, 2 groups."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def short(text: str) -> str:
    """A message on one line, cut."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= TEXT_SHOWN else f"{line[: TEXT_SHOWN - 1]}…"


def error_words(error: AttemptError) -> str:
    """What went wrong: its kind, and what it said."""
    return f"{error.kind}, {short(error.message)}" if error.message else error.kind


def command(*words: str) -> str:
    """A command as a shell takes it."""
    return shlex.join(("penstock", *words))


def run_command(task: str, *words: str) -> str:
    """The command that starts somebody who serves a task: schedules need the daemon."""
    return command(*(("run",) if task.startswith(SCHEDULE) else ("queue", "run")), *words)

# SPDX-License-Identifier: Apache-2.0
"""How is a run shown on a terminal, and how do keys become wishes?"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from penstock.cli.live.layout import ScreenView, compose, plain
from penstock.cli.live.poller import RunLook, RunNews
from penstock.cli.live.terminal import Terminal
from penstock.cli.live.text_width import coloured
from penstock.cli.render.run_summary import say_closing
from penstock.clock import Clock, SystemClock
from penstock.errors import TRANSIENT
from penstock.redaction.secrets import redacted
from penstock.stores.protocol import Store
from penstock.supervisor.display import Course, Wish
from penstock.supervisor.protocol import Checking
from penstock.terminal_text import escaped

PASTED_FROM = 8  # so many characters at once were not typed, and mean nothing
STOP_SECONDS = 1.0  # a second `q` within this time is a key that was held down

#: What a terminal sends for arrows, function keys, a mouse, or Alt with a key.
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]?|O.?|.)?", re.DOTALL)


def pressed(data: bytes) -> list[str]:
    """The keys of letters and signs in what a terminal sent; nothing if it was pasted."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "ignore"))
    return list(text) if len(text) < PASTED_FROM else []


class StopKey:
    """Lets a key that is held down stop a run once, and not at once."""

    def __init__(self) -> None:
        self._last: float | None = None

    def counts(self, now: float) -> bool:
        """Is this a press of its own?"""
        held = self._last is not None and now - self._last < STOP_SECONDS
        self._last = now
        return not held


START_SECONDS = 1.0  # for the numbers before the first job
BEFORE_WORK = (Course.CHECKING, Course.PLANNING)
LINES_KEPT = 200  # of the log, to be seen below and when the run is over
LINE_LENGTH_MAX = 2_000  # characters of a line that is kept

log = logging.getLogger("penstock.run")


class LiveDisplay:
    """A screen of its own while the run goes: providers, work, reasons, rate, the last log lines.

    When it is over, what was there before comes back, with the last log lines and the report.
    """

    pipes_workers = True

    def __init__(
        self,
        terminal: Terminal,
        errors: TextIO,
        *,
        colour: bool,
        clock: Clock | None = None,
        daemon: bool = False,
        build: bool = False,
    ) -> None:
        self._terminal = terminal
        self._daemon = daemon
        self._build = build
        self._errors = errors
        self._colour = colour
        self._clock = clock or SystemClock()
        self._caught = CaughtLines(self._take_line)
        self._store: Store | None = None
        self._look: RunLook | None = None
        self._news = RunNews()
        self._log: deque[str] = deque(maxlen=LINES_KEPT)
        self._unseen = 0  # lines that only the screen has shown
        self._fresh = True  # something has changed since the last drawing
        self._course: Course | None = None
        self._run_id = ""
        self._checking: Checking | None = None
        self._paused: bool | None = None  # as wished for, until a picture shows it
        self._help = False
        self._stop_key = StopKey()

    @classmethod
    def on(
        cls, errors: TextIO, typing: TextIO | None, *, daemon: bool = False, build: bool = False
    ) -> LiveDisplay:
        """On the terminal of these streams."""
        terminal = Terminal(
            errors.fileno(), None if typing is None else typing.fileno(), errors.encoding
        )
        colour = not os.environ.get("NO_COLOR")
        return cls(terminal, errors, colour=colour, daemon=daemon, build=build)

    def started(self, store: Store, run_id: str, course: Course = Course.WORKING) -> None:
        self._store = store
        self._run_id = run_id
        look = self._begin(store)
        sys.stderr = self._caught
        with suppress(*TRANSIENT):  # it is asked again at every tick
            look.tick(START_SECONDS)

    def _begin(self, store: Store) -> RunLook:
        self._look = RunLook(
            store, self._run_id, self._clock, daemon=self._daemon, build=self._build
        )
        return self._look

    def tick(self, store: Store, course: Course, checking: Checking | None = None) -> None:
        if self._course in BEFORE_WORK and course is Course.WORKING:
            self._begin(store)  # its time counts from now
        if course is Course.CHECKING and checking != self._checking:
            self._checking, self._fresh = checking, True
        look = self._look
        if look is None:
            return
        try:
            if look.tick() and look.picture is not None:
                self._fresh, self._paused = True, None
                for news in self._news.of(look.picture):
                    log.warning("%s.", news)
        finally:  # an unreachable store is told in the log, which is shown here
            self._draw(look, course)

    def _draw(self, look: RunLook, course: Course) -> None:
        if look.picture is None or look.pace is None:
            return
        if not self._terminal.is_open:
            self._terminal.open()
            self._fresh = True
        if not self._terminal.is_open:
            return
        self._fresh = self._fresh or course is not self._course or self._terminal.was_resized
        if not self._fresh:
            return
        self._fresh, self._course = False, course
        view = ScreenView(
            picture=look.picture,
            pace=look.pace,
            course=course,
            store="" if self._store is None else redacted(self._store.url),
            log=tuple(self._log),
            keys=self._terminal.typing_fd is not None,
            help=self._help,
            checking=self._checking if course is Course.CHECKING else None,
        )
        lines = compose(view, *self._terminal.size())
        shown = list(map(coloured, lines)) if self._colour else plain(lines).split("\n")
        self._terminal.draw(shown)

    def line(self, text: str) -> None:
        self._take_line(escaped(redacted(text)))

    def _take_line(self, text: str) -> None:
        """A line that is safe to show; of any thread."""
        if not self._terminal.is_open:
            with suppress(OSError, ValueError):
                print(text, file=self._errors, flush=True)
            return
        self._log.append(text[:LINE_LENGTH_MAX])
        self._unseen += 1
        self._fresh = True

    def keys(self) -> int | None:
        return self._terminal.typing_fd

    def typed(self) -> Sequence[Wish]:
        wishes = [self._meant(key) for key in pressed(self._terminal.typed())]
        return [wish for wish in wishes if wish is not None]

    def _meant(self, key: str) -> Wish | None:
        look = self._look
        if key == "?":
            self._help, self._fresh = not self._help, True
        if key == "d":
            return Wish.DRAIN
        if key == "q" and self._stop_key.counts(self._clock.monotonic()):
            return Wish.STOP
        if key != "p" or look is None or look.picture is None:
            return None
        paused = look.picture.work.paused if self._paused is None else self._paused
        self._paused = not paused
        look.soon()
        return Wish.RESUME if paused else Wish.PAUSE

    def close(self, run_id: str | None) -> None:
        self.restore()
        say_closing(self._look, self._store, run_id)

    def restore(self) -> None:
        """Give the terminal back, with the last lines of the log; may be called again."""
        self._terminal.close()
        if sys.stderr is self._caught:
            sys.stderr = self._errors
        kept = list(self._log)[-self._unseen :] if self._unseen else []
        if self._unseen > len(kept):
            earlier = self._unseen - len(kept)
            self._take_line(f"… {earlier:,} earlier lines; 2>FILE keeps all of them.")
        self._unseen = 0
        for text in kept:
            self._take_line(text)


class CaughtLines(io.TextIOBase):
    """Stands in for stderr, so that lines of this process do not tear the screen."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)

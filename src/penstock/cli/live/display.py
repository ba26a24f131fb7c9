# SPDX-License-Identifier: Apache-2.0
"""Shows a run to a person: live on a terminal, with its keys, or as log lines elsewhere."""

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

from penstock.cli.live.layout import ScreenView, coloured, compose, format_checking, plain
from penstock.cli.live.poller import RunAlerts, RunPoller
from penstock.cli.live.terminal import Terminal, in_foreground
from penstock.cli.render.run_summary import print_summary
from penstock.cli.render.throughput import Throughput
from penstock.clock import Clock, SystemClock
from penstock.errors import TRANSIENT
from penstock.observe.live import RunSnapshot, format_lost, stall_reason
from penstock.redaction.secrets import redacted
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.supervisor.display import Course, RunCommand
from penstock.supervisor.protocol import Checking
from penstock.terminal_text import (
    escaped,
    format_duration,
    format_spending,
    is_open,
    print_line,
    warn,
)
from penstock.worker.log_lines import LimitChanges, format_limits

PASTED_FROM = 8  # so many characters at once were not typed, and mean nothing
BEFORE_WORK = (Course.CHECKING, Course.PLANNING)
LINES_KEPT = 200  # of the log, to be seen below and when the run is over
LINE_LENGTH_MAX = 2_000  # characters of a line that is kept
PLAIN_SECONDS = 10.0  # between two lines about the run
START_SECONDS = 1.0  # for the numbers before the first job
AT_WORK = (Course.WORKING, Course.DRAINING)
STALLED_PER_SECOND = 0.05  # a lower rate is shown as 0.0
STOP_SECONDS = 1.0  # a second `q` within this time is a key that was held down

log = logging.getLogger("penstock.run")

#: What a terminal sends for arrows, function keys, a mouse, or Alt with a key.
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]?|O.?|.)?", re.DOTALL)


def typed_keys(data: bytes) -> list[str]:
    """The keys of letters and signs in what a terminal sent; nothing if it was pasted."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "ignore"))
    return list(text) if len(text) < PASTED_FROM else []


class StopKey:
    """Lets a key that is held down stop a run once, and not kill it."""

    def __init__(self) -> None:
        self._last: float | None = None

    def counts(self, now: float) -> bool:
        """Whether this is a new press rather than a key that is held down."""
        held = self._last is not None and now - self._last < STOP_SECONDS
        self._last = now
        return not held


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
        self._captured = CapturedStderr(self._take_line)
        self._store: Store | None = None
        self._poller: RunPoller | None = None
        self._alerts = RunAlerts()
        self._log: deque[str] = deque(maxlen=LINES_KEPT)
        self._unseen = 0  # lines that only the live view has shown
        self._changed = True  # since the last drawing
        self._course: Course | None = None
        self._run_id = ""
        self._checking: Checking | None = None
        self._paused: bool | None = None  # as commanded, until a snapshot shows it
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
        poller = self._begin(store)
        sys.stderr = self._captured
        with suppress(*TRANSIENT):  # it is asked again at every tick
            poller.tick(START_SECONDS)

    def _begin(self, store: Store) -> RunPoller:
        self._poller = RunPoller(
            store, self._run_id, self._clock, daemon=self._daemon, build=self._build
        )
        return self._poller

    def tick(self, store: Store, course: Course, checking: Checking | None = None) -> None:
        if self._course in BEFORE_WORK and course is Course.WORKING:
            self._begin(store)  # its time counts from now
        if course is Course.CHECKING and checking != self._checking:
            self._checking, self._changed = checking, True
        poller = self._poller
        if poller is None:
            return
        try:
            if poller.tick() and poller.snapshot is not None:
                self._changed, self._paused = True, None
                for alert in self._alerts.new_in(poller.snapshot):
                    log.warning("%s.", alert)
        finally:  # an unreachable store is told in the log, which is shown here
            self._draw(poller, course)

    def _draw(self, poller: RunPoller, course: Course) -> None:
        if poller.snapshot is None or poller.throughput is None:
            return
        if not self._terminal.is_open:
            self._terminal.open()
            self._changed = True
        if not self._terminal.is_open:
            return
        self._changed = self._changed or course is not self._course or self._terminal.was_resized
        if not self._changed:
            return
        self._changed, self._course = False, course
        view = ScreenView(
            snapshot=poller.snapshot,
            pace=poller.throughput,
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
            print_line(text, self._errors)
            return
        self._log.append(text[:LINE_LENGTH_MAX])
        self._unseen += 1
        self._changed = True

    def keys(self) -> int | None:
        return self._terminal.typing_fd

    def typed(self) -> Sequence[RunCommand]:
        commands = [self._meant(key) for key in typed_keys(self._terminal.typed())]
        return [command for command in commands if command is not None]

    def _meant(self, key: str) -> RunCommand | None:
        poller = self._poller
        if key == "?":
            self._help, self._changed = not self._help, True
        if key == "d":
            return RunCommand.DRAIN
        if key == "q" and self._stop_key.counts(self._clock.monotonic()):
            return RunCommand.STOP
        if key != "p" or poller is None or poller.snapshot is None:
            return None
        paused = poller.snapshot.work.paused if self._paused is None else self._paused
        self._paused = not paused
        poller.soon()
        return RunCommand.RESUME if paused else RunCommand.PAUSE

    def close(self, run_id: str | None) -> None:
        self.restore()
        print_summary(self._poller, self._store, run_id)

    def restore(self) -> None:
        """Give the terminal back, with the last lines of the log; may be called again."""
        self._terminal.close()
        if sys.stderr is self._captured:
            sys.stderr = self._errors
        kept = list(self._log)[-self._unseen :] if self._unseen else []
        if self._unseen > len(kept):
            earlier = self._unseen - len(kept)
            self._take_line(f"… {earlier:,} earlier lines; 2>FILE keeps all of them.")
        self._unseen = 0
        for text in kept:
            self._take_line(text)


class CapturedStderr(io.TextIOBase):
    """Stands in for stderr, so that lines of this process do not tear the screen."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)


def make_display(
    log_format: str, *, daemon: bool = False, build: bool = False
) -> LiveDisplay | PlainDisplay:
    """The live view where a person can see it, and plain lines elsewhere."""
    shows = sys.stderr.isatty() and in_foreground(sys.stderr.fileno())
    moves = os.environ.get("TERM", "") not in ("", "dumb")  # can its cursor be moved?
    if not shows or not moves or log_format != "text":
        return PlainDisplay(daemon=daemon, build=build)
    types = is_open(sys.stdin) and sys.stdin.isatty()
    return LiveDisplay.on(sys.stderr, sys.stdin if types else None, daemon=daemon, build=build)


class PlainDisplay:
    """A log line every ten seconds, or about a limit that moves; then the closing report.

    Workers write to stderr themselves.
    """

    pipes_workers = False

    def __init__(
        self, *, clock: Clock | None = None, daemon: bool = False, build: bool = False
    ) -> None:
        self._clock = clock or SystemClock()
        self._daemon = daemon
        self._build = build
        self._store: Store | None = None
        self._poller: RunPoller | None = None
        self._limits = LimitChanges(self._clock.monotonic())
        self._alerts = RunAlerts()
        self._next_at: float | None = None
        self._run_id = ""
        self._told: Checking | None = None  # of the preflights

    def started(self, store: Store, run_id: str, course: Course = Course.WORKING) -> None:
        self._store = store
        self._run_id = run_id
        if course in AT_WORK:
            self._begin(store, run_id)

    def _begin(self, store: Store, run_id: str) -> None:
        """Work begins."""
        self._next_at = None
        self._poller = RunPoller(store, run_id, self._clock, daemon=self._daemon, build=self._build)
        with suppress(*TRANSIENT):  # it is asked again at every tick
            self._go_on(self._poller, START_SECONDS)

    def tick(self, store: Store, course: Course, checking: Checking | None = None) -> None:
        if self._poller is not None:
            self._go_on(self._poller, 0.0)
        elif course in AT_WORK:
            self._begin(store, self._run_id)
        elif course is Course.CHECKING and checking is not None:
            self._log_checks(checking)

    def _log_checks(self, checking: Checking) -> None:
        now = self._clock.monotonic()
        if checking != self._told and (self._next_at is None or now >= self._next_at):
            self._told, self._next_at = checking, now + PLAIN_SECONDS
            log.info("%s.", format_checking(checking))

    def _go_on(self, poller: RunPoller, wait_seconds: float) -> None:
        if not poller.tick(wait_seconds) or poller.snapshot is None or poller.throughput is None:
            return
        now = self._clock.monotonic()
        moved = self._limits.take(poller.workers, now)
        if moved is not None:
            log.info("%s.", moved)
        for alert in self._alerts.new_in(poller.snapshot):
            log.warning("%s.", alert)
        if self._next_at is None:
            store = "" if self._store is None else redacted(self._store.url)
            units = poller.snapshot.units
            besides = "" if units is None else f", {counted(units.live, 'unit')} of schedules"
            if poller.build and poller.snapshot.build is not None:
                besides = f" of plan {poller.snapshot.build.plan_id}"
            log.info("Working on %s: %d jobs to do%s.", store, poller.throughput.left, besides)
        elif now < self._next_at:
            return
        else:
            log.info(
                "%s.", "; ".join(format_progress(poller.snapshot, poller.throughput, self._limits))
            )
        self._next_at = now + PLAIN_SECONDS

    def line(self, text: str) -> None:
        warn(escaped(text))

    def keys(self) -> int | None:
        return None

    def typed(self) -> Sequence[RunCommand]:
        return ()

    def restore(self) -> None:
        """Nothing to restore."""

    def close(self, run_id: str | None) -> None:
        print_summary(self._poller, self._store, run_id)


def format_progress(snapshot: RunSnapshot, pace: Throughput, limits: LimitChanges) -> list[str]:
    """The parts of the progress line of a run."""
    is_told = pace.left and pace.seconds_left is not None
    left = f", about {format_duration(pace.seconds_left or 0.0)}" if is_told else ""
    words = [
        pace.ends,
        f"{pace.rate:.1f}/s",
        f"{pace.left} left{left}",
        *format_limits(limits.seen),
    ]
    if snapshot.money is not None:
        money = snapshot.money
        spent = format_spending(money.spent.micros, money.spent.tokens)
        words.append(f"{spent} spent, {money.bought:,} bought, {money.reused:,} reused")
    if snapshot.units is not None:
        words.append(", ".join(snapshot.units.parts()))
    if snapshot.build is not None:
        words.append(", ".join(snapshot.build.parts()))
    if pace.left and pace.rate < STALLED_PER_SECOND:
        words.append(f"no progress: {stall_reason(snapshot)}")
    elif snapshot.silent:
        words.append(f"{snapshot.work.lost:,} lost: {format_lost(snapshot.silent)}")
    return words

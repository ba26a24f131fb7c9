# SPDX-License-Identifier: Apache-2.0
"""How does a person see a run: live on a terminal, or as log lines elsewhere?"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from penstock.cli.live.display import LiveDisplay
from penstock.cli.live.layout import checking_words
from penstock.cli.live.poller import RunLook, RunNews
from penstock.cli.live.terminal import in_foreground
from penstock.cli.render.run_summary import say_closing
from penstock.cli.render.throughput import PaceView
from penstock.clock import Clock, SystemClock
from penstock.errors import TRANSIENT
from penstock.observe.live import RunPicture, lost_words, standstill
from penstock.observe.phrases import counted
from penstock.redaction.secrets import redacted
from penstock.stores.protocol import Store
from penstock.supervisor.display import Course, Wish
from penstock.supervisor.protocol import Checking
from penstock.terminal_text import escaped, is_open, span, spent_words, warn
from penstock.worker.log_lines import LimitWatch, limit_words

PLAIN_SECONDS = 10.0  # between two lines about the run
START_SECONDS = 1.0  # for the numbers before the first job
AT_WORK = (Course.WORKING, Course.DRAINING)
NOTHING_PER_SECOND = 0.05  # a rate that is shown as 0.0

log = logging.getLogger("penstock.run")


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
    """A log line every ten seconds, or about a limit that moves, and the closing report.

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
        self._look: RunLook | None = None
        self._limits = LimitWatch(self._clock.monotonic())
        self._news = RunNews()
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
        self._look = RunLook(store, run_id, self._clock, daemon=self._daemon, build=self._build)
        with suppress(*TRANSIENT):  # it is asked again at every tick
            self._go_on(self._look, START_SECONDS)

    def tick(self, store: Store, course: Course, checking: Checking | None = None) -> None:
        if self._look is not None:
            self._go_on(self._look, 0.0)
        elif course in AT_WORK:
            self._begin(store, self._run_id)
        elif course is Course.CHECKING and checking is not None:
            self._tell_checks(checking)

    def _tell_checks(self, checking: Checking) -> None:
        now = self._clock.monotonic()
        if checking != self._told and (self._next_at is None or now >= self._next_at):
            self._told, self._next_at = checking, now + PLAIN_SECONDS
            log.info("%s.", checking_words(checking))

    def _go_on(self, look: RunLook, wait_seconds: float) -> None:
        if not look.tick(wait_seconds) or look.picture is None or look.pace is None:
            return
        now = self._clock.monotonic()
        moved = self._limits.take(look.workers, now)
        if moved is not None:
            log.info("%s.", moved)
        for news in self._news.of(look.picture):
            log.warning("%s.", news)
        if self._next_at is None:
            store = "" if self._store is None else redacted(self._store.url)
            units = look.picture.units
            besides = "" if units is None else f", {counted(units.live, 'unit')} of schedules"
            if look.picture.build is not None:
                besides = f" of plan {look.picture.build.plan_id}"
            log.info("Working on %s: %d jobs to do%s.", store, look.pace.left, besides)
        elif now < self._next_at:
            return
        else:
            log.info("%s.", "; ".join(plain_words(look.picture, look.pace, self._limits)))
        self._next_at = now + PLAIN_SECONDS

    def line(self, text: str) -> None:
        warn(escaped(text))

    def keys(self) -> int | None:
        return None

    def typed(self) -> Sequence[Wish]:
        return ()

    def restore(self) -> None:
        """Nothing was taken."""

    def close(self, run_id: str | None) -> None:
        say_closing(self._look, self._store, run_id)


def plain_words(picture: RunPicture, pace: PaceView, limits: LimitWatch) -> list[str]:
    """What the line about a run says."""
    is_told = pace.left and pace.seconds_left is not None
    left = f", about {span(pace.seconds_left or 0.0)}" if is_told else ""
    words = [pace.ends, f"{pace.rate:.1f}/s", f"{pace.left} left{left}", *limit_words(limits.seen)]
    if picture.money is not None:
        money = picture.money
        words.append(
            f"{spent_words(money.spent_micros, money.tokens)} spent, {money.bought:,} bought, "
            f"{money.reused:,} reused"
        )
    if picture.units is not None:
        words.append(", ".join(picture.units.words()))
    if picture.build is not None:
        words.append(", ".join(picture.build.words()))
    if pace.left and pace.rate < NOTHING_PER_SECOND:
        words.append(f"nothing ends: {standstill(picture)}")
    elif picture.silent:
        words.append(f"{picture.work.lost:,} lost: {lost_words(picture.silent)}")
    return words

# SPDX-License-Identifier: Apache-2.0
"""How does a person see a run: live on a terminal, or as log lines elsewhere?"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.cli.pace import Pace, PaceView
from penstock.cli.text import escaped, say, span, warn
from penstock.clock import Clock, SystemClock
from penstock.errors import TRANSIENT, StoreError
from penstock.model.job import JobState, WorkerId
from penstock.model.views import Stats
from penstock.redaction import redacted
from penstock.runtime.asking import Question, within
from penstock.runtime.moving_limits import LimitWatch, limit_words
from penstock.stores.store import Store

if TYPE_CHECKING:  # heavy, and only a live display needs it
    from rich.console import Console, RenderableType
    from rich.live import Live

PLAIN_SECONDS = 10.0  # between two lines about the run
START_SECONDS = 1.0  # for the numbers before the first job
SUMMARY_SECONDS = 5.0  # for the numbers of the closing line
BAR_WIDTH = 40  # characters

log = logging.getLogger("penstock.run")


class PlainDisplay:
    """A log line every ten seconds, or about a limit that moves, and a closing line.

    Workers write to stderr themselves.
    """

    pipes_workers = False

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._pace = Pace(self._clock.monotonic())
        self._store: Store | None = None
        self._stats: Question[Stats] | None = None
        self._limits: LimitWatch | None = None
        self._next_at = 0.0

    def started(self, store: Store) -> None:
        self._store = store
        self._stats = Question(store.stats)
        self._limits = LimitWatch(store.workers, self._clock.monotonic())
        with suppress(*TRANSIENT):  # it is asked again at every tick
            self._look(store, START_SECONDS)

    def tick(self, store: Store) -> None:
        self._look(store, 0.0)
        if self._limits is not None:
            news = self._limits.tick(self._clock.monotonic())
            if news is not None:
                log.info("%s.", news)

    def _look(self, store: Store, wait_seconds: float) -> None:
        now = self._clock.monotonic()
        if self._stats is None or now < self._next_at:
            return
        stats = self._stats.answer(wait_seconds)
        if stats is None:
            return
        view = self._pace.look(stats.states, now)
        if not self._next_at:
            log.info("Working on %s: %d jobs to do.", redacted(store.url), view.left)
        else:
            self._tell(view)
        self._next_at = now + PLAIN_SECONDS

    def _tell(self, view: PaceView) -> None:
        left = f", about {span(view.seconds_left)}" if view.seconds_left is not None else ""
        limits = limit_words(self._limits.seen) if self._limits is not None else []
        found = "".join(f"; {words}" for words in limits)
        log.info("%s; %.1f/s; %d left%s%s.", view.ends, view.rate, view.left, left, found)

    def line(self, text: str) -> None:
        warn(escaped(text))

    def close(self, run_id: str | None) -> None:
        _say_summary(self._pace, self._store, self._clock, run_id)


class LiveDisplay:
    """States, rate, bar, time left and limits, redrawn in place; workers' lines scroll above it."""

    pipes_workers = True

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        console: Console | None = None,
    ) -> None:
        from rich.console import Console

        self._clock = clock or SystemClock()
        self._console = console or Console(stderr=True, highlight=False)
        self._pace = Pace(self._clock.monotonic())
        self._store: Store | None = None
        self._stats: Question[Stats] | None = None
        self._limits: LimitWatch | None = None
        self._live: Live | None = None

    def started(self, store: Store) -> None:
        from rich.live import Live

        self._store = store
        self._stats = Question(store.stats)
        self._limits = LimitWatch(store.workers, self._clock.monotonic())
        live = Live(console=self._console, auto_refresh=False, transient=True)
        with self._forgiving():
            live.start()
            self._live = live
        with suppress(*TRANSIENT):  # it is asked again at every tick
            self._look(START_SECONDS)

    def tick(self, store: Store) -> None:
        if self._limits is not None:
            self._limits.tick(self._clock.monotonic())
        self._look(0.0)

    def _look(self, wait_seconds: float) -> None:
        if self._live is None or self._stats is None:
            return
        stats = self._stats.answer(wait_seconds)
        if stats is not None:
            drawn = self._drawn(stats.states)
            with self._forgiving():
                self._live.update(drawn, refresh=True)

    def line(self, text: str) -> None:
        with self._forgiving():
            self._console.print(escaped(text), markup=False, emoji=False, soft_wrap=True)

    def close(self, run_id: str | None) -> None:
        if self._live is not None:
            with self._forgiving():
                self._live.stop()
        _say_summary(self._pace, self._store, self._clock, run_id)

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """A terminal that is gone is no reason to end the run: from then on nothing is drawn."""
        try:
            yield
        except OSError as error:
            if self._live is not None:
                self._live = None
                log.info("The terminal is gone (%s); the run goes on.", error.strerror)

    def _drawn(self, states: Mapping[JobState, int]) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        view = self._pace.look(states, self._clock.monotonic())
        counts = Table.grid(padding=(0, 2))
        counts.add_row(*(f"[{_COLOURS[state]}]{state.value}[/]" for state in JobState))
        counts.add_row(*(f"{states.get(state, 0):,}" for state in JobState))
        bar = Table.grid(padding=(0, 2))
        total = view.ended_count + view.left
        bar.add_row(
            ProgressBar(total=total or 1, completed=view.ended_count, width=BAR_WIDTH),
            f"{view.rate:,.1f}/s",
            _time_left(view),
        )
        limits = limit_words(self._limits.seen) if self._limits is not None else []
        return Group(counts, bar, *(Text(escaped(words), style="dim") for words in limits))


_COLOURS = {
    JobState.WAITING: "dim",
    JobState.QUEUED: "cyan",
    JobState.IN_PROGRESS: "bold yellow",
    JobState.DONE: "green",
    JobState.SKIPPED: "blue",
    JobState.ERROR: "red",
    JobState.CANCELLED: "magenta",
}


def _time_left(view: PaceView) -> str:
    if not view.left:
        return "nothing left"
    return "" if view.seconds_left is None else f"{span(view.seconds_left)} left"


def _say_summary(pace: Pace, store: Store | None, clock: Clock, run_id: str | None) -> None:
    """The closing line, if there was a run at all; others may have worked on the store as well."""
    if store is None or run_id is None:
        return
    try:
        states = within(store.stats(), SUMMARY_SECONDS).states
        own = within(store.outlook(WorkerId(""), run_id), SUMMARY_SECONDS).ended_in_run
    except (StoreError, TimeoutError) as error:
        log.warning("The store cannot be read for the closing line: %s", error)
        return
    say(pace.look(states, clock.monotonic()).summary(own))

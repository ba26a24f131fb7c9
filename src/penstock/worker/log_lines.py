# SPDX-License-Identifier: Apache-2.0
"""How does a long run say now and again how it stands?

One line in the log and one event every so many seconds, from the store's counters and the rows of
its workers. The supervisor tells it for its whole run; an embedded run tells it itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.errors import StoreError
from penstock.events.correlation import Correlation
from penstock.events.default_sinks import default_sinks
from penstock.events.kinds import SchedulerEventKind
from penstock.events.sink import SchedulerEvents
from penstock.model.job import JobState, WorkerId
from penstock.model.views import Outlook, Stats, WorkerView
from penstock.model.worker_silence import answering
from penstock.process_identity import is_gone
from penstock.stores.asking import Question
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.worker.moving_limits import limit_words, seen_limits

SILENT_MAX = 9  # so many times nothing is said while nothing changes; the next time it is

log = logging.getLogger("penstock.statistics")


@dataclass(frozen=True, slots=True)
class Standing:
    """A run at one moment, in numbers."""

    queued: int
    delayed: int  # of the queued ones: for later, or to be tried again
    running: int
    waiting: int  # for other jobs
    done: int  # in this run, as the two below
    failed: int
    skipped: int
    suspects: int
    paused: bool
    units: int = 0  # of schedules, which are always queued or running; not counted above
    ticking: int = 0  # of those: running

    @classmethod
    def of(cls, stats: Stats, outlook: Outlook) -> Standing:
        ended = outlook.ended_in_run
        ticking = sum(of.get(JobState.IN_PROGRESS, 0) for of in stats.schedules.values())
        return cls(
            queued=stats.states.get(JobState.QUEUED, 0),
            delayed=stats.delayed,
            running=stats.states.get(JobState.IN_PROGRESS, 0),
            waiting=stats.states.get(JobState.WAITING, 0),
            done=ended.get(JobState.DONE, 0),
            failed=ended.get(JobState.ERROR, 0),
            skipped=ended.get(JobState.SKIPPED, 0),
            suspects=stats.suspects,
            paused=stats.paused,
            units=stats.units,
            ticking=ticking,
        )

    def numbers(self) -> dict[str, float]:
        """What the event carries."""
        return {
            "queued": self.queued,
            "delayed": self.delayed,
            "running": self.running,
            "waiting": self.waiting,
            "done": self.done,
            "failed": self.failed,
            "skipped": self.skipped,
            "suspects": self.suspects,
            "paused": float(self.paused),
            "units": self.units,
            "ticking": self.ticking,
        }

    def words(self, done_per_second: float) -> Iterator[str]:
        """What people read; what is always there comes first."""
        delayed = f" ({self.delayed:,} delayed or to be retried)" if self.delayed else ""
        yield f"{self.queued:,} queued{delayed}"
        yield f"{self.running:,} running"
        yield f"{self.done:,} done ({_rate(done_per_second)}/s)"
        yield f"{self.failed:,} failed"
        if self.skipped:
            yield f"{self.skipped:,} skipped"
        if self.units:
            word = "unit" if self.units == 1 else "units"
            yield f"{self.units:,} {word} of schedules ({self.ticking:,} ticking)"
        if self.waiting:
            yield f"{self.waiting:,} waiting for others"
        if self.suspects:
            yield f"{self.suspects:,} to run alone after a crash"
        if self.paused:
            yield "paused"


class StatisticsLine:
    """Owns when the next line is due, and what the last one said."""

    def __init__(
        self,
        every_seconds: float,
        run_id: str,
        store: Store,
        clock: Clock,
        events: SchedulerEvents | None = None,
    ) -> None:
        self._every_seconds = every_seconds
        self._run_id = run_id
        self._store = store
        self.events = events or SchedulerEvents(clock, default_sinks())
        self._clock = clock
        self._looked_at = clock.monotonic()
        self._due_at = self._looked_at + every_seconds if every_seconds > 0 else float("inf")
        self._last: Standing | None = None
        self._done_before = 0
        self._silent = 0
        self._stats_question = Question(self._ask_for_stats)
        self._outlook_question = Question(self._ask_for_outlook)
        self._workers_question = Question(self._ask_for_workers)
        self._stats: Stats | None = None  # the first of the three answers
        self._outlook: Outlook | None = None  # the second

    def _ask_for_stats(self) -> Reply[Stats]:
        return self._store.stats()

    def _ask_for_outlook(self) -> Reply[Outlook]:
        return self._store.outlook(WorkerId(""), self._run_id)

    def _ask_for_workers(self) -> Reply[list[WorkerView]]:
        return self._store.workers()

    def tick(self) -> bool:
        """Tell it if it is time to and the answers are there; True if something was said."""
        now = self._clock.monotonic()
        if now < self._due_at:
            return False
        try:
            if self._stats is None:
                self._stats = self._stats_question.answer()
            if self._stats is not None and self._outlook is None:
                self._outlook = self._outlook_question.answer()
            workers = None if self._outlook is None else self._workers_question.answer()
        except StoreError as error:
            log.warning("The store cannot be read: %s", error)
            self._due_at = now + self._every_seconds
            return False
        stats, outlook = self._stats, self._outlook
        if stats is None or outlook is None or workers is None:
            return False  # the next tick looks again
        self._stats = self._outlook = None
        self._due_at = now + self._every_seconds
        return self._look(stats, outlook, workers, now)

    async def run(self) -> None:
        """Tell it again and again, on a loop, until it is cancelled."""
        while self._every_seconds > 0:
            await self._clock.sleep(self._every_seconds)
            try:
                stats = await self._ask_for_stats()
                outlook = await self._ask_for_outlook()
                workers = await self._ask_for_workers()
            except StoreError as error:
                log.warning("The store cannot be read: %s", error)
            else:
                self._look(stats, outlook, workers, self._clock.monotonic())

    def _look(self, stats: Stats, outlook: Outlook, workers: list[WorkerView], now: float) -> bool:
        standing = Standing.of(stats, outlook)
        rate = (standing.done - self._done_before) / max(now - self._looked_at, 0.001)
        self._looked_at, self._done_before = now, standing.done
        if standing == self._last and self._silent < SILENT_MAX:
            self._silent += 1
            return False
        self._last, self._silent = standing, 0
        limits = limit_words(seen_limits(answering(workers, is_gone)))
        self._tell(standing, rate, stats.oldest_ready_seconds, limits)
        return True

    def _tell(
        self, standing: Standing, rate: float, oldest: float | None, limits: list[str]
    ) -> None:
        words = list(standing.words(rate))
        numbers = {**standing.numbers(), "done_per_second": rate}
        if oldest is not None:
            words.append(f"oldest ready {oldest:,.0f} s")
            numbers["oldest_ready_seconds"] = oldest
        log.info("%s.", ", ".join([*words, *limits]))
        kind = SchedulerEventKind.SCHEDULER_HEALTH_SNAPSHOT
        self.events.emit(kind, Correlation(self._run_id), numbers=numbers)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.2g}"

# SPDX-License-Identifier: Apache-2.0
"""The statistics line of a run, and the lines about limits that change.

One line in the log and one event every so many seconds, from the store's counters and the rows of
its workers. The supervisor logs it for its whole run; an embedded run does so itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec

from penstock.admission.requests.gate import TokenBucket
from penstock.clock import MICROSECONDS, Clock
from penstock.errors import StoreError
from penstock.events.kinds import Correlation, SchedulerEventKind
from penstock.events.sink import SchedulerEvents, default_sinks
from penstock.model.job import JobState, WorkerId
from penstock.model.provider import ProviderModelKey
from penstock.model.views import Outlook, Stats, WorkerView
from penstock.model.worker import ReportedUse, reported_uses, responsive_workers
from penstock.process_identity import is_gone
from penstock.stores.protocol import Store
from penstock.stores.retry import Outage
from penstock.stores.store_future import Question, Reply

NAMED_MAX = 4  # limits in one line
NOTICED_PART = 0.25  # of a limit: so much up or down is worth a line
NOTICED_MIN = 2  # requests; a limit of one that becomes two is not
LINES_AT_ONCE = 10  # lines about limits at the start of a run, or after a quiet time
LINE_SECONDS = 30.0  # for each further one
SILENT_MAX = 9  # lines that are left out while nothing changes; the next one is logged

log = logging.getLogger("penstock.statistics")


class SeenLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a provider, over all workers that use it."""

    name: str
    limit: int
    limit_max: int
    in_flight: int
    refused: int
    cooldown_seconds: float

    @property
    def moves(self) -> bool:
        """It is being found, and not just what was declared."""
        return self.limit < self.limit_max or self.refused > 0

    def format(self, before: int | None = None) -> str:
        came = "" if before is None or before == self.limit else f"{before:,} → "
        parts = [f"{self.in_flight:,} in flight", f"{self.refused:,} refused"]
        if self.cooldown_seconds >= 1:
            parts.append(f"cools down {self.cooldown_seconds:.0f} s")
        return f"{self.name} limit {came}{self.limit:,} of {self.limit_max:,} ({', '.join(parts)})"


class SeenRefusals:
    """Owns how many refusals each worker of a run has reported last, also those that are gone."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._reported: dict[ProviderModelKey, dict[WorkerId, int]] = {}

    def of_gone(self, workers: Sequence[WorkerView]) -> dict[ProviderModelKey, int]:
        """Take in what live workers report; by model, what others had reported before."""
        for key, uses in reported_uses(workers).items():
            for one in uses:
                if one.view.run_id == self._run_id:
                    self._reported.setdefault(key, {})[one.view.id] = one.use.refused
        alive = {one.id for one in workers}
        return {
            key: sum(count for worker, count in counts.items() if worker not in alive)
            for key, counts in self._reported.items()
        }


def seen_limits(
    workers: Iterable[WorkerView], gone: Mapping[ProviderModelKey, int] | None = None
) -> list[SeenLimit]:
    """The limits that move, as live workers report them, by name; `gone` are earlier refusals."""
    more = gone or {}
    found = {key: _seen(uses, more.get(key, 0)) for key, uses in reported_uses(workers).items()}
    return [one for one in _named(found) if one.moves]


def _seen(uses: list[ReportedUse], gone: int) -> SeenLimit:
    parts = [one.use for one in uses if one.is_own_part]
    return SeenLimit(
        name=uses[0].use.provider,
        limit=sum(use.limit for use in parts),
        limit_max=sum(use.limit_max for use in parts),
        in_flight=sum(one.use.in_flight for one in uses),
        refused=sum(one.use.refused for one in uses) + gone,
        cooldown_seconds=max(map(_rest, uses)),
    )


def _rest(one: ReportedUse) -> float:
    """How long it cools down, in seconds."""
    until = one.use.blocked_until_at
    return 0.0 if until is None else max(0, until - one.status.captured_at) / MICROSECONDS


def _named(found: dict[ProviderModelKey, SeenLimit]) -> Iterator[SeenLimit]:
    """A provider with several models is named with each."""
    for key in sorted(found):
        several = sum(other.provider == key.provider for other in found) > 1
        name = f"{key.provider}/{key.model}" if several else key.provider
        yield msgspec.structs.replace(found[key], name=name)


def format_limits(seen: list[SeenLimit]) -> list[str]:
    """What a line about a run says of its limits; a bounded number."""
    words = [one.format() for one in seen[:NAMED_MAX]]
    if len(seen) > NAMED_MAX:
        words.append(f"{len(seen) - NAMED_MAX} more limits")
    return words


class LimitChanges:
    """Owns what was last logged of the limits of a run."""

    def __init__(self, now: float) -> None:
        self._lines = TokenBucket(1 / LINE_SECONDS, now, LINES_AT_ONCE)
        self._logged: dict[str, int] = {}
        self.seen: list[SeenLimit] = []

    def take(self, workers: Iterable[WorkerView], now: float) -> str | None:
        """Look at the rows of workers; what is worth a line of its own, if anything is."""
        self.seen = seen_limits(workers)
        return self._line(now)

    def _line(self, now: float) -> str | None:
        moved = [one for one in self.seen if self._is_noticed(one)][:NAMED_MAX]
        if not moved or self._lines.available(now) < 1:
            return None  # logged later, against what was logged last
        self._lines.take(now, 1)
        words = [one.format(self._logged.get(one.name)) for one in moved]
        self._logged |= {one.name: one.limit for one in moved}
        return ", ".join(words)

    def _is_noticed(self, one: SeenLimit) -> bool:
        last = self._logged.get(one.name)
        if last is None:
            return True
        return abs(one.limit - last) >= max(NOTICED_MIN, NOTICED_PART * last)


@dataclass(frozen=True, slots=True)
class RunNumbers:
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
    def of(cls, stats: Stats, outlook: Outlook) -> RunNumbers:
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
        return {**asdict(self), "paused": float(self.paused)}

    def format(self, done_per_second: float) -> Iterator[str]:
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
            yield f"{self.suspects:,} in quarantine after a crash"
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
        self._outage = Outage(log, clock, "The store cannot be read", "The store can be read again")
        self._looked_at = clock.monotonic()
        self._due_at = self._looked_at + every_seconds if every_seconds > 0 else float("inf")
        self._last: RunNumbers | None = None
        self._refusals = SeenRefusals(run_id)
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
        """Log the line if it is due and the answers are there; True if something was logged."""
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
            self._outage.began(error)
            self._due_at = now + self._every_seconds
            return False
        stats, outlook = self._stats, self._outlook
        if stats is None or outlook is None or workers is None:
            return False  # the next tick looks again
        self._stats = self._outlook = None
        self._due_at = now + self._every_seconds
        return self._look(stats, outlook, workers, now)

    async def run(self) -> None:
        """Log the line again and again, on a loop, until it is cancelled."""
        while self._every_seconds > 0:
            await self._clock.sleep(self._every_seconds)
            try:
                stats = await self._ask_for_stats()
                outlook = await self._ask_for_outlook()
                workers = await self._ask_for_workers()
            except StoreError as error:
                self._outage.began(error)
            else:
                self._look(stats, outlook, workers, self._clock.monotonic())

    def _look(self, stats: Stats, outlook: Outlook, workers: list[WorkerView], now: float) -> bool:
        self._outage.ended()
        numbers = RunNumbers.of(stats, outlook)
        rate = (numbers.done - self._done_before) / max(now - self._looked_at, 0.001)
        self._looked_at, self._done_before = now, numbers.done
        if numbers == self._last and self._silent < SILENT_MAX:
            self._silent += 1
            return False
        self._last, self._silent = numbers, 0
        alive = responsive_workers(workers, is_gone)
        limits = format_limits(seen_limits(alive, self._refusals.of_gone(alive)))
        self._log(numbers, rate, stats.oldest_ready_seconds, limits)
        return True

    def _log(self, found: RunNumbers, rate: float, oldest: float | None, limits: list[str]) -> None:
        words = list(found.format(rate))
        numbers = {**found.numbers(), "done_per_second": rate}
        if oldest is not None:
            words.append(f"oldest ready {oldest:,.0f} s")
            numbers["oldest_ready_seconds"] = oldest
        log.info("%s.", ", ".join([*words, *limits]))
        kind = SchedulerEventKind.SCHEDULER_HEALTH_SNAPSHOT
        self.events.emit(kind, Correlation(self._run_id), numbers=numbers)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.2g}"

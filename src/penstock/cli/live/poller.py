# SPDX-License-Identifier: Apache-2.0
"""Polls the store for the snapshot of a run without blocking, and derives alerts from it.

Four reads once a second, one after the other; none is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from penstock.cli.render.throughput import Throughput, ThroughputMeter
from penstock.clock import MICROSECONDS, Clock
from penstock.model.job import JobState, WorkerId
from penstock.model.lease import JobRef
from penstock.model.plan import LevelStates, PlanRow, keeper_of
from penstock.model.schedule import UnitView
from penstock.model.spending import Balance
from penstock.model.views import Outlook, Stats, WorkerView
from penstock.model.worker import UnresponsiveWorker, unresponsive_workers
from penstock.observe.live import (
    BuildView,
    ProviderLine,
    RunSnapshot,
    Units,
    UnitTroubles,
    run_snapshot,
)
from penstock.process_identity import is_gone
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.stores.store_future import Question, Reply

PAGE = 500  # units of one poll
POLL_SECONDS = 1.0  # workers write no more often


class RunAlerts:
    """Owns which providers and workers were reported as down: each change is reported once."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._silent: set[WorkerId] = set()

    def new_in(self, snapshot: RunSnapshot) -> Iterator[str]:
        """What has changed since the last snapshot, as sentences without a full stop."""
        yield from self._unresponsive_workers(snapshot.silent)
        yield from self._providers_down(snapshot.providers)

    def _unresponsive_workers(self, silent: Iterable[UnresponsiveWorker]) -> Iterator[str]:
        for one in silent:
            if one.worker not in self._silent:
                self._silent.add(one.worker)
                yield (
                    f"Worker {one.name} no longer answers; {counted(one.jobs, 'job')} that it "
                    f"holds can be taken back in {one.lease_seconds:,.0f} s, when its lease ends"
                )

    def _providers_down(self, lines: Iterable[ProviderLine]) -> Iterator[str]:
        for line in lines:
            live = line.live
            if line.down and line.name not in self._down:
                self._down.add(line.name)
                yield (
                    f"{line.name} is down ({live.failed_in_row:,} failures in a row); it is probed "
                    "now and then, and its jobs wait uncharged"
                )
            elif line.name in self._down and not live.failed_in_row:
                self._down.discard(line.name)
                yield f"{line.name} has recovered"


class BuildPoller:
    """Owns the progress of the plan of a run, or of a schedule of a daemon; there may be none."""

    def __init__(self, store: Store, run_id: str | None) -> None:
        """Nothing was asked yet; without a run: the newest plan of a schedule, as long as it is
        open.
        """
        self._store = store
        self._run_id = run_id
        self._plan: PlanRow | None = None
        self._plans = Question(store.open_plans)
        self._levels: Question[list[LevelStates]] = Question(self._ask)
        self.view: BuildView | None = None

    def _ask(self) -> Reply[list[LevelStates]]:
        return self._store.plan_states("" if self._plan is None else self._plan.id)

    def poll(self, wait_seconds: float = 0.0) -> None:
        """Take the answers that have arrived."""
        plans = None
        if self._plan is None or self._run_id is None:
            plans = self._plans.answer(wait_seconds)
        if plans is not None:
            before, self._plan = self._plan, next(filter(self._is_wanted, plans), None)
            if before is None or self._plan is None or before.id != self._plan.id:
                self._levels.forget()
        if self._plan is None:
            self.view = None
            return
        levels = self._levels.answer(wait_seconds)
        if levels is not None:
            self.view = BuildView.of(self._plan, levels)

    def _is_wanted(self, plan: PlanRow) -> bool:
        if self._run_id is None:
            return keeper_of(plan.run_id) is not None
        return plan.run_id == self._run_id

    def poll_again(self, wait_seconds: float) -> None:
        """Poll for an answer that is not older than this call."""
        self._levels.forget()
        self.poll(wait_seconds)


class UnitPoller:
    """Owns a walk over all units, a page at each poll, and the result of the last whole walk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._question = Question(self._ask)
        self._after = ""
        self._sum = UnitTroubles()
        self.found = UnitTroubles()

    def _ask(self) -> Reply[list[UnitView]]:
        return self._store.units(None, self._after, PAGE)

    def poll(self, now_at: int) -> None:
        """Take the next page, if it has arrived."""
        page = self._question.answer()
        if page is None:
            return
        self._sum += UnitTroubles.of(page, now_at)
        self._after = page[-1].key if len(page) == PAGE else ""
        if not self._after:
            self.found, self._sum = self._sum, UnitTroubles()


class RunPoller:
    """Owns the last snapshot of a run, and when the next one is due."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        clock: Clock,
        *,
        daemon: bool = False,
        build: bool = False,
    ) -> None:
        self._run_id = run_id
        self._clock = clock
        self.daemon = daemon  # serves schedules
        self.build = build  # works on one plan
        self._next_at = clock.monotonic()
        self._meter = ThroughputMeter(self._next_at)
        self._stats_question = Question(store.stats)
        self._outlook_question = Question(lambda: store.outlook(WorkerId(""), run_id))
        self._workers_question = Question(store.workers)
        self._balances_question = Question(lambda: store.balances([run_id]))
        self._stats: Stats | None = None
        self._outlook: Outlook | None = None
        self._workers: list[WorkerView] | None = None
        self._silent = UnresponsiveHolders(store)
        self._unit_poller = UnitPoller(store)
        self._build_poller = BuildPoller(store, run_id if build else None)
        self.workers: list[WorkerView] = []  # that answer, by the last snapshot; of others too
        self.snapshot: RunSnapshot | None = None
        self.throughput: Throughput | None = None

    def tick(self, wait_seconds: float = 0.0) -> bool:
        """Continue polling, if it is due; True if there is a new snapshot."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return False
        if self._stats is None:
            self._stats = self._stats_question.answer(wait_seconds)
        if self._stats is not None and self._outlook is None:
            self._outlook = self._outlook_question.answer(wait_seconds)
        if self._outlook is not None and self._workers is None:
            self._workers = self._workers_question.answer(wait_seconds)
        if self._stats is None or self._outlook is None or self._workers is None:
            return False
        balances = self._balances_question.answer(wait_seconds)
        if balances is None:
            return False
        if self.build or (self.daemon and self._stats.units):
            self._build_poller.poll(wait_seconds)
        silent = self._silent.poll(self._workers)
        self._take(self._stats, self._outlook, self._workers, balances, silent)
        self._stats = self._outlook = self._workers = None
        self._next_at = now + POLL_SECONDS
        return True

    def soon(self) -> None:
        """Poll again at once, after a command that changes the queue."""
        self._next_at = self._clock.monotonic()

    def throughput_of(self, stats: Stats, own: Mapping[JobState, int]) -> Throughput:
        """The throughput by fresh counts; `own` are the ends of this run."""
        return self._meter.measure(
            stats.states,
            self._clock.monotonic(),
            paused=stats.paused,
            all_due_in=self._all_due_in(stats),
            own=own,
        )

    def build_view(self, wait_seconds: float) -> BuildView | None:
        """The progress of its build by fresh counts; None: there is none, or it is not planned."""
        if not self.build:
            return None
        self._build_poller.poll_again(wait_seconds)
        return self._build_poller.view

    def units(self, stats: Stats) -> Units | None:
        """The units of schedules by fresh counts; None: there are none to serve."""
        return Units.of(stats, self._unit_poller.found) if self.daemon else None

    def _take(
        self,
        stats: Stats,
        outlook: Outlook,
        workers: list[WorkerView],
        balances: list[Balance],
        silent: list[UnresponsiveWorker],
    ) -> None:
        now_at = round(self._clock.now() * MICROSECONDS)
        if self.daemon and stats.units:
            self._unit_poller.poll(now_at)
        build = self._build_poller.view
        if build is not None and self.build:
            stats, outlook = build.stats_of(stats), build.outlook_of(outlook)
        self.snapshot = run_snapshot(
            stats,
            outlook,
            workers,
            balances,
            self._run_id,
            now_at,
            silent,
            self.units(stats),
            build,
        )
        self.throughput = self.throughput_of(stats, outlook.ended_in_run)
        unheard = {silence.worker for silence in silent}
        self.workers = [view for view in workers if view.id not in unheard]

    def _all_due_in(self, stats: Stats) -> float | None:
        """The seconds until the first delayed job is due, if nothing else is left."""
        states, due = stats.states, stats.next_due_at
        ready = states.get(JobState.QUEUED, 0) - stats.delayed
        if due is None or ready > 0 or states.get(JobState.IN_PROGRESS, 0):
            return None
        return max(due / MICROSECONDS - self._clock.now(), 0.0)


class UnresponsiveHolders:
    """Owns how many jobs are held by workers that no longer answer; that does not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[WorkerId, int] = {}  # jobs that each of them holds
        self._asked: tuple[WorkerId, Question[list[JobRef]]] | None = None

    def poll(self, workers: list[WorkerView]) -> list[UnresponsiveWorker]:
        """The workers that no longer answer; how many jobs one holds is asked for once."""
        silent = unresponsive_workers(workers, is_gone)
        self._counts = {one: count for one, count in self._counts.items() if one in silent}
        self._ask(silent)
        return [
            msgspec.structs.replace(silence, jobs=self._counts.get(worker, silence.jobs))
            for worker, silence in silent.items()
        ]

    def _ask(self, silent: Iterable[WorkerId]) -> None:
        worker = next((one for one in silent if one not in self._counts), None)
        if worker is None:
            self._asked = None
            return
        if self._asked is None or self._asked[0] != worker:
            self._asked = worker, Question(lambda: self._store.leases(worker))
        held = self._asked[1].answer()
        if held is not None:
            self._counts[worker] = len(held)

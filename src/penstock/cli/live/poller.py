# SPDX-License-Identifier: Apache-2.0
"""How does whoever shows a run learn how it stands, without standing still for it?

Four questions to the store once a second, one after the other; none is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from penstock.cli.render.throughput import Throughput, ThroughputMeter
from penstock.clock import MICROSECONDS, Clock
from penstock.model.job import JobState, WorkerId
from penstock.model.lease import JobRef
from penstock.model.plan import LevelStates, PlanRow
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
from penstock.observe.phrases import counted
from penstock.process_identity import is_gone
from penstock.stores.protocol import Store
from penstock.stores.store_future import Question, Reply


class RunAlerts:
    """Owns what was told last of each provider and worker: each change is told once."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._silent: set[WorkerId] = set()

    def of(self, snapshot: RunSnapshot) -> Iterator[str]:
        """What has changed since the last call, as sentences without their end."""
        yield from self._of_workers(snapshot.silent)
        yield from self._of_providers(snapshot.providers)

    def _of_workers(self, silent: Iterable[UnresponsiveWorker]) -> Iterator[str]:
        for one in silent:
            if one.worker not in self._silent:
                self._silent.add(one.worker)
                yield (
                    f"Worker {one.name} no longer answers; {counted(one.jobs, 'job')} that it "
                    f"holds can be taken back in {one.lease_seconds:,.0f} s, when its lease ends"
                )

    def _of_providers(self, lines: Iterable[ProviderLine]) -> Iterator[str]:
        for line in lines:
            live = line.live
            if line.down and line.name not in self._down:
                self._down.add(line.name)
                yield (
                    f"{line.name} is down ({live.failed_in_row:,} failures in a row); it is tried "
                    "now and again, and its jobs wait uncharged"
                )
            elif line.name in self._down and not live.failed_in_row:
                self._down.discard(line.name)
                yield f"{line.name} answers again"


class BuildPoller:
    """Owns what is known of the plan that a run works on; it may not be there yet."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._plan: PlanRow | None = None
        self._plans = Question(store.open_plans)
        self._levels: Question[list[LevelStates]] = Question(self._ask)
        self.view: BuildView | None = None

    def _ask(self) -> Reply[list[LevelStates]]:
        return self._store.plan_states("" if self._plan is None else self._plan.id)

    def look(self, wait_seconds: float = 0.0) -> None:
        """Go on, as far as questions are answered by now."""
        if self._plan is None:
            plans = self._plans.answer(wait_seconds) or ()
            self._plan = next((plan for plan in plans if plan.run_id == self._run_id), None)
        if self._plan is None:
            return
        levels = self._levels.answer(wait_seconds)
        if levels is not None:
            self.view = BuildView.of(self._plan, levels)

    def look_again(self, wait_seconds: float) -> None:
        """The same with an answer to what is asked now."""
        self._levels.forget()
        self.look(wait_seconds)


PAGE = 500  # units of one look


class UnitPoller:
    """Owns a walk over all units, a page at each look, and what the last whole one has found."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._question = Question(self._ask)
        self._after = ""
        self._sum = UnitTroubles()
        self.found = UnitTroubles()

    def _ask(self) -> Reply[list[UnitView]]:
        return self._store.units(None, self._after, PAGE)

    def look(self, now_at: int) -> None:
        """Go on, if the last question is answered."""
        page = self._question.answer()
        if page is None:
            return
        self._sum += UnitTroubles.of(page, now_at)
        self._after = page[-1].key if len(page) == PAGE else ""
        if not self._after:
            self.found, self._sum = self._sum, UnitTroubles()


LOOK_SECONDS = 1.0  # between two looks: workers write no more often


class RunPoller:
    """Owns the last snapshot of a run, and when the next is made."""

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
        self._pace = ThroughputMeter(self._next_at)
        self._stats_question = Question(store.stats)
        self._outlook_question = Question(lambda: store.outlook(WorkerId(""), run_id))
        self._workers_question = Question(store.workers)
        self._balances_question = Question(lambda: store.balances([run_id]))
        self._stats: Stats | None = None
        self._outlook: Outlook | None = None
        self._workers: list[WorkerView] | None = None
        self._silent = SilentWorkers(store)
        self._round = UnitPoller(store)
        self._build_round = BuildPoller(store, run_id)
        self.workers: list[WorkerView] = []  # that answer, by the last snapshot; of others too
        self.snapshot: RunSnapshot | None = None
        self.pace: Throughput | None = None

    def tick(self, wait_seconds: float = 0.0) -> bool:
        """Go on looking, if it is time to; True if there is a new snapshot."""
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
        if self.build:
            self._build_round.look(wait_seconds)
        silent = self._silent.look(self._workers)
        self._take(self._stats, self._outlook, self._workers, balances, silent)
        self._stats = self._outlook = self._workers = None
        self._next_at = now + LOOK_SECONDS
        return True

    def soon(self) -> None:
        """Something was changed on purpose: look again at once."""
        self._next_at = self._clock.monotonic()

    def paced(self, stats: Stats, own: Mapping[JobState, int]) -> Throughput:
        """How fast it goes, by fresh counts; `own` are the ends of this run."""
        return self._pace.look(
            stats.states,
            self._clock.monotonic(),
            paused=stats.paused,
            all_due_in=self._all_due_in(stats),
            own=own,
        )

    def of_build(self, wait_seconds: float) -> BuildView | None:
        """How far its build is, by fresh counts; None: there is none, or it is not planned."""
        if self.build:
            self._build_round.look_again(wait_seconds)
        return self._build_round.view

    def units(self, stats: Stats) -> Units | None:
        """How the units of schedules stand, by fresh counts; None: there are none to serve."""
        return Units.of(stats, self._round.found) if self.daemon else None

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
            self._round.look(now_at)
        build = self._build_round.view
        if build is not None:
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
        self.pace = self.paced(stats, outlook.ended_in_run)
        unheard = {silence.worker for silence in silent}
        self.workers = [view for view in workers if view.id not in unheard]

    def _all_due_in(self, stats: Stats) -> float | None:
        """If nothing but delayed jobs is left: how long until the first of them."""
        states, due = stats.states, stats.next_due_at
        ready = states.get(JobState.QUEUED, 0) - stats.delayed
        if due is None or ready > 0 or states.get(JobState.IN_PROGRESS, 0):
            return None
        return max(due / MICROSECONDS - self._clock.now(), 0.0)


class SilentWorkers:
    """Owns what is known of workers that no longer answer: what they hold does not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[WorkerId, int] = {}  # jobs that each of them holds
        self._asked: tuple[WorkerId, Question[list[JobRef]]] | None = None

    def look(self, workers: list[WorkerView]) -> list[UnresponsiveWorker]:
        """Those of the workers that no longer answer; how much one holds is asked for once."""
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

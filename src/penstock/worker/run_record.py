# SPDX-License-Identifier: Apache-2.0
"""What does a worker write down of its part of a run, and when?

As soon as it has a name, so that the run is known whatever becomes of it; then after a second, two,
four, eight, and every ten if anything is new; and at its end. So whoever is killed takes little
with it. A store that cannot take it hurts nobody: the next word has everything that this one had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from penstock.clock import MICROSECONDS, Clock
from penstock.model.budget_stop import BudgetStop
from penstock.model.job import WorkerId
from penstock.model.run import GATES_SHOWN, GateSeconds, LimitKind, RunDocument
from penstock.model.run_part import RunPart
from penstock.stores.journal import RunStore
from penstock.worker.bottleneck import Limiting
from penstock.worker.capacity_watch import CapacityWatch
from penstock.worker.config import Totals, WorkerConfig
from penstock.worker.provider_run import ProviderRun
from penstock.worker.scheduler import AsyncTaskScheduler

FIRST_SECONDS = 1.0  # between the first two words of a worker that has something new to say
SAVE_SECONDS = 10.0  # the most between two; each time it is twice as long
END_SECONDS = 2.0  # for its last word

log = logging.getLogger("penstock.worker")


class RunRecord:
    """Owns what one worker tells of its run. Belongs to one loop."""

    def __init__(
        self,
        config: WorkerConfig,
        slots: Mapping[str, int],
        store: RunStore,
        clock: Clock,
        limiting: Limiting,
        scheduler: AsyncTaskScheduler,
        capacity: CapacityWatch,
        totals: Totals,
        providers: ProviderRun | None,
    ) -> None:
        self._config = config
        self._slots = slots  # of the kinds that its tasks run on
        self._store = store
        self._clock = clock
        self._limiting = limiting
        self._scheduler = scheduler
        self._capacity = capacity
        self._totals = totals
        self._providers = providers
        self._began_at = self._now()
        self._next_monotonic = clock.monotonic()
        self._pause_seconds = FIRST_SECONDS
        self._worker = WorkerId("")  # its name now
        #: A lost lease makes a worker somebody else; its part of the run goes on under one name.
        self._name = WorkerId("")
        self._is_saving = False
        self._said: object = None
        self._cpu_began = clock.cpu()
        self.late_seconds = 0.0  # of the loop
        self.stops: tuple[BudgetStop, ...] = ()  # the budgets that end it

    def is_due(self, worker: WorkerId) -> bool:
        """Is it time, and is there anything that was not told yet?"""
        now = self._clock.monotonic()
        if now < self._next_monotonic or self._is_saving or not worker:
            return False
        self._next_monotonic = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, SAVE_SECONDS)
        return self._news() != self._said

    async def save(self, worker: WorkerId, *, over: bool = False) -> None:
        """Write it down; whatever goes wrong is told, and hurts nobody."""
        self._name, self._worker = self._name or worker, worker or self._worker
        if not self._name:
            return  # it never was anybody
        self._is_saving = True
        try:
            news, document = self._news(), self.document(over=over)
            part = RunPart(self._config.run_id, self._name, document.told_at, document.encoded())
            await self._store.save_run(part)
            self._said = news
        except Exception as error:
            log.debug("The record of this run was not saved: %r", error)
        finally:
            self._is_saving = False

    async def end(self, worker: WorkerId) -> None:
        """The last word, if the store takes it soon."""
        try:
            await asyncio.wait_for(self.save(worker, over=True), END_SECONDS)
        except TimeoutError:
            log.debug("The last word of this worker about its run was not waited for.")

    def document(self, *, over: bool = False) -> RunDocument:
        """Everything up to now."""
        totals, times = self._totals, self._scheduler.gate_times()
        longest = sorted(times.gates.items(), key=lambda gate: -gate[1].task_seconds)
        models = () if self._providers is None else self._providers.figures()
        return RunDocument(
            began_at=self._began_at,
            told_at=self._now(),
            over=over,
            within_seconds=max(self._next_monotonic - self._clock.monotonic(), 0.0),
            worker=self._worker,
            place=self._config.place,
            solo=self._config.solo,
            stops=self.stops,
            causes=self._limiting.causes(),
            doing=self._limiting.doing(),
            ended=totals.ended,
            refused=totals.refused,
            retries=totals.retries,
            put_back=totals.put_back,
            cpu_seconds=self._clock.cpu() - self._cpu_began,
            late_seconds=self.late_seconds,
            slots=dict(self._slots),
            models=models,
            gates={
                name: GateSeconds(gate.seconds, gate.task_seconds)
                for name, gate in longest[:GATES_SHOWN]
            },
            used=dict(times.used),
            capacity=self._capacity.plan(models),
        )

    def _news(self) -> object:
        """What must differ for another word to be worth a write; time alone does not."""
        charged = sum(c.seconds for c in self._limiting.causes() if c.kind is not LimitKind.IDLE)
        totals = self._totals
        return charged, totals.ended, totals.refused, totals.retries, totals.put_back

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)

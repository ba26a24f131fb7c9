# SPDX-License-Identifier: Apache-2.0
"""What does a worker keep of its run for later: what limited it, how much there was at once?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.clock import Clock
from penstock.model.budget_stop import BudgetStop
from penstock.model.job import WorkerId
from penstock.model.lease import JobEnd, JobFailure, JobRef
from penstock.stores.protocol import Store
from penstock.worker.attempt import Attempt
from penstock.worker.background import Background
from penstock.worker.bottleneck import Limiting
from penstock.worker.bottleneck_probe import LimitingLook
from penstock.worker.capacity_watch import CapacityWatch
from penstock.worker.completer import AckBuffer
from penstock.worker.config import Totals, WorkerConfig
from penstock.worker.drain import Drain
from penstock.worker.executor import Slots
from penstock.worker.lease_loop import Leasing
from penstock.worker.prefetch import JobWindow
from penstock.worker.provider_run import ProviderRun
from penstock.worker.run_record import RunRecord
from penstock.worker.status import StatusRow


class RunWatch:
    """Hears of a worker's turns, ticks and ends. Belongs to one loop, and steers nothing."""

    def __init__(
        self,
        config: WorkerConfig,
        kinds: Mapping[str, str],  # task → the kind of slot that it runs on
        store: Store,
        clock: Clock,
        window: JobWindow,
        slots: Slots,
        acks: AckBuffer,
        leasing: Leasing,
        drain: Drain,
        background: Background,
        status: StatusRow,
        totals: Totals,
        wake: Callable[[], None],
        providers: ProviderRun | None,
    ) -> None:
        self._slots = slots
        self._status = status
        self._background = background
        self._totals = totals
        self._hears_requests = providers is not None
        self._limiting = Limiting(clock.monotonic) if providers is None else providers.limiting
        self._look = LimitingLook(
            self._limiting,
            config.run_id,
            kinds,
            store,
            clock,
            window,
            slots,
            acks,
            leasing,
            drain,
            background,
            wake,
            None if providers is None else providers.gate_of,
        )
        scheduler = window.scheduler
        self._capacity = CapacityWatch(config.capacity, scheduler.controller, providers)
        used = {kind: config.slots[kind] for kind in dict.fromkeys(kinds.values())}
        self._record = RunRecord(
            config,
            used,
            store,
            clock,
            self._limiting,
            scheduler,
            self._capacity,
            totals,
            providers,
        )

    def turned(self, goes_on: bool) -> None:
        """A turn has started what it could; `goes_on`: it was allowed to."""
        self._look.look(goes_on)
        self._capacity.note_turn(len(self._slots.running))

    def ticked(self, worker: WorkerId) -> None:
        """The worker has looked at itself."""
        self._capacity.note_status(self._status.looked)
        if self._record.is_due(worker):
            self._background.spawn(self._record.save(worker))

    def was_late(self, seconds: float) -> None:
        """The loop came so much later than it was to."""
        self._record.late_seconds += max(seconds, 0.0)

    def ended(self, attempt: Attempt, verdict: JobEnd | JobFailure | JobRef | None) -> None:
        """An attempt has ended, or was given up."""
        if type(verdict) is JobFailure:
            if verdict.refused_by is None:
                self._totals.retries += 1
            else:
                self._totals.put_back += 1
        if self._hears_requests:
            self._limiting.left(attempt.ref)

    async def end(self, worker: WorkerId, stops: Sequence[BudgetStop]) -> None:
        """The worker ends: its last word, if the store takes it soon."""
        self._record.stops = tuple(stops)
        await self._record.end(worker)

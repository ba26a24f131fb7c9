# SPDX-License-Identifier: Apache-2.0
"""Store access of a supervisor: opening, heartbeat, dead workers, and how the run stands.

The store is opened where the first worker says it is, as soon as it can be reached.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from penstock.builds.locks import LockHeartbeat, format_lost_locks
from penstock.clock import Clock
from penstock.errors import (
    TRANSIENT,
    BuildLost,
    PenstockError,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreUnavailable,
)
from penstock.ids import IdSource
from penstock.model.job import WorkerId
from penstock.model.plan import LockView
from penstock.model.views import Outlook
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.stores.store_future import Question, aside
from penstock.supervisor import protocol
from penstock.supervisor.dead_workers import DeadWorker, DeadWorkers
from penstock.supervisor.heartbeat import LeaseHeartbeat
from penstock.worker.log_lines import StatisticsLine
from penstock.worker.slot_table import SlotTable

REPORT_SECONDS = 10.0  # how long the end of a run waits for reports of dead workers
UNREACHABLE_SECONDS = 1.0  # the same while the store is unreachable
ASK_SECONDS = 0.25  # for the last word on the run, before it is asked again
READ_FAILS = "The store cannot be read"

OpenStore = Callable[[protocol.Hello], Store]

log = logging.getLogger("penstock.supervisor")


class StoreAccess:
    """Owns the store of a run, with what renews leases and reports dead workers to it."""

    def __init__(
        self,
        run_id: str,
        open_store: OpenStore,
        tables: Callable[[], list[SlotTable | None]],
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._run_id = run_id
        self._open_store = open_store
        self._tables = tables
        self._clock = clock
        self._ids = ids
        self._retry = StoreRetry(log, clock, ids.random)
        self._hello: protocol.Hello | None = None
        self._opening: Question[Store] | None = None
        self._dead_workers: DeadWorkers | None = None
        self._beat: LeaseHeartbeat | None = None
        self._locks: LockHeartbeat | None = None
        self._lost_locks: str | None = None  # why, if somebody else has them
        self._locked: tuple[str, ...] = ()  # the datasets of those locks
        self._statistics: StatisticsLine | None = None
        self.store: Store | None = None
        self.outlook: Question[Outlook] | None = None
        self.suspects = 0  # jobs that wait in quarantine, as was last seen

    @property
    def unreachable(self) -> bool:
        """True while it cannot be reached."""
        return self._retry.unreachable

    def meet(self, hello: protocol.Hello) -> None:
        """The first worker has told where it is."""
        self._hello = hello
        open_store = partial(self._open_store, hello)
        self._opening = Question(lambda: aside(open_store))

    def open(self, wait_seconds: float) -> bool:
        """Open it, if it can be reached; True if that was just now.

        Raises:
            PenstockError: it will never be.
        """
        hello = self._hello
        if self._opening is None or hello is None:
            return False
        try:
            store = self._opening.answer(wait_seconds)
        except StoreUnavailable as error:
            self._retry.refused(READ_FAILS, error)
            return False
        except PenstockError:
            self._opening = None
            raise
        if store is None:
            return False
        self._opening = None
        self.store = store
        self.outlook = Question(lambda: store.outlook(WorkerId(""), self._run_id))
        self._dead_workers = DeadWorkers(store, self._clock, self._ids)
        self._beat = LeaseHeartbeat(
            store, self._tables, self._clock, hello.lease_ttl_seconds, hello.beat_seconds
        )
        self._beat.start()
        self._statistics = StatisticsLine(
            hello.statistics_seconds, self._run_id, store, self._clock
        )
        return True

    def keep_locks(self, names: Sequence[str]) -> None:
        """The run has the locks of these datasets from now on: renew them until the end."""
        hello, store = self._hello, self.store
        if self._locks is not None or hello is None or store is None:
            return
        self._locks = LockHeartbeat(
            store,
            self._run_id,
            self._clock,
            hello.lease_ttl_seconds,
            hello.beat_seconds,
            has_locks=lambda: self._lost_locks is None,
            lost=partial(self._lose_locks, store, frozenset(names)),
        )
        self._locked = tuple(names)
        self._locks.start()

    def _lose_locks(self, store: Store, names: Collection[str]) -> None:
        locks: list[LockView] = []
        with contextlib.suppress(PenstockError, TimeoutError):
            locks = store.locks().result(ASK_SECONDS)
        self._lost_locks = format_lost_locks(locks, names, self._run_id)

    def look(self, show: Callable[[], None]) -> None:
        """Learn and show how the run stands; an unreachable store is waited for.

        Raises:
            StoreFailed, StoreCorrupt: it cannot be used any more.
            BuildLost: somebody else has the locks of the run.
        """
        if self._lost_locks is not None:
            raise BuildLost(self._lost_locks)
        try:
            outlook = None if self.outlook is None else self.outlook.answer()
            if outlook is not None:
                self.suspects = outlook.suspects
                self._retry.answered(READ_FAILS)
            show()
            if self._statistics is not None:
                self._statistics.tick()
        except (StoreFailed, StoreCorrupt):
            raise
        except StoreError as error:
            self._retry.refused(READ_FAILS, error)
        if self._beat is not None and self._beat.failed is not None:
            raise self._beat.failed

    def last_outlook(self, is_over: Callable[[float], bool]) -> Outlook | None:
        """What came of the run; an unreachable store is waited for.

        Args:
            is_over: waits so many seconds, and says whether nobody wants to know any more.
        """
        if self.outlook is not None:
            self.outlook.forget()  # it may have been asked before the last job ended
        delay = self._retry.delay()
        while self.outlook is not None:
            wait_seconds = 0.0
            try:
                outlook = self.outlook.answer(ASK_SECONDS)
            except TRANSIENT as error:
                self._retry.refused(READ_FAILS, error)
                wait_seconds = delay.next_seconds()
            else:
                if outlook is not None:
                    return outlook
            if is_over(wait_seconds):
                break
        return None

    def report_dead(self, dead: DeadWorker) -> None:
        """Give back what a worker held."""
        if self._dead_workers is not None:
            self._dead_workers.report(dead)

    def finish_reports(self) -> None:
        """Wait until all dead workers are reported; not long, if the store is unreachable."""
        if self._dead_workers is not None:
            self._dead_workers.finish(UNREACHABLE_SECONDS if self.unreachable else REPORT_SECONDS)

    def let_locks_go(self) -> None:
        """Nothing is built under the locks of the run; if it cannot be told, our end tells it."""
        if self.store is not None and self._locked:
            seconds = UNREACHABLE_SECONDS if self.unreachable else REPORT_SECONDS
            with contextlib.suppress(PenstockError, TimeoutError):
                self.store.release_locks(self._run_id, self._locked).result(seconds)

    def stop_heartbeats(self) -> None:
        if self._locks is not None:
            self._locks.stop()
        if self._beat is not None:
            self._beat.stop()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

# SPDX-License-Identifier: Apache-2.0
"""Locks of a build: who holds them, their heartbeat, and what is said when they are lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.model.plan import LockView, keeper_of
from penstock.stores.protocol import LockStore
from penstock.stores.retry import Outage
from penstock.worker.heartbeat import RepeatingThread

NAMES_SHOWN = 5  # of datasets, in one sentence

log = logging.getLogger("penstock.build")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The run that holds the locks of a build."""

    run_id: str
    mark: str  # of the process that keeps them alive
    ttl_seconds: float  # how long they live without a heartbeat
    unit: str | None = None  # of a schedule: its ticks give way to later ones, by the mark


def format_holders(locks: Sequence[LockView]) -> str:
    """The holders of locks and what they build, as a clause."""
    runs: dict[str, list[str]] = {}
    for lock in locks:
        runs.setdefault(lock.run_id, []).append(lock.name)
    said = []
    for run_id, names in runs.items():
        shown = ", ".join(names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        who = keeper_of(run_id) or run_id
        said.append(f"{shown}{more} {'is' if len(names) == 1 else 'are'} being built by {who}")
    return ", ".join(said)


def format_lost_locks(locks: Sequence[LockView], names: Collection[str], run_id: str) -> str:
    """Why a run stops that had the locks of these datasets, and has them no more."""
    others = [one for one in locks if one.name in names and one.run_id != run_id]
    who = format_holders(others) if others else "nobody holds them now"
    return (
        f"The locks of this build were lost, because they were not renewed in time: {who}. "
        "Nothing more was changed; the same build continues once they are free."
    )


class LockHeartbeat(RepeatingThread):
    """Renews the locks of one run, from when they are taken until they are let go."""

    def __init__(
        self,
        store: LockStore,
        run_id: str,
        clock: Clock,
        ttl_seconds: float,
        beat_seconds: float,
        has_locks: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        super().__init__("penstock-locks", beat_seconds)
        self._store = store
        self._run_id = run_id
        self._ttl_seconds = ttl_seconds
        self._has_locks = has_locks
        self._lost = lost
        self._outage = Outage(
            log, clock, "The locks were not renewed", "The locks are renewed again"
        )

    def run_once(self) -> None:
        """Renew once; an unreachable store is asked again, and nobody can take them meanwhile."""
        if not self._has_locks():
            return
        try:
            ours = self._store.beat_locks(self._run_id, self._ttl_seconds).result(self._ttl_seconds)
        except (PenstockError, TimeoutError) as error:
            self._outage.began(error)
            return
        self._outage.ended()
        if not ours and self._has_locks():
            self._lost()

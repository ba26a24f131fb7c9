# SPDX-License-Identifier: Apache-2.0
"""The core of a worker: what leases, runs and acknowledges, as others are given it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.worker.accounts import AccountHold
from penstock.worker.budgets import BudgetHold
from penstock.worker.completer import Completer
from penstock.worker.drain import Drain
from penstock.worker.executor import JobExecutor
from penstock.worker.kind import ServedTask
from penstock.worker.lease_loop import LeaseLoop
from penstock.worker.parts import Totals, WorkerConfig, WorkerParts
from penstock.worker.prefetch import PrefetchWindow


@dataclass(frozen=True, slots=True)
class WorkerCore:
    """The parts of one worker that turn jobs into ends; observers only read them."""

    config: WorkerConfig
    parts: WorkerParts
    tasks: Mapping[str, ServedTask]
    window: PrefetchWindow
    executor: JobExecutor
    completer: Completer
    lease_loop: LeaseLoop
    drain: Drain
    hold: BudgetHold
    accounts: AccountHold
    totals: Totals

    @property
    def slot_kinds(self) -> dict[str, str]:
        """Of each task: the kind of slot that it runs on."""
        return {name: one.task.slot_kind for name, one in self.tasks.items()}

# SPDX-License-Identifier: Apache-2.0
"""The core of a worker, as its observers see it: what leases, runs and acknowledges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.clock import Clock
from penstock.definitions.task import Task
from penstock.stores.protocol import Store
from penstock.worker.attempt import TaskLimits
from penstock.worker.completer import Completer
from penstock.worker.drain import Drain
from penstock.worker.executor import JobExecutor
from penstock.worker.lease_loop import LeaseLoop
from penstock.worker.parts import Background, Totals, WorkerConfig
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.provider_run import ProviderRun


@dataclass(frozen=True, slots=True)
class WorkerCore:
    """The parts of one worker that turn jobs into ends; observers read them and change nothing."""

    config: WorkerConfig
    tasks: Mapping[str, tuple[Task[..., Any], TaskLimits]]
    store: Store
    clock: Clock
    window: PrefetchWindow
    executor: JobExecutor
    completer: Completer
    lease_loop: LeaseLoop
    drain: Drain
    background: Background
    totals: Totals
    wake: Callable[[], None]
    providers: ProviderRun | None

    @property
    def slot_kinds(self) -> dict[str, str]:
        """Of each task: the kind of slot that it runs on."""
        return {name: task.kind for name, (task, _) in self.tasks.items()}

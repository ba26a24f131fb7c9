# SPDX-License-Identifier: Apache-2.0
"""How long does one round through a scheduler's queue and its admission take?

The same loop drives all schedulers. Two clocks are read once per batch: the wall's and that of the
thread's CPU, which does not count while somebody else has the core. A batch has as many cycles as
fit into BATCH_SECONDS, so that a busy machine interrupts the batches of a fast scheduler as often
as those of a slow one. A percentile is one of batches. What a batch took out of the queue goes back
between two of them, so the queue is as long at the end as at the beginning. Cases that are compared
are a family and take turns, a few batches at a time: the speed of a machine changes within seconds.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.measuring import Answer, ProbeFailed, quantile
from benchmarks.peers.cases import Case, Question

BATCH_SECONDS = 2e-4
LARGEST_BATCH = 64  # cycles
LEAST_BATCHES = 10
BUDGET_SECONDS = 0.5  # for the batches of one case, once it has LEAST_BATCHES
VISIT_BATCHES = 100  # of one case, before it is the turn of the next: long enough for warm caches
WARM_UP = 64  # cycles before the clock counts; at least one of each group
TRIALS = 5  # single cycles that tell how many make a batch


Nanoseconds = tuple[int, int]  # by the wall, of the thread's CPU
Batch = Callable[[int], Nanoseconds]  # of so many cycles: what they took


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The verbs of one scheduler, bound to one queue and one controller."""

    enqueue: Callable[[Iterable[Any]], Sequence[Any]]  # the accepted ids
    select: Callable[[], Any]  # a selection with `item` and `queue_view`, or None
    acquire: Callable[[Any, Any], Any]  # of an item and the view: a lease
    commit: Callable[[Any], Any]  # of a selection: its item
    release: Callable[[Any], Any]  # of a lease: an answer that has `released`


class Driver(Protocol):
    """A module that knows one scheduler."""

    PACKAGE: str

    def open_scheduler(self, case: Case) -> tuple[Scheduler, list[Any]]:
        """A scheduler with the limits of the case, and the tasks to queue."""
        ...


def measure(driver: str, families: list[list[Answer]], batches: int) -> Answer:
    """Probe: measure cases with the driver of this name; those of one family take turns."""
    module: Any = importlib.import_module(f"benchmarks.peers.{driver}")
    found: list[Answer] = []
    for family in families:
        found += measure_in_turns(module, [Case.of(case) for case in family], batches)
    return {"version": importlib.metadata.version(module.PACKAGE), "cases": found}


def measure_in_turns(driver: Driver, cases: Sequence[Case], batches: int) -> list[Answer]:
    """p50 and p95 of at most so many batches of each case in microseconds, and of how many."""
    timed = [_Timed(driver, case) for case in cases]
    gc.collect()
    gc.freeze()  # what is queued is not looked at again and again
    try:
        while waiting := [case for case in timed if not case.is_done(batches)]:
            for case in waiting:
                case.visit(batches)
    finally:
        gc.unfreeze()
    return [case.answer() for case in timed]


class _Timed:
    """One case, ready to be timed, and what its batches took."""

    def __init__(self, driver: Driver, case: Case) -> None:
        scheduler, tasks = driver.open_scheduler(case)
        start = time.perf_counter()
        accepted = len(scheduler.enqueue(tasks))
        self._enqueue_us = (time.perf_counter() - start) / len(tasks) * 1e6
        _demand(accepted == len(tasks), "a task was not accepted")
        self._batch = _PREPARE[case.question](scheduler, case)
        once = min(self._batch(1)[1] for _ in range(TRIALS))
        self._size = max(1, min(LARGEST_BATCH, int(BATCH_SECONDS * 1e9 / once)))
        self._walls: list[float] = []
        self._cpus: list[float] = []
        self._seconds = 0.0

    def is_done(self, batches: int) -> bool:
        count = len(self._walls)
        return count >= batches or (count >= LEAST_BATCHES and self._seconds > BUDGET_SECONDS)

    def visit(self, batches: int) -> None:
        """Time some batches, so that there are at most so many in all: a turn uses tasks up."""
        start, size = time.perf_counter(), self._size
        for _ in range(min(VISIT_BATCHES, batches - len(self._walls))):
            wall, cpu = self._batch(size)
            self._walls.append(wall / size / 1e3)
            self._cpus.append(cpu / size / 1e3)
        self._seconds += time.perf_counter() - start

    def answer(self) -> Answer:
        return {
            "p50": statistics.median(self._walls),
            "p95": quantile(self._walls, 0.95),
            "cpu": statistics.median(self._cpus),
            "count": len(self._walls) * self._size,
            "enqueue": self._enqueue_us,
        }


def _now() -> Nanoseconds:
    return time.perf_counter_ns(), time.thread_time_ns()


def _since(start: Nanoseconds) -> Nanoseconds:
    wall, cpu = start
    return time.perf_counter_ns() - wall, time.thread_time_ns() - cpu


def _prepare_cycle(scheduler: Scheduler, case: Case) -> Batch:
    select, acquire = scheduler.select, scheduler.acquire
    commit, release = scheduler.commit, scheduler.release

    def batch(size: int) -> Nanoseconds:
        items, answers = [], []
        start = _now()
        for _ in range(size):
            selection = select()
            lease = acquire(selection.item, selection.queue_view)
            items.append(commit(selection))
            answers.append(release(lease))
        took = _since(start)
        _demand(all(answer.released for answer in answers), "a lease was not released")
        _demand(None not in items, "a selection was stale")
        _demand(len(scheduler.enqueue(items)) == size, "a task was not accepted again")
        return took

    for _ in range(max(WARM_UP, case.groups)):
        batch(1)
    return batch


def _prepare_turn(scheduler: Scheduler, case: Case) -> Batch:
    held = _fill(scheduler)
    before = len(held)

    def batch(size: int) -> Nanoseconds:
        start = _now()
        for _ in range(size):
            scheduler.release(held.popleft())
            held.extend(_fill(scheduler))
        took = _since(start)
        _demand(2 * len(held) >= before, "admission does not keep up with the releases")
        return took

    batch(WARM_UP)
    return batch


def _prepare_blocked(scheduler: Scheduler, case: Case) -> Batch:
    _demand(0 < len(_fill(scheduler)) < case.tasks, "nothing is blocked")
    select = scheduler.select

    def batch(size: int) -> Nanoseconds:
        start = _now()
        found = [select() for _ in range(size)]
        took = _since(start)
        _demand(found == [None] * size, "a blocked queue gave a task")
        return took

    batch(1)
    return batch


def _fill(scheduler: Scheduler) -> deque[Any]:
    """Admit until nothing is selected; the leases."""
    leases: deque[Any] = deque()
    while (selection := scheduler.select()) is not None:
        leases.append(scheduler.acquire(selection.item, selection.queue_view))
        _demand(scheduler.commit(selection) is not None, "a selection was stale")
    return leases


def _demand(met: bool, otherwise: str) -> None:
    if not met:
        raise ProbeFailed(f"The figures would mean nothing: {otherwise}.")


_PREPARE: dict[Question, Callable[[Scheduler, Case], Batch]] = {
    Question.CYCLE: _prepare_cycle,
    Question.TURN: _prepare_turn,
    Question.BLOCKED: _prepare_blocked,
}

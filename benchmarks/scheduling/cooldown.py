# SPDX-License-Identifier: Apache-2.0
"""Does a provider in cool-down slow another one down? In virtual time, so the figure is exact."""

from __future__ import annotations

from collections.abc import Hashable

from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling.virtual_graph import Course, run_graph
from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    ProviderAwareTaskAdmissionPolicy,
)
from penstock.clock import Clock
from penstock.model.request import PressureSnapshot
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec

SLOTS = 16
LIMIT = 64  # requests in flight of each provider: not what binds here
CALL_SECONDS = 0.5
THROUGHPUT = 0.95


class FakePressure:
    """Provider A cools down until a moment; B never does."""

    def __init__(self, clock: Clock, until_seconds: float) -> None:
        self._clock = clock
        self._until = until_seconds

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        rest = self._until - self._clock.monotonic() if key == "a" else 0.0
        return PressureSnapshot(LIMIT, cooldown_seconds=max(0.0, rest))


def run(counts: dict[str, int], cool_until_seconds: float) -> Course:
    """So many calls of each provider."""
    nodes: dict[str, list[str]] = {}
    for provider, count in counts.items():
        nodes |= {f"{provider}.{number}": [] for number in range(count)}

    def to_task(name: str) -> SchedulableTask:
        provider = name.partition(".")[0]
        return SchedulableTask(
            name, None, TaskGroupSpec(provider), SchedulerResourceRequest(), provider
        )

    return run_graph(
        nodes,
        to_task,
        lambda _: CALL_SECONDS,
        SLOTS,
        lambda clock: ProviderAwareTaskAdmissionPolicy(
            BoundedBorrowTaskAdmissionPolicy(), FakePressure(clock, cool_until_seconds)
        ),
    )


def seconds_of_b(course: Course) -> float:
    return max(at for name, at in course.ended.items() if name.startswith("b."))


def measure(setup: Setup) -> Outcome:
    """B alone, and behind a backlog of A that cools down as long as B has work."""
    count = setup.size(8_000, smoke=800)
    alone = seconds_of_b(run({"b": count}, 0.0))
    course = run({"a": count, "b": count}, 2 * alone)
    beside = seconds_of_b(course)
    return Outcome(
        (
            Check(
                "cooldown: throughput of B beside A in cool-down, × that of B alone",
                alone / beside,
                Sense.AT_LEAST,
                THROUGHPUT,
                timing=False,
            ),
        ),
        (
            Table(
                f"{count:,} calls of each provider, A first, on {SLOTS} slots, in virtual time",
                ("run", "B's last call ended, s", "A's first call began, s"),
                (
                    ("B alone", alone, "–"),
                    ("A in cool-down", beside, min(course.begun[f"a.{n}"] for n in range(count))),
                ),
            ),
        ),
    )

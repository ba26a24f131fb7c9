# SPDX-License-Identifier: Apache-2.0
"""Do fast tasks wait behind the slow roots that made them ready?

In virtual time, so the figures are exact: the same graph in groups, under bounded borrow, and as
one group, which is plain first-come order.
"""

from __future__ import annotations

import random

from benchmarks.measuring import quantile
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling.virtual_graph import Course, run_graph
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec

SLOTS = 16
FAN = 4  # fast tasks that are ready when a root has ended
ROOT_SECONDS = (5.0, 15.0)
JUDGE_SECONDS = (0.2, 1.0)
SEED = 5
GAP_RATIO = 1 / 3
WALL_RATIO = 1.05
COLUMNS = ("order", "gap p50, s", "gap p95, s", "gap most, s", "wall, s")


def graph(roots: int) -> dict[str, list[str]]:
    """Slow roots, each with some fast tasks behind it."""
    nodes: dict[str, list[str]] = {f"root.{number}": [] for number in range(roots)}
    for root in [*nodes]:
        nodes |= {f"judge.{root}.{number}": [root] for number in range(FAN)}
    return nodes


def run(roots: int, *, in_groups: bool) -> Course:
    """Run the graph, in one group for each kind of task or in one for all."""
    rand = random.Random(SEED)
    nodes = graph(roots)
    seconds = {
        name: rand.uniform(*(JUDGE_SECONDS if needs else ROOT_SECONDS))
        for name, needs in nodes.items()
    }

    def to_task(name: str) -> SchedulableTask:
        group = name.partition(".")[0] if in_groups else "all"
        return SchedulableTask(name, None, TaskGroupSpec(group), SchedulerResourceRequest())

    return run_graph(nodes, to_task, seconds.__getitem__, SLOTS)


def gaps(roots: int, course: Course) -> list[float]:
    """From ready to dispatched, of every task that follows another."""
    return [
        course.begun[name] - course.ended[needs[0]] for name, needs in graph(roots).items() if needs
    ]


def measure(setup: Setup) -> Outcome:
    """Compare the two orders."""
    roots = setup.size(2_000, smoke=200)
    courses = {
        "bounded borrow": run(roots, in_groups=True),
        "first come": run(roots, in_groups=False),
    }
    found = {order: gaps(roots, course) for order, course in courses.items()}
    p95 = {order: quantile(values, 0.95) for order, values in found.items()}
    walls = {order: course.wall for order, course in courses.items()}
    return Outcome(
        (
            Check(
                "downstream: p95 from ready to dispatched, × that of first-come order",
                p95["bounded borrow"] / p95["first come"],
                Sense.AT_MOST,
                GAP_RATIO,
                timing=False,
            ),
            Check(
                "downstream: wall time, × that of first-come order",
                walls["bounded borrow"] / walls["first come"],
                Sense.AT_MOST,
                WALL_RATIO,
                timing=False,
            ),
        ),
        (
            Table(
                f"{roots:,} slow roots, each before {FAN} fast tasks, on {SLOTS} slots, in "
                "virtual time",
                COLUMNS,
                tuple(
                    (order, quantile(values, 0.5), p95[order], max(values), walls[order])
                    for order, values in found.items()
                ),
            ),
        ),
    )

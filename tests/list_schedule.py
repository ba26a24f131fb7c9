# SPDX-License-Identifier: Apache-2.0
"""How long would a graph take if a free slot always took the first task that is ready?"""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "workflows"
WORKFLOWS = ("montage", "epigenomics", "seismology")


class WorkflowTask(NamedTuple):
    """One task of a workflow; parents stand before it."""

    name: str
    seconds: float
    parents: tuple[int, ...]


def workflow(name: str, total_seconds: float) -> list[WorkflowTask]:
    """A real graph, its times scaled so that together they are so many seconds."""
    tasks = json.loads((FOLDER / f"{name}.json").read_text())
    scale = total_seconds / sum(seconds for _, seconds, _ in tasks)
    return [WorkflowTask(name, seconds * scale, tuple(up)) for name, seconds, up in tasks]


def greedy_makespan(tasks: list[WorkflowTask], slots: int) -> float:
    """The end of a greedy list schedule: ready tasks start in the order in which they got ready."""
    children: list[list[int]] = [[] for _ in tasks]
    waits_for = [len(task.parents) for task in tasks]
    for index, task in enumerate(tasks):
        for parent in task.parents:
            children[parent].append(index)
    ready = [(0.0, index) for index, count in enumerate(waits_for) if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            index = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + tasks[index].seconds, index))
        now, index = heapq.heappop(running)
        for child in children[index]:
            waits_for[child] -= 1
            if not waits_for[child]:
                heapq.heappush(ready, (now, child))
    return now


def level_makespan(tasks: list[WorkflowTask], slots: int) -> float:
    """The same with a barrier after every level."""
    levels: list[int] = []
    for task in tasks:
        levels.append(1 + max((levels[parent] for parent in task.parents), default=-1))
    total = 0.0
    for level in range(max(levels) + 1):
        alone = [
            WorkflowTask(task.name, task.seconds, ())
            for task, own in zip(tasks, levels, strict=True)
            if own == level
        ]
        total += greedy_makespan(alone, slots)
    return total

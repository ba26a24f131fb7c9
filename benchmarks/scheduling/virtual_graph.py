# SPDX-License-Identifier: Apache-2.0
"""How does a graph of tasks run in virtual time? Exact, and in no time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.policies import TaskAdmissionPolicy
from penstock.events.kinds import Correlation
from penstock.events.sink import SchedulerEvents
from penstock.model.task import SchedulableTask
from penstock.planning.completion import CompletionTracker
from penstock.testing import VirtualClock, run_virtual
from penstock.worker.graph_run import Failed, GraphRun
from penstock.worker.scheduler import AsyncTaskScheduler


@dataclass(frozen=True, slots=True)
class Course:
    """When each task began and ended, in virtual seconds."""

    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    @property
    def wall(self) -> float:
        return max(self.ended.values())


def run_graph(
    nodes: Mapping[str, Collection[str]],
    to_task: Callable[[str], SchedulableTask],
    seconds: Callable[[str], float],
    slots: int,
    to_policy: Callable[[VirtualClock], TaskAdmissionPolicy | None] = lambda _: None,
) -> Course:
    """Let every task of a graph take its time."""
    course = Course()

    async def main() -> None:
        clock = VirtualClock()

        async def body(task: SchedulableTask) -> None:
            name = str(task.task_id)
            course.begun[name] = clock.monotonic()
            await clock.sleep(seconds(name))
            course.ended[name] = clock.monotonic()

        controller = TaskAdmissionController(
            TaskAdmissionConfig(slots), to_policy(clock), monotonic=clock.monotonic
        )
        tracker = CompletionTracker(nodes, to_task)
        scheduler = AsyncTaskScheduler(
            controller,
            SchedulerEvents(clock, ()),
            Correlation("bench"),
            clock.monotonic,
            lambda: run.wake(),
        )
        run = GraphRun(tracker, body, lambda *_: Failed(), scheduler, "bench")
        await run.run(scheduler.turn)
        if controller.leases or len(course.ended) != len(nodes):
            raise RuntimeError(f"{len(course.ended)} of {len(nodes)} tasks ended, {controller!r}")

    run_virtual(main())
    return course

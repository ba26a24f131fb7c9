# SPDX-License-Identifier: Apache-2.0
"""How is the scheduler of NeMo Data Designer driven? As its own dispatch loop does it.

Only what that loop does besides is left out, which favours it: events, sets of running tasks, and a
call between the queue and the controller that asks for the pressure on providers.
"""

from __future__ import annotations

from typing import Any

from data_designer.engine.dataset_builders.scheduling.queue import FairTaskQueue
from data_designer.engine.dataset_builders.scheduling.resources import (
    SchedulableTask,
    SchedulerResourceRequest,
    TaskGroupKey,
    TaskGroupSpec,
    stable_task_id,
)
from data_designer.engine.dataset_builders.scheduling.task_admission import (
    TaskAdmissionConfig,
    TaskAdmissionController,
)
from data_designer.engine.dataset_builders.scheduling.task_model import Task
from data_designer.engine.dataset_builders.scheduling.task_policies import (
    BoundedBorrowTaskAdmissionPolicyConfig,
)

from benchmarks.peers.cases import Case, Group, Mix, Policy
from benchmarks.peers.cycles import Scheduler

PACKAGE = "data-designer"


def open_scheduler(case: Case) -> tuple[Scheduler, list[Any]]:
    """A scheduler with the limits of the case, and the tasks to queue."""
    borrow = case.policy is Policy.BORROW
    queue = FairTaskQueue()
    controller = TaskAdmissionController(
        TaskAdmissionConfig(
            submission_capacity=case.capacity,
            resource_limits=case.limits(),
            bounded_borrow=BoundedBorrowTaskAdmissionPolicyConfig() if borrow else None,
        )
    )
    scheduler = Scheduler(
        enqueue=queue.enqueue,
        select=lambda: queue.select_next(controller.is_eligible),
        acquire=controller.try_acquire,
        commit=queue.commit,
        release=controller.release,
    )
    return scheduler, _tasks(case)


def _tasks(case: Case) -> list[Any]:
    groups = case.group_specs()
    specs = [_group_spec(group, case.mix) for group in groups]
    requests = [[*map(SchedulerResourceRequest, case.amounts(group))] for group in groups]
    tasks = []
    for number in range(case.tasks):
        turn, group = divmod(number, case.groups)
        payload = Task(column=f"column-{group}", row_group=0, row_index=number, task_type="cell")
        tasks.append(
            SchedulableTask(
                stable_task_id(payload),
                payload,
                specs[group],
                requests[group][turn % len(requests[group])],
            )
        )
    return tasks


def _group_spec(group: Group, mix: Mix) -> Any:
    name = str(group.number)
    if mix is Mix.LOCAL:
        key = TaskGroupKey("local", ("local", name))
    else:
        key = TaskGroupKey("model", ("model", name, "model", "chat"))
    return TaskGroupSpec(key, weight=float(group.weight), admitted_limit=group.admitted_limit)

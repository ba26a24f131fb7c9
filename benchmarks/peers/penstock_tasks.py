# SPDX-License-Identifier: Apache-2.0
"""How is our own scheduler driven beside the peer? As its dispatch loop does it."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.cases import Case, Policy
from benchmarks.peers.cycles import Scheduler
from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    StrictFairTaskAdmissionPolicy,
    TaskAdmissionPolicy,
)
from penstock.admission.tasks.queue import FairTaskQueue, QueueSelection
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec

PACKAGE = "penstock"


def open_scheduler(case: Case) -> tuple[Scheduler, list[Any]]:
    """A scheduler with the limits of the case, and the tasks to queue."""
    policy: TaskAdmissionPolicy = (
        BoundedBorrowTaskAdmissionPolicy()
        if case.policy is Policy.BORROW
        else StrictFairTaskAdmissionPolicy()
    )
    queue = FairTaskQueue()
    controller = TaskAdmissionController(
        TaskAdmissionConfig(submission_capacity=case.capacity, resource_limits=case.limits()),
        policy,
        monotonic=time.monotonic,
    )

    def select() -> QueueSelection | None:
        changes = controller.take_changes()
        if changes is not None:
            queue.reopen(changes)
        return queue.select_next(controller.is_eligible)

    scheduler = Scheduler(
        enqueue=queue.enqueue,
        select=select,
        acquire=controller.try_acquire,
        commit=queue.commit,
        release=controller.release,
    )
    return scheduler, _tasks(case)


def _tasks(case: Case) -> list[Any]:
    groups = case.group_specs()
    specs = [
        TaskGroupSpec(f"group-{group.number}", group.weight, group.admitted_limit)
        for group in groups
    ]
    requests = [[*map(SchedulerResourceRequest, case.amounts(group))] for group in groups]
    tasks = []
    for number in range(case.tasks):
        turn, group = divmod(number, case.groups)
        tasks.append(
            SchedulableTask(
                task_id=f"task-{number}",
                payload=number,
                group=specs[group],
                resource_request=requests[group][turn % len(requests[group])],
            )
        )
    return tasks

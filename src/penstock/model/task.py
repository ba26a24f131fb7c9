# SPDX-License-Identifier: Apache-2.0
"""What is one schedulable unit in this process, and with whom does it share?"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.model.resource import SchedulerResourceRequest


class TaskGroupSpec(msgspec.Struct, frozen=True):
    """Tasks that share fairly with other groups."""

    key: str
    weight: int = 1  # its part of what groups compete for
    admitted_limit: int | None = None  # beyond so many it yields to others; None: no such limit

    def __post_init__(self) -> None:
        if type(self.weight) is not int or self.weight <= 0:
            raise UsageError(
                f"The weight of group {self.key!r} is a whole positive number, got {self.weight!r}."
            )
        limit = self.admitted_limit
        if limit is not None and (type(limit) is not int or limit <= 0):
            raise UsageError(
                f"The admitted limit of group {self.key!r} is a whole positive number or left out, "
                f"got {limit!r}."
            )


class SchedulableTask(msgspec.Struct, frozen=True):
    """A ready task with what the scheduler must know of it."""

    task_id: Hashable  # stable: the same work has the same id
    payload: Any
    group: TaskGroupSpec
    resource_request: SchedulerResourceRequest
    request_resource_key: Hashable | None = None  # the provider's resource that it will call
    priority: int = 0  # orders tasks inside their group, higher first

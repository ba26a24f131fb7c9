# SPDX-License-Identifier: Apache-2.0
"""What holds for attempts of each task, when definitions and settings are taken together?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.settings import Settings
from penstock.definitions.preflight import Preflight
from penstock.definitions.schedule import Schedule
from penstock.definitions.task import Task
from penstock.schedules.recurring import Recurring
from penstock.worker.attempt import UNLIMITED, TaskLimits


def task_limits(
    tasks: Mapping[str, Task[..., Any]],
    settings: Settings,
    preflights: Iterable[Preflight[..., Any]] = (),
) -> dict[str, tuple[Task[..., Any], TaskLimits]]:
    """Merge what tasks say with what is configured.

    Args:
        tasks: to be run; schedules and preflights, too.
        settings: what is configured.
        preflights: of the app; those that stay on duty look before failed ticks are tried again.
    """
    on_duty = tuple(one for one in preflights if one.recheck)
    return {name: (task, _limits(task, settings, on_duty)) for name, task in tasks.items()}


def _limits(
    task: Task[..., Any], settings: Settings, on_duty: tuple[Preflight[..., Any], ...]
) -> TaskLimits:
    options, crashes = task.options, settings.tasks.max_crashes
    if isinstance(task, Preflight):
        within = settings.runtime.preflight_timeout
        timeout = min(options.timeout_seconds or within, within)
        return TaskLimits(1, timeout, 1, within_seconds=within)
    seconds: float | None = None
    if options.has_timeout:
        seconds = options.timeout_seconds or settings.tasks.timeout
    if isinstance(task, Schedule):
        about = tuple(one for one in on_duty if {*one.over} <= {*task.over})
        return TaskLimits(
            options.max_attempts or UNLIMITED, seconds, crashes, Recurring(task, about)
        )
    return TaskLimits(options.max_attempts or settings.tasks.max_attempts, seconds, crashes)

# SPDX-License-Identifier: Apache-2.0
"""Limits of the attempts of each task: attempts, time, crashes, from definitions and settings."""

from __future__ import annotations

from typing import Any

from penstock.config.settings import Settings
from penstock.definitions.preflight import Preflight
from penstock.definitions.schedule import Schedule
from penstock.definitions.task import Task
from penstock.worker.attempt import UNLIMITED, TaskLimits


def task_limits(task: Task[..., Any], settings: Settings) -> TaskLimits:
    """Merge what a task, schedule or preflight says with what is configured."""
    options, crashes = task.options, settings.tasks.max_crashes
    if isinstance(task, Preflight):
        within = settings.runtime.preflight_timeout
        timeout = min(options.timeout_seconds or within, within)
        return TaskLimits(1, timeout, 1, within_seconds=within)
    seconds: float | None = None
    if options.has_timeout:
        seconds = options.timeout_seconds or settings.tasks.timeout
    if isinstance(task, Schedule):
        return TaskLimits(options.max_attempts or UNLIMITED, seconds, crashes)
    return TaskLimits(options.max_attempts or settings.tasks.max_attempts, seconds, crashes)

# SPDX-License-Identifier: Apache-2.0
"""A schedule as declared: a function, its timing (cron or interval) and its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Protocol, TypedDict

from penstock.clock import Duration
from penstock.definitions.context import TickContext
from penstock.definitions.partitions import Spec
from penstock.definitions.provider import Uses
from penstock.definitions.task import LimitValue, P, R, TaskOptions
from penstock.model.job import SCHEDULE
from penstock.model.schedule import Timing
from penstock.model.task import MetadataSource


class Schedule(Spec[P, R]):
    """A function that ticks: each of its units is one job for ever, due again and again."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        over: object,
        timing: Timing,
        options: TaskOptions,
    ) -> None:
        super().__init__(SCHEDULE, name, function, over, options, TickContext)
        self.timing = timing


class ScheduleOptions(TypedDict, total=False):
    """What can be said about a schedule besides when and over what it ticks."""

    tz: str
    name: str | None
    uses: Uses | tuple[Uses, ...] | list[Uses]
    limits: Mapping[str, LimitValue] | None
    timeout: Duration | None
    max_attempts: int | None
    metadata: MetadataSource | None


class ScheduleDecorator(Protocol[P]):
    """What `@app.every(...)` is: its function takes one value of each dimension."""

    def __call__(self, function: Callable[Concatenate[TickContext, P], R], /) -> Schedule[P, R]: ...

# SPDX-License-Identifier: Apache-2.0
"""A schedule as declared: a function, its timing (cron or interval) and its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict, TypeVar

from penstock.clock import Duration
from penstock.definitions.context import TickContext
from penstock.definitions.partitions import Spec
from penstock.definitions.provider import Uses
from penstock.definitions.task import LimitValue, P, R, TaskOptions
from penstock.model.job import SCHEDULE
from penstock.model.schedule import Timing
from penstock.model.task import MetadataSource

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


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


class EveryOnce(Protocol):
    """What `@app.every(...)` is without dimensions."""

    def __call__(self, function: Callable[[TickContext], R], /) -> Schedule[[], R]: ...


class EveryOf1(Protocol[A]):
    """What it is over one dimension."""

    def __call__(self, function: Callable[[TickContext, A], R], /) -> Schedule[[A], R]: ...


class EveryOf2(Protocol[A, B]):
    """What it is over two."""

    def __call__(self, function: Callable[[TickContext, A, B], R], /) -> Schedule[[A, B], R]: ...


class EveryOf3(Protocol[A, B, C]):
    """What it is over three."""

    def __call__(
        self, function: Callable[[TickContext, A, B, C], R], /
    ) -> Schedule[[A, B, C], R]: ...

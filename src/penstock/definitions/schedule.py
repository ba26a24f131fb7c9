# SPDX-License-Identifier: Apache-2.0
"""A schedule as declared: a function, its timing (cron or interval) and its partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import Any, Concatenate, Protocol, TypedDict

import msgspec

from penstock.clock import Duration
from penstock.definitions.context import TickContext
from penstock.definitions.dataset import Moment
from penstock.definitions.partitions import Spec
from penstock.definitions.provider import Uses
from penstock.definitions.task import LimitValue, P, R, TaskOptions
from penstock.errors import UsageError
from penstock.model.job import SCHEDULE
from penstock.model.schedule import Timing
from penstock.model.task import MetadataSource


class KeptDatasets(msgspec.Struct, frozen=True, kw_only=True):
    """The datasets that a schedule keeps up to date to now."""

    targets: tuple[str, ...]  # in order of names, each once
    since: Moment
    eager: bool = False
    yes: bool = False  # however many slices


class Schedule(Spec[P, R]):
    """A function that ticks: each of its units is one job for ever, due again and again."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        over: object,
        timing: Timing,
        options: TaskOptions,
        keeps: KeptDatasets | None = None,
    ) -> None:
        super().__init__(SCHEDULE, name, function, over, options, TickContext)
        self.timing = timing
        self.keeps = keeps  # its ticks plan these; None: they run its function

    def bound(self, tick: Callable[[TickContext], Awaitable[None]]) -> Schedule[P, R]:
        """The same with the body that a run gives it."""
        served = copy(self)
        served.function = tick
        return served


def dataset_schedule(name: str, keeps: KeptDatasets, timing: Timing) -> Schedule[[], None]:
    """A schedule that keeps datasets current: each tick plans them up to its time."""
    if not keeps.targets:
        raise UsageError(f"The schedule {name!r} keeps no dataset: name at least one.")
    options = TaskOptions(timeout_seconds=None, has_timeout=False)
    return Schedule(name, _unbound, (), timing, options, keeps)


async def _unbound(ctx: TickContext) -> None:
    raise UsageError("A schedule of datasets ticks in `penstock run`, not by a call.")


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

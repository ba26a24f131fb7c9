# SPDX-License-Identifier: Apache-2.0
"""What does a user define for a daemon? Partitions, preflights, schedules, and the baseline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from penstock.app.registry import Definitions
from penstock.clock import Duration, to_seconds
from penstock.definitions.partitions import Partitions
from penstock.definitions.preflight import (
    Preflight,
    PreflightOf1,
    PreflightOf2,
    PreflightOf3,
    PreflightOnce,
    PreflightOptions,
)
from penstock.definitions.provider import Uses
from penstock.definitions.schedule import (
    EveryOf1,
    EveryOf2,
    EveryOf3,
    EveryOnce,
    Schedule,
    ScheduleOptions,
)
from penstock.definitions.task import (
    CONFIGURED,
    LimitValue,
    Task,
    TaskOptions,
    check_attempts,
    checked_limits,
    limit_seconds,
)
from penstock.errors import UsageError
from penstock.model.scheduling import MetadataSource
from penstock.planning.timing import Timing, cron, interval
from penstock.retry.backoff import Backoff
from penstock.retry.classify import Opinion
from penstock.retry.policy import RetryPolicy

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")


class DaemonDefinitions(Definitions):
    """What recurs in an application, over what, and what must hold before."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        super().__init__(name, store=store)
        self.dimensions: dict[str, Partitions[Any]] = {}
        self.preflights: dict[str, Preflight[..., Any]] = {}  # by task: preflight:NAME
        self.schedules: dict[str, Schedule[..., Any]] = {}  # by task: schedule:NAME
        self.retry_policy = RetryPolicy()

    @property
    def all_tasks(self) -> dict[str, Task[..., Any]]:
        """Tasks, preflights and schedules, by the names of their jobs' tasks."""
        return {**self.tasks, **self.preflights, **self.schedules}

    @overload
    def partitions(
        self,
        name: str,
        values: Iterable[T] | Callable[[], Iterable[T]],
        *,
        key: Callable[[T], object] | None = None,
    ) -> Partitions[T]: ...

    @overload
    def partitions(
        self, name: str, *, of: type[T], key: Callable[[T], object] | None = None
    ) -> Partitions[T]: ...

    def partitions(
        self,
        name: str,
        values: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
        *,
        of: type[Any] | None = None,
        key: Callable[[Any], object] | None = None,
    ) -> Partitions[Any]:
        """Define a dimension, over whose values preflights and schedules are multiplied.

        A value is called by its text; a dataclass or a tuple by its parts with `/` in between.

        Args:
            name: what it is called in settings and errors.
            values: hashable values, or a function that gives them, called once per start.
            of: take the values from `[partitions] NAME = [...]` of the configuration, and make each
                one of this type.
            key: gives the name of a value: a text, or a tuple of parts.
        """
        if name in self.dimensions:
            raise UsageError(
                f"The app {self.name!r} has two partitions named {name!r}; rename one."
            )
        made: Partitions[Any] = Partitions(name, values, of=of, key=key)
        self.dimensions[name] = made
        return made

    @overload
    def every(
        self, when: Duration | str, over: tuple[()] = (), **options: Unpack[ScheduleOptions]
    ) -> EveryOnce: ...

    @overload
    def every(
        self,
        when: Duration | str,
        over: Partitions[A] | tuple[Partitions[A]],
        **options: Unpack[ScheduleOptions],
    ) -> EveryOf1[A]: ...

    @overload
    def every(
        self,
        when: Duration | str,
        over: tuple[Partitions[A], Partitions[B]],
        **options: Unpack[ScheduleOptions],
    ) -> EveryOf2[A, B]: ...

    @overload
    def every(
        self,
        when: Duration | str,
        over: tuple[Partitions[A], Partitions[B], Partitions[C]],
        **options: Unpack[ScheduleOptions],
    ) -> EveryOf3[A, B, C]: ...

    def every(
        self,
        when: Duration | str,
        over: Partitions[Any] | tuple[Partitions[Any], ...] = (),
        *,
        tz: str = "UTC",
        name: str | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        limits: Mapping[str, LimitValue] | None = None,
        timeout: Duration | None = CONFIGURED,
        max_attempts: int | None = None,
        metadata: MetadataSource | None = None,
    ) -> Any:
        """Make a function a schedule: it ticks again and again while `penstock run` runs.

        It takes `ctx: TickContext` and one value of each dimension. Occurrences that pass while it
        runs, or while nobody does, are skipped and counted. A tick that fails is tried again.

        Args:
            when: an interval, or a cron expression of five fields such as "0 3 * * 1-5". At certain
                hours, a local time that does not exist moves to the next that does, and one that
                occurs twice is taken once; an expression that runs in every hour keeps its rhythm.
            over: the dimensions that it is multiplied by; without, it ticks once for all.
            tz: the place whose clocks a cron expression is about, such as "Europe/Berlin".
            name: what its units are called; the function's name otherwise.
            uses: the providers that it calls, or their names.
            limits: keyed concurrency limits; a value is a constant or a function of the arguments.
            timeout: of one tick; None for no limit.
            max_attempts: how many of its own faults one occurrence may have; the run ends when they
                are used up. Without, it is degraded and goes on.
            metadata: how its ticks share with others.
        """
        timing = _timing(when, tz)
        options = TaskOptions(
            max_attempts=max_attempts,
            timeout_seconds=limit_seconds(timeout),
            has_timeout=timeout is not None,
            limits=checked_limits(limits),
            metadata=metadata,
            uses=uses,
        )

        def decorate(function: Callable[..., Any]) -> Schedule[..., Any]:
            own_name = name or function.__name__
            check_attempts(f"Schedule {own_name!r}", max_attempts)
            schedule: Schedule[..., Any] = Schedule(own_name, function, over, timing, options)
            self._check_dimensions(schedule.over)
            if schedule.name in self.schedules:
                raise UsageError(
                    f"The app {self.name!r} has two schedules named {own_name!r}; rename one, or "
                    "give it a name=."
                )
            self.schedules[schedule.name] = schedule
            return schedule

        return decorate

    @overload
    def preflight(
        self, over: tuple[()] = (), **options: Unpack[PreflightOptions]
    ) -> PreflightOnce: ...

    @overload
    def preflight(
        self, over: Partitions[A] | tuple[Partitions[A]], **options: Unpack[PreflightOptions]
    ) -> PreflightOf1[A]: ...

    @overload
    def preflight(
        self, over: tuple[Partitions[A], Partitions[B]], **options: Unpack[PreflightOptions]
    ) -> PreflightOf2[A, B]: ...

    @overload
    def preflight(
        self,
        over: tuple[Partitions[A], Partitions[B], Partitions[C]],
        **options: Unpack[PreflightOptions],
    ) -> PreflightOf3[A, B, C]: ...

    def preflight(
        self,
        over: Partitions[Any] | tuple[Partitions[Any], ...] = (),
        *,
        recheck: bool = False,
        name: str | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        timeout: Duration | None = CONFIGURED,
        hint: str | None = None,
    ) -> Any:
        """Make a function a preflight: a check that must pass before `penstock run` does any work.

        It takes `ctx: Context` and one value of each dimension. What it returns, a JSON value,
        reaches the work of its partition as `ctx.preflight[name]`. Errors of the network and of
        services are tried again until `preflight_timeout`; any other error fails the start.

        Args:
            over: the dimensions that it is multiplied by; without, it checks once for all.
            recheck: it stays on duty: work of its partition that has failed is tried again only
                when it passes.
            name: what its units are called; the function's name otherwise.
            uses: the providers that it calls, or their names.
            timeout: of one try; `preflight_timeout` otherwise.
            hint: what to do if it fails, for the report.
        """
        if inspect.isroutine(over):
            raise UsageError("Write @app.preflight() with parentheses.")
        options = TaskOptions(
            max_attempts=1,
            timeout_seconds=limit_seconds(timeout),
            has_timeout=timeout is not None,
            uses=uses,
        )

        def decorate(function: Callable[..., Any]) -> Preflight[..., Any]:
            own_name = name or function.__name__
            check: Preflight[..., Any] = Preflight(
                own_name, function, over, options, recheck=recheck, hint=hint
            )
            self._check_dimensions(check.over)
            if check.name in self.preflights:
                raise UsageError(
                    f"The app {self.name!r} has two preflights named {own_name!r}; rename one, or "
                    "give it a name=."
                )
            self.preflights[check.name] = check
            return check

        return decorate

    def baseline(
        self,
        *,
        classify: Callable[[BaseException], Opinion] | None = None,
        node: tuple[Duration, Duration] | None = None,
        service: tuple[Duration, Duration] | None = None,
        degraded: tuple[Duration, Duration] | None = None,
    ) -> None:
        """Say once, for the whole app, what follows a failure; what is left out stays as it is.

        A pair of durations is a back-off: the first delay is anything up to the first of them, and
        that doubles with each failure until it is the second.

        Args:
            classify: says whose failure an error is: "node", "service" or "unknown" (the work's
                own), or a pair of that and an exact wait; None leaves it to Penstock. Asked first
                about the error, then about its causes.
            node: of the network's failures; (2, 120) otherwise.
            service: of a service that asks for patience and does not say for how long; (5, 300).
            degraded: of a schedule that fails by a fault of its own; (30, 300).
        """
        given: object = classify  # whatever a user without a type checker wrote
        if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
            raise UsageError(
                f"app.baseline: classify= is a plain function of an error, got {classify!r:.100}."
            )
        said = {"node": node, "service": service, "degraded": degraded}
        parts: dict[str, Any] = {
            part: _backoff(part, pair) for part, pair in said.items() if pair is not None
        }
        if classify is not None:
            parts["classifiers"] = (classify,)
        self.retry_policy = replace(self.retry_policy, **parts)

    def _check_dimensions(self, over: tuple[Partitions[Any], ...]) -> None:
        for dimension in over:
            if self.dimensions.get(dimension.name) is not dimension:
                raise UsageError(
                    f"The partitions {dimension.name!r} belong to another app; define them with "
                    f"partitions() of {self.name!r}."
                )


def _timing(when: Duration | str, tz: str) -> Timing:
    if isinstance(when, str):
        return cron(when, tz)
    if tz != "UTC":
        raise UsageError(f"tz={tz!r} is for a cron expression; an interval has no time zone.")
    return interval(to_seconds(when))


def _backoff(part: str, pair: tuple[Duration, Duration]) -> Backoff:
    try:
        first, most = (to_seconds(one) for one in pair)
        return Backoff(first, most)
    except (TypeError, ValueError, UsageError):
        raise UsageError(
            f"app.baseline: {part}= is a pair of durations, the first delay and the longest, such "
            f"as (2, 120), got {pair!r:.100}."
        ) from None

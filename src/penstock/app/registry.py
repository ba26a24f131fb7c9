# SPDX-License-Identifier: Apache-2.0
"""What does a user define? The tasks and the providers of one app."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from penstock.clock import Duration, to_seconds
from penstock.definitions.dataset import Dataset, DatasetDecorator, Moment
from penstock.definitions.partitions import Partitions
from penstock.definitions.preflight import Preflight, PreflightDecorator, PreflightOptions
from penstock.definitions.provider import ModelOptions, Provider, ProviderOptions, Uses, models_of
from penstock.definitions.request import check_name
from penstock.definitions.schedule import Schedule, ScheduleDecorator, ScheduleOptions
from penstock.definitions.task import (
    CONFIGURED,
    LimitValue,
    Task,
    TaskDecorator,
    TaskOptions,
    check_attempts,
    checked_limits,
    limit_seconds,
)
from penstock.errors import UnknownTask, UsageError
from penstock.model.dataset import Calendar, DatasetSpec, Need
from penstock.model.job import PREFLIGHT, SCHEDULE, SLICE
from penstock.model.request import ReplyClassifier
from penstock.model.task import MetadataSource
from penstock.planning.graph import validate
from penstock.planning.timing import Timing, cron, interval
from penstock.retry.classify import Opinion
from penstock.retry.policy import Backoff, RetryPolicy

if TYPE_CHECKING:
    import pyarrow


class Definitions:
    """What one application consists of; each kind of thing by name."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        check_name("app name", name)
        if "/" in name or name.startswith("."):
            raise UsageError(f"The app name {name!r} must be usable as a file name.")
        self.name = name
        self._code_settings: dict[str, Any] = {} if store is None else {"store": store}
        self.tasks: dict[str, Task[..., Any]] = {}
        self.providers: dict[str, Provider] = {}

    @property
    def code_settings(self) -> dict[str, Any]:
        """What the app says in code, as it would stand in a file of settings."""
        tables = {name: provider.options.table() for name, provider in self.providers.items()}
        return {**self._code_settings, "providers": tables}

    def provider(
        self,
        name: str,
        *,
        base_url: str | None = None,
        max_parallel: int | None = None,
        rpm: float | None = None,
        tpm: float | None = None,
        algorithm: Literal["adaptive", "aimd"] | None = None,
        paid: bool | None = None,
        in_doubt: Literal["resend", "hold"] | None = None,
        idempotency_header: str | None = None,
        models: Mapping[str, ModelOptions | Mapping[str, Any]] | None = None,
        reply_deadline_seconds: Duration | None = None,
        reply_body_bytes_max: int | None = None,
        reply_header_bytes_max: int | None = None,
        classify: ReplyClassifier | None = None,
    ) -> Provider:
        """Define a rate-limited service. Settings (`[providers.NAME]`) override what is said here.

        Args:
            name: how tasks, settings and `penstock providers` call it.
            base_url: what the paths of its requests are added to.
            max_parallel: requests that may be in flight at once, over all its models.
            rpm: requests per minute, over all its models.
            tpm: tokens per minute, over all its models.
            algorithm: how its limit is found: "adaptive" (the default) or "aimd".
            paid: whether its calls cost money: then each is journaled, and an answer that a crash
                would lose is bought once. Off by default.
            in_doubt: what becomes of a paid call that began and of which nobody knows the end:
                "resend" (the default), or "hold" until a person has looked.
            idempotency_header: the header by which it knows a call again, such as
                "Idempotency-Key"; "" for none. Known for OpenAI and Anthropic.
            models: caps and prices of single models, such as `{"gpt-5": {"rpm": 5000,
                "usd_per_million_tokens": {"input": 1.25, "output": 10}}}`.
            reply_deadline_seconds: from the permit to the end of a reply's body.
            reply_body_bytes_max: of a reply's body, on the wire and decoded.
            reply_header_bytes_max: of all headers of a reply.
            classify: says what a reply really is ("rate_limited", "provider_failure", "success"),
                where its status does not; None leaves it to its status.
        """
        deadline = reply_deadline_seconds
        provider = Provider(
            name,
            ProviderOptions(
                base_url=base_url,
                max_parallel=max_parallel,
                rpm=rpm,
                tpm=tpm,
                algorithm=algorithm,
                paid=paid,
                in_doubt=in_doubt,
                idempotency_header=idempotency_header,
                reply_deadline_seconds=None if deadline is None else to_seconds(deadline),
                reply_body_bytes_max=reply_body_bytes_max,
                reply_header_bytes_max=reply_header_bytes_max,
                models=models_of(name, models or {}),
                classify=classify,
            ),
        )
        if name in self.providers:
            raise UsageError(f"The app {self.name!r} has two providers named {name!r}; rename one.")
        self.providers[name] = provider
        return provider

    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        limits: Mapping[str, LimitValue] | None = None,
        group: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = CONFIGURED,
        executor: Literal["process"] | None = None,
        metadata: MetadataSource | None = None,
    ) -> TaskDecorator:
        """Make a function a task. A task is an `async def` (on the loop) or a `def` (in a thread).

        Args:
            name: what its jobs are called; the function's name otherwise.
            uses: the providers that it calls, or their names: its jobs start only while these can
                serve them. `"NAME/MODEL"` says which model.
            limits: keyed concurrency limits; a value is a constant or a function of the arguments.
            group: the unit of fairness; the task's name otherwise.
            priority: higher goes first, inside a group.
            max_attempts: how many of its own faults a job may have.
            timeout: of one attempt; None for no limit.
            executor: "process" runs either kind in another process, which can be killed: for work
                that holds the GIL, may crash, or does not stop. Only its JSON crosses.
            metadata: how its jobs share with others: the weight of their group.
        """
        if function is not None:
            raise UsageError("Write @app.task() with parentheses.")
        options = TaskOptions(
            group=group,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=limit_seconds(timeout),
            has_timeout=timeout is not None,
            limits=checked_limits(limits),
            executor=executor,
            metadata=metadata,
            uses=uses,
        )

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            check_attempts(f"Task {function.__name__!r}", max_attempts)
            own_name = name or function.__name__
            if own_name.startswith((SCHEDULE, PREFLIGHT, SLICE)):
                raise UsageError(
                    f"Task {own_name!r}: names that begin with {SCHEDULE!r}, {PREFLIGHT!r} or "
                    f"{SLICE!r} belong to schedules, preflights and datasets; rename it."
                )
            task: Task[..., Any] = Task(own_name, function, options)
            if task.name in self.tasks:
                raise UsageError(
                    f"The app {self.name!r} has two tasks named {task.name!r}; rename one, or "
                    f"give it a name=."
                )
            self.tasks[task.name] = task
            return task

        return decorate  # type: ignore[return-value]  # the decorator's two overloads

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of this name; UnknownTask with the nearest ones."""
        task = self.tasks.get(name)
        if task is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.tasks, 1)
            hint = f"; closest: {near[0]!r}" if near else ""
            raise UnknownTask(
                f"No task named {name!r} is registered in app {self.name!r} ({len(self.tasks)} "
                f"are{hint}). Correct the name, or define the task."
            )
        return task


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
    ) -> ScheduleDecorator[[]]: ...

    @overload
    def every(
        self,
        when: Duration | str,
        over: Partitions[A] | tuple[Partitions[A]],
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator[[A]]: ...

    @overload
    def every(
        self,
        when: Duration | str,
        over: tuple[Partitions[A], Partitions[B]],
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator[[A, B]]: ...

    @overload
    def every(
        self,
        when: Duration | str,
        over: tuple[Partitions[A], Partitions[B], Partitions[C]],
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator[[A, B, C]]: ...

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
    ) -> PreflightDecorator[[]]: ...

    @overload
    def preflight(
        self, over: Partitions[A] | tuple[Partitions[A]], **options: Unpack[PreflightOptions]
    ) -> PreflightDecorator[[A]]: ...

    @overload
    def preflight(
        self, over: tuple[Partitions[A], Partitions[B]], **options: Unpack[PreflightOptions]
    ) -> PreflightDecorator[[A, B]]: ...

    @overload
    def preflight(
        self,
        over: tuple[Partitions[A], Partitions[B], Partitions[C]],
        **options: Unpack[PreflightOptions],
    ) -> PreflightDecorator[[A, B, C]]: ...

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


class DatasetDefinitions(DaemonDefinitions, ABC):
    """The datasets of an application, by name."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        super().__init__(name, store=store)
        self.datasets: dict[str, Dataset[..., Any]] = {}
        self._folders: dict[str, str] = {}  # names of datasets, by what they are without case

    @property
    def all_tasks(self) -> dict[str, Task[..., Any]]:
        """Tasks, preflights, schedules and datasets, by the names of their jobs' tasks."""
        tasks = {dataset.task.name: dataset.task for dataset in self.datasets.values()}
        return {**super().all_tasks, **tasks}

    @property
    def dataset_specs(self) -> dict[str, DatasetSpec]:
        """All datasets, as planning sees them."""
        return {name: dataset.spec for name, dataset in self.datasets.items()}

    def check_datasets(self) -> None:
        """Refuse unknown needs and cycles of the whole graph, in one UsageError."""
        validate(self.dataset_specs.values())

    def find_dataset(self, name: str | Dataset[..., Any]) -> Dataset[..., Any]:
        """The dataset of this name; UsageError with the nearest ones."""
        if isinstance(name, Dataset):
            name = name.name
        dataset = self.datasets.get(name)
        if dataset is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.datasets, 1)
            hint = f"; closest: {near[0]!r}" if near else ""
            raise UsageError(
                f"No dataset named {name!r:.150} is registered in app {self.name!r} "
                f"({len(self.datasets)} are{hint}). Correct the name, or define the dataset."
            )
        return dataset

    def dataset(
        self,
        function: None = None,
        /,
        *,
        calendar: Calendar,
        needs: Iterable[Dataset[..., Any] | Need | str] = (),
        version: int | str = 1,
        batch: int = 1,
        name: str | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        limits: Mapping[str, LimitValue] | None = None,
        group: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = CONFIGURED,
        executor: Literal["process"] | None = None,
        metadata: MetadataSource | None = None,
    ) -> DatasetDecorator:
        """Make a function a dataset: it returns one slice for each moment of a calendar.

        It takes `ctx: Context`, `at: datetime`, and the slices that it needs, as arguments named
        like their datasets. It returns rows (a list of dicts), an Arrow table, a pandas or polars
        frame, or bytes; with `batch`, a mapping from timestamp to one of these.

        Args:
            calendar: when there are slices; one of penstock.calendars.
            needs: what it is built from: a dataset, or `.latest()`, `.exact()`, `.lookback(20)` or
                `.window(timedelta(days=7))` of one.
            version: of the function; slices of another version are built anew.
            batch: how many slices one job builds at once; above 1, `at` is a sequence.
            name: what it is called; the function's name otherwise.
            uses: the providers that it calls, or their names.
            limits: keyed concurrency limits; their values are texts.
            group: the unit of fairness; the dataset's name otherwise.
            priority: higher goes first, inside a group.
            max_attempts: how many of its own faults a job may have.
            timeout: of one attempt; None for no limit.
            executor: "process" runs it in another process, where its output is written, too.
            metadata: how its jobs share with others.
        """
        if function is not None:
            raise UsageError("Write @app.dataset(calendar=...) with parentheses.")
        options = TaskOptions(
            group=group,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=limit_seconds(timeout),
            has_timeout=timeout is not None,
            limits=checked_limits(limits),
            executor=executor,
            metadata=metadata,
            uses=uses,
        )
        asked: Any = needs
        if isinstance(needs, Iterator):
            asked = tuple(needs)  # it can be read once only

        def decorate(function: Callable[..., Any]) -> Dataset[..., Any]:
            own_name = name or function.__name__
            check_attempts(f"Dataset {own_name!r}", max_attempts)
            made: Dataset[..., Any] = Dataset(
                own_name, function, calendar, asked, version, batch, options, self
            )
            if own_name in self.datasets:
                raise UsageError(
                    f"The app {self.name!r} has two datasets named {own_name!r}; rename one, or "
                    "give it a name=."
                )
            self._refuse_twin(own_name)
            self.datasets[own_name] = made
            return made

        return decorate  # type: ignore[return-value]  # the function's parameters are kept

    def _refuse_twin(self, name: str) -> None:
        """Where a file system ignores case, two folders would be one, and be swept as one."""
        other = self._folders.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"The datasets {name!r} and {other!r} differ in case only, and would be one "
                "folder on some file systems; rename one."
            )

    @abstractmethod
    def read_slices(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> pyarrow.Table:
        """What is committed of a dataset, as a table."""

    @abstractmethod
    def slice_files(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> list[Path]:
        """The files of what is committed of a dataset."""

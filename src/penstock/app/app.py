# SPDX-License-Identifier: Apache-2.0
"""What a user defines and calls: an application, its queue, and its runs.

To define tasks needs no store and no worker. So what the queue and a run are made of is imported
here, in two places, when it is first asked for.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, Unpack, overload

from penstock.app import other_names
from penstock.app.registry import Registry
from penstock.clock import Duration, SystemClock, is_duration, to_micros, to_seconds
from penstock.definitions.dataset import Dataset, DatasetDecorator, Moment
from penstock.definitions.partitions import Partitions
from penstock.definitions.preflight import Preflight, PreflightDecorator, PreflightOptions
from penstock.definitions.provider import ModelOptions, Provider, ProviderOptions, Uses, models_of
from penstock.definitions.request import (
    AsyncConnection,
    Enqueued,
    EnqueuedMany,
    JobRequest,
    SyncConnection,
    to_new_job,
)
from penstock.definitions.result import JobView, Returning, view_of
from penstock.definitions.retry import Retry
from penstock.definitions.schedule import (
    KeptDatasets,
    Schedule,
    ScheduleDecorator,
    ScheduleOptions,
    dataset_schedule,
)
from penstock.definitions.task import (
    CONFIGURED,
    LimitValue,
    Task,
    TaskDecorator,
    TaskOptions,
    check_attempts,
    checked_limits,
    checked_retry,
    limit_seconds,
)
from penstock.errors import UsageError
from penstock.model.dataset import Calendar, Need
from penstock.model.job import Edge, Job, NewJob
from penstock.model.request import ReplyClassifier
from penstock.model.schedule import Timing
from penstock.model.task import MetadataSource
from penstock.model.views import PurgedJobs
from penstock.planning.timing import cron, interval
from penstock.redaction.secrets import Secret
from penstock.retry.classify import Opinion
from penstock.retry.policy import Backoff

if TYPE_CHECKING:
    import pyarrow

    from penstock.app.build import BuildOptions
    from penstock.app.queue import Queue
    from penstock.app.results import Results
    from penstock.app.run import Runner
    from penstock.app.table import AppTable
    from penstock.config.load import LoadedSettings
    from penstock.config.settings import Settings
    from penstock.model.plan import BuildPlan, BuildReport, BuildRequest
    from penstock.model.run import OnProgress, RunReport
    from penstock.model.views import RerunJobs, RetriedJobs
    from penstock.outputs.root import OutputRoot
    from penstock.planning.units import DaemonPlan
    from penstock.stores.protocol import Store

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")


class Penstock:
    """An application: its tasks, its providers, and the store that its jobs are kept in.

    Its registry holds what is defined, its queue the store, its runner works in this program.
    """

    def __init__(self, name: str, *, store: str | None = None) -> None:
        self.registry = Registry(name, store=store)
        self.name = name
        self.tasks = self.registry.tasks
        self.providers = self.registry.providers
        self.preflights = self.registry.preflights
        self.schedules = self.registry.schedules
        self.datasets = self.registry.datasets
        self.tables = self.registry.tables
        self._kept_queue: Queue | None = None
        self._kept_runner: Runner | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.tasks)} tasks>"

    @property
    def _queue(self) -> Queue:
        from penstock.app.queue import Queue

        with self._lock:
            if self._kept_queue is None:
                self._kept_queue = Queue(self.registry)
            return self._kept_queue

    @property
    def runner(self) -> Runner:
        """What works on its queue in this process."""
        from penstock.app.run import Runner

        if self._kept_runner is None:
            self._kept_runner = Runner(self, self.registry, self._queue)
        return self._kept_runner

    async def _queue_async(self) -> Queue:
        """The same on a loop, which must not stand still while it is imported."""
        if self._kept_queue is None:
            return await asyncio.to_thread(lambda: self._queue)
        return self._kept_queue

    async def runner_async(self) -> Runner:
        """The same on a loop, which must not stand still while it is imported."""
        if self._kept_runner is None:
            return await asyncio.to_thread(lambda: self.runner)
        return self._kept_runner

    def provider(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api: Literal["openai", "anthropic"] | None = None,
        api_key: Secret | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        account_errors: bool | None = None,
        max_parallel: int | None = None,
        rpm: float | None = None,
        tpm: float | None = None,
        algorithm: Literal["adaptive", "aimd"] | None = None,
        paid: bool | None = None,
        in_doubt: Literal["resend", "hold"] | None = None,
        idempotency_header: str | None = None,
        redirects: Literal["same-origin", "none", "any"] | None = None,
        models: Mapping[str, ModelOptions | Mapping[str, Any]] | None = None,
        reply_deadline_seconds: Duration | None = None,
        reply_body_bytes_max: int | None = None,
        reply_header_bytes_max: int | None = None,
        classify: ReplyClassifier | None = None,
        **others: Never,
    ) -> Provider:
        """Define a rate-limited service. Settings (`[providers.NAME]`) override what is said here.

        Args:
            name: how tasks, settings and `penstock providers` call it.
            base_url: what the paths of its requests are added to.
            api: the dialect that it speaks, whoever serves it: how its key is sent, its idempotency
                header, that a dead account holds it and not its jobs. Known of both SDKs and hosts.
            api_key: `Secret.env("NAME")` or `Secret.file(path)`; sent to base_url, stored nowhere.
            headers: sent with every request to base_url that has none of that name.
            account_errors: whether 401, 402 and 403 are about the account; so with a dialect.
            max_parallel: requests that may be in flight at once, over all its models.
            rpm: requests per minute, over all its models; tpm: tokens.
            algorithm: how its limit is found: "adaptive" (the default) or "aimd".
            paid: whether its calls cost money: then each is journaled, and bought once.
            in_doubt: of a paid call whose end nobody knows: "resend" (the default), or "hold".
            idempotency_header: by which it knows a call again; "" for none; a dialect has one.
            redirects: those that are followed: "same-origin" (the default), "none", or "any".
            models: caps and prices of single ones, such as `{"gpt-5": {"rpm": 5000}}`.
            reply_deadline_seconds: from the permit to the end of a reply's body.
            reply_body_bytes_max: of a body, on the wire and decoded; header: of all headers.
            classify: says what a reply really is ("rate_limited", …); None: its status says it.
        """
        other_names.refuse("app.provider", others, other_names.PROVIDER)
        deadline = reply_deadline_seconds
        options = ProviderOptions(
            base_url=base_url,
            api=api,
            api_key=api_key,
            headers=headers or {},
            account_errors=account_errors,
            max_parallel=max_parallel,
            rpm=rpm,
            tpm=tpm,
            algorithm=algorithm,
            paid=paid,
            in_doubt=in_doubt,
            idempotency_header=idempotency_header,
            redirects=redirects,
            reply_deadline_seconds=None if deadline is None else to_seconds(deadline),
            reply_body_bytes_max=reply_body_bytes_max,
            reply_header_bytes_max=reply_header_bytes_max,
            models=models_of(name, models or {}),
            classify=classify,
        )
        self.registry.add_provider(provider := Provider(name, options))
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
        retry: Retry | None = None,
        key: str | None = None,
        **others: Never,
    ) -> TaskDecorator:
        """Make a function a task. A task is an `async def` (on the loop) or a `def` (in a thread).

        Args:
            name: what its jobs are called; the function's name otherwise.
            uses: the providers that it calls, or their names: its jobs start only while these can
                serve them. `"NAME/MODEL"` says which model.
            limits: keyed concurrency limits; a value is a constant or a function of the arguments.
            group: the unit of fairness; otherwise that of the metadata, or the task's name.
            priority: higher goes first, inside a group.
            max_attempts: how many of its own faults a job may have.
            timeout: of one attempt; None for no limit.
            executor: "process" runs either kind in another process, which can be killed: for work
                that holds the GIL, may crash, or does not stop. Only its JSON crosses.
            metadata: how its jobs share with others: their group and its weight.
            retry: how long it waits after its failures, and how long for others in all; where it
                says nothing, as `app.baseline` and `give_up_after` do.
            key: how a job is called that is enqueued without a key: a text with arguments in it,
                such as "doi:{doi}"; the task's name and a hash of the arguments otherwise.
        """
        other_names.refuse("@app.task", others, other_names.TASK)
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
            retry=checked_retry("@app.task", retry),
            key=key,
        )

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            check_attempts(f"Task {function.__name__!r}", max_attempts)
            own_name = name or function.__name__
            task: Task[..., Any] = Task(own_name, function, options, reader=self)
            self.registry.add_task(task)
            return task

        return decorate  # type: ignore[return-value]  # the decorator's two overloads

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
        made: Partitions[Any] = Partitions(name, values, of=of, key=key)
        self.registry.add_partitions(made)
        return made

    @overload
    def every(
        self, when: Duration, over: tuple[()] = (), **options: Unpack[ScheduleOptions]
    ) -> ScheduleDecorator[[]]: ...

    @overload
    def every(
        self,
        when: Duration,
        over: Partitions[A] | tuple[Partitions[A]],
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator[[A]]: ...

    @overload
    def every(
        self,
        when: Duration,
        over: tuple[Partitions[A], Partitions[B]],
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator[[A, B]]: ...

    @overload
    def every(
        self,
        when: Duration,
        over: tuple[Partitions[A], Partitions[B], Partitions[C]],
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator[[A, B, C]]: ...

    def every(
        self,
        when: Duration,
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
            when: an interval such as "5m", or a cron expression of five fields: "0 3 * * 1-5". At
                certain hours, a local time that does not exist moves to the next that does, and
                one that occurs twice is taken once; an expression that runs in every hour keeps
                its rhythm.
            over: the dimensions that it is multiplied by; without, it ticks once for all.
            tz: the place whose clocks a cron expression is about, such as "Europe/Berlin".
            name: what its units are called; the function's name otherwise.
            uses: the providers that it calls, or their names.
            limits: keyed concurrency limits; a value is a constant or a function of the arguments.
            timeout: of one tick; None for no limit.
            max_attempts: how many of its own faults one occurrence may have; the run ends when they
                are used up. Without, it is degraded and goes on.
            metadata: how its ticks share with others; their group is their partition, if any.
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
            self.registry.add_schedule(schedule)
            return schedule

        return decorate

    def keep_current(
        self,
        *targets: Dataset[..., Any] | str,
        since: Moment,
        every: Duration,
        tz: str = "UTC",
        name: str = "datasets",
        eager: bool = False,
        yes: bool = False,
    ) -> None:
        """Keep datasets up to date to now, with all that they need, while `penstock run` runs.

        It is a schedule: each tick enqueues what is missing or stale, as `penstock build` does.
        A slice that fails is built again by the next tick, and holds up nothing but what needs it.

        Args:
            targets: datasets, or their names.
            since: the first moment; a date is its midnight by the clocks of each calendar.
            every: an interval such as "15m", or a cron expression of five fields.
            tz: the place whose clocks a cron expression is about.
            name: what the schedule is called: its unit is `schedule:NAME`.
            eager: start each job as soon as what it needs is there, and commit it by itself.
            yes: however many slices it may be.
        """
        names = tuple(sorted({one if isinstance(one, str) else one.name for one in targets}))
        keeps = KeptDatasets(targets=names, since=since, eager=eager, yes=yes)
        self.registry.add_schedule(dataset_schedule(name, keeps, _timing(every, tz)))

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
        required: bool = True,
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
            required: False: if it fails, the units of its partition are left out, and looked at
                again at each of their ticks until it passes; the others work.
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
                own_name,
                function,
                over,
                options,
                recheck=recheck,
                required=required,
                hint=hint,
            )
            self.registry.add_preflight(check)
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
        self.registry.retry_policy = replace(self.registry.retry_policy, **parts)

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
        retry: Retry | None = None,
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
            group: the unit of fairness; otherwise that of the metadata, or the dataset's name.
            priority: higher goes first, inside a group.
            max_attempts: how many of its own faults a job may have.
            timeout: of one attempt; None for no limit.
            executor: "process" runs it in another process, where its output is written, too.
            metadata: how its jobs share with others: their group and its weight.
            retry: how long it waits after its failures, as of a task.
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
            retry=checked_retry("@app.dataset", retry),
        )
        asked: Any = tuple(needs) if isinstance(needs, Iterator) else needs  # that is read once

        def decorate(function: Callable[..., Any]) -> Dataset[..., Any]:
            own_name = name or function.__name__
            check_attempts(f"Dataset {own_name!r}", max_attempts)
            made: Dataset[..., Any] = Dataset(
                own_name, function, calendar, asked, version, batch, options, self
            )
            self.registry.add_dataset(made)
            return made

        return decorate  # type: ignore[return-value]  # the function's parameters are kept

    def table(
        self,
        name: str,
        *,
        seed: int = 0,
        buffer_size: int = 64,
        max_row_groups: int = 4,
        early_stop: float | None = 0.5,
        early_stop_window: int = 50,
    ) -> AppTable:
        """Define a table: rows to be made, whose columns are declared on what this returns.

        Args:
            name: what it is called; no dataset of the app has the same name.
            seed: of everything that is drawn: the same seed gives the same values.
            buffer_size: how many rows a row group has: it is one job, and one file.
            max_row_groups: how many of them are in flight at once.
            early_stop: the run ends if more than this part of the last cells failed for good;
                None: it goes on.
            early_stop_window: how many finished cells are looked at.
        """
        from penstock.app.table import AppTable
        from penstock.definitions.table import TableOptions, check_installed

        check_installed(f"Table {name!r}")
        options = TableOptions(
            seed=seed,
            buffer_size=buffer_size,
            max_row_groups=max_row_groups,
            early_stop=early_stop,
            early_stop_window=early_stop_window,
        )
        made = AppTable(name, options, self)
        self.registry.add_table(made)
        return made

    def load(
        self,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> LoadedSettings:
        """All settings of this app, with where each came from; refuses what counts nothing."""
        return self._queue.load(flags, environ, folder)

    def store_url(self, loaded: LoadedSettings) -> str:
        """Where the store is, with its password if it has one: to connect with, not to print."""
        return self._queue.store_url(loaded)

    @property
    def store(self) -> Store:
        """The store, opened when first needed, once per process."""
        return self._queue.store

    def use_store(self, store: Store) -> None:
        """Use a store that is open already."""
        self._queue.use_store(store)

    def close(self) -> None:
        """Close the store; it opens again when needed."""
        if self._kept_queue is not None:
            self._kept_queue.close()

    def use_root(self, root: OutputRoot) -> None:
        """Keep slices in a root that is known already."""
        self._queue.use_root(root)

    def root(self, loaded: LoadedSettings) -> OutputRoot:
        """Where slices are kept; made if it is not there."""
        return self._queue.root(loaded)

    def found_root(self, loaded: LoadedSettings) -> OutputRoot | None:
        """The same; None if nothing was ever built there."""
        return self._queue.found_root(loaded)

    def read_slices(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> pyarrow.Table:
        """What is committed of a dataset, as a table."""
        return self._queue.committed(dataset).table(start, end)

    def read_range(self, dataset: Dataset[..., Any], first: int, last: int) -> pyarrow.Table:
        """What is committed in [first, last), microseconds since 1970 UTC, as a table."""
        return self._queue.committed(dataset).table_of(first, last)

    def slice_files(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> list[Path]:
        """The files of what is committed of a dataset."""
        return self._queue.committed(dataset).files(start, end)

    def enqueue(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
        *,
        connection: SyncConnection | None = None,
        **others: Never,
    ) -> Enqueued:
        """Accept one job. When this returns, the job survives a crash, and power loss.

        Args:
            request: what `task.job(...)` gives.
            key: what the job is known by; the same key again is the same job.
            after: jobs that must be done before, by key; `finished(key)`: ended in whatever way.
            priority: higher goes first, inside a group; the task's otherwise.
            delay: not before so long: seconds, a timedelta, or a text such as "5m".
            group: the unit of fairness; the task's otherwise.
            connection: a `psycopg.Connection` to the database that the store is in: the job is
                enqueued in its transaction, and is there when that is committed.
            others: none; a name of another tool is answered with ours.
        """
        if others and isinstance(request, JobRequest):
            other_names.refuse("app.enqueue", others, other_names.ENQUEUE)
        return self._queue.enqueue(
            _new_job(request, key=key, after=after, priority=priority, delay=delay, group=group),
            connection,
        )

    async def enqueue_async(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
        *,
        connection: AsyncConnection | None = None,
        **others: Never,
    ) -> Enqueued:
        """The same on an event loop; the connection is a `psycopg.AsyncConnection`."""
        other_names.refuse("app.enqueue_async", others, other_names.ENQUEUE)
        job = _new_job(request, key=key, after=after, priority=priority, delay=delay, group=group)
        return await (await self._queue_async()).enqueue_async(job, connection)

    def enqueue_many(
        self, requests: Iterable[JobRequest[Any]], *, connection: SyncConnection | None = None
    ) -> EnqueuedMany:
        """Accept many jobs, streaming in batches; each batch is all or nothing.

        With a connection all of them are there when its transaction is committed.
        """
        return self._queue.enqueue_many(_new_jobs(requests), connection)

    async def enqueue_many_async(
        self, requests: Iterable[JobRequest[Any]], *, connection: AsyncConnection | None = None
    ) -> EnqueuedMany:
        """The same on an event loop; the connection is a `psycopg.AsyncConnection`."""
        jobs = _new_jobs(requests)
        return await (await self._queue_async()).enqueue_many_async(jobs, connection)

    def job(self, key: str) -> JobView:
        """Any job of this app as it is now; UnknownJob if there is none of this key."""
        return view_of(self._results.job(key))

    async def job_async(self, key: str) -> JobView:
        """The same on an event loop."""
        return view_of(await (await self._results_async()).job_async(key))

    def ended_job(self, key: str, timeout: Duration | None) -> Job:
        """The row of a job once it has ended, or as it is when time is up: what tasks read."""
        return self._results.ended_job(key, timeout)

    async def ended_job_async(self, key: str, timeout: Duration | None) -> Job:
        """The same on an event loop."""
        return await (await self._results_async()).ended_job_async(key, timeout)

    def results_of(self, task: str, since: datetime | None) -> Iterator[tuple[str, str | None]]:
        """Key and JSON text of all results of a task, by end: what tasks read."""
        return self._results.results_of(task, since)

    async def results_of_async(
        self, task: str, since: datetime | None
    ) -> AsyncIterator[tuple[str, str | None]]:
        """The same on an event loop."""
        async for one in (await self._results_async()).results_of_async(task, since):
            yield one

    def retry(self, *keys: str, task: Returning[Any] | str | None = None) -> RetriedJobs:
        """Put failed jobs back: those of these keys, or all of a task.

        What was skipped because of them waits again.
        """
        from penstock.operate.retry import retry_failed, retry_keys

        name = _task_name(task)
        _check_named("retry", keys, name)
        store = self._queue.store
        return retry_keys(store, keys) if name is None else retry_failed(store, name, None)

    async def retry_async(
        self, *keys: str, task: Returning[Any] | str | None = None
    ) -> RetriedJobs:
        """The same on an event loop."""
        return await asyncio.to_thread(self.retry, *keys, task=task)

    def rerun(
        self, *keys: str, task: Returning[Any] | str | None = None, fresh: bool = False
    ) -> RerunJobs:
        """Run done jobs again: those of these keys, or all of a task.

        They begin at their first attempt. A result stays until the job is done again; what was
        enqueued after it is not touched.

        Args:
            keys: of jobs.
            task: all of its done jobs, if no key is given.
            fresh: buy their paid calls anew, instead of reading the answers from the journal.
        """
        from penstock.operate.rerun import rerun

        name = _task_name(task)
        _check_named("rerun", keys, name)
        return rerun(self._queue.store, keys, name, fresh=fresh)

    async def rerun_async(
        self, *keys: str, task: Returning[Any] | str | None = None, fresh: bool = False
    ) -> RerunJobs:
        """The same on an event loop."""
        return await asyncio.to_thread(self.rerun, *keys, task=task, fresh=fresh)

    def purge(
        self,
        *keys: str,
        task: Returning[Any] | str | None = None,
        older_than: Duration | None = None,
    ) -> PurgedJobs:
        """Forget ended jobs with their results and history; their keys may be used again.

        Args:
            keys: of jobs.
            task: all of its ended jobs, if no key is given.
            older_than: of a task, or of all: only those that ended longer ago.
        """
        from penstock.operate.purge import purge, purge_keys, purge_task

        name, store, clock = _task_name(task), self._queue.store, SystemClock()
        if older_than is None or keys:
            _check_named("purge", keys, name if older_than is None else "older_than=")
        if keys:
            return purge_keys(store, keys)
        age = None if older_than is None else to_seconds(older_than)
        if name is None:
            return PurgedJobs(purge(store, age or 0.0, clock))
        return purge_task(store, name, None if age is None else to_micros(clock.now() - age))

    async def purge_async(
        self,
        *keys: str,
        task: Returning[Any] | str | None = None,
        older_than: Duration | None = None,
    ) -> PurgedJobs:
        """The same on an event loop."""
        return await asyncio.to_thread(self.purge, *keys, task=task, older_than=older_than)

    @property
    def _results(self) -> Results:
        from penstock.app.results import Results

        return Results(self._queue)

    async def _results_async(self) -> Results:
        from penstock.app.results import Results

        return Results(await self._queue_async())

    def plan_daemon(self, settings: Settings, now: int) -> DaemonPlan:
        """Multiply preflights and schedules by partitions: what a daemon checks and arms.

        Evaluates every dimension once. UsageError lists everything that is wrong.

        Args:
            settings: of this app.
            now: microseconds since 1970 UTC; new units tick first from then on.
        """
        return self._queue.plan_daemon(settings, now)

    def run(
        self,
        *,
        daemon: bool = False,
        drain: bool = False,
        max_jobs: int | None = None,
        slots: int | None = None,
        thread_slots: int | None = None,
        process_slots: int | None = None,
        on_progress: OnProgress | None = None,
        **others: Never,
    ) -> RunReport:
        """Work on the queue inside this program until it is drained or interrupted.

        SIGINT, SIGTERM and SIGHUP stop it: the first one gracefully, a second one at once.

        Args:
            daemon: run preflights first, and then schedules together with the queue, as
                `penstock run` does. PreflightFailed if a check does not pass.
            drain: end when no job is left; schedules do not count.
            max_jobs: end when so many jobs have been started and have ended; a retry counts as
                one, ticks of schedules do not.
            slots: how many tasks may run at once, of all kinds together.
            thread_slots: how many of them in threads.
            process_slots: how many of them in processes of their own.
            on_progress: called with a RunProgress about once a second, and at the end, on the
                loop's thread; it must be quick. What it raises ends these calls, not the run.
            others: none; a name of another tool is answered with ours.
        """
        runner, flags = self.runner, _slot_flags(slots, thread_slots, process_slots, others)
        other_names.refuse("app.run", others, other_names.RUN)
        return runner.wait(
            lambda: runner.run(
                daemon=daemon,
                drain=drain,
                max_jobs=max_jobs,
                flags=flags,
                signals=True,
                on_progress=on_progress,
            )
        )

    async def run_async(
        self,
        *,
        daemon: bool = False,
        drain: bool = False,
        max_jobs: int | None = None,
        slots: int | None = None,
        thread_slots: int | None = None,
        process_slots: int | None = None,
        on_progress: OnProgress | None = None,
        **others: Never,
    ) -> RunReport:
        """The same on an event loop, whose host keeps its signals.

        Cancelling it stops it gracefully, within `runtime.grace_seconds`; a second time at once.
        """
        flags = _slot_flags(slots, thread_slots, process_slots, others)
        other_names.refuse("app.run", others, other_names.RUN)
        runner = await self.runner_async()
        return await runner.run(
            daemon=daemon,
            drain=drain,
            max_jobs=max_jobs,
            flags=flags,
            signals=False,
            on_progress=on_progress,
        )

    def plan_build(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        **options: Unpack[BuildOptions],
    ) -> BuildPlan:
        """What a build of the same arguments would do now; changes nothing."""
        self.load()
        now = to_micros(SystemClock().now())
        return self.plan_request(self.runner.request(targets, start, end, now, **options), now)

    def plan_request(self, request: BuildRequest, now: int) -> BuildPlan:
        """The same for a request, at a moment (microseconds since 1970 UTC)."""
        return self.runner.plan(request, now)

    def build(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        slots: int | None = None,
        thread_slots: int | None = None,
        process_slots: int | None = None,
        on_progress: OnProgress | None = None,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """Bring datasets up to date, with all that they need, inside this program.

        Args:
            targets: datasets, or their names.
            start: the first moment; a date is its midnight by the clocks of each calendar.
            end: the first moment that is not asked for; "now" is one, too.
            slots: how many tasks may run at once, of all kinds together.
            thread_slots: how many of them in threads.
            process_slots: how many of them in processes of their own.
            on_progress: called with a RunProgress about once a second, and at the end, on the
                loop's thread; it must be quick. What it raises ends these calls, not the run.
            options: `force` builds what is up to date as well. `eager` starts each job as soon as
                what it needs is there, and commits it by itself; otherwise it goes level by level,
                and a level becomes visible as a whole. `fail_fast` begins nothing more after a
                level in which something failed. `yes`: however many slices it may be.
        """
        runner, flags = self.runner, _slot_flags(slots, thread_slots, process_slots, options)
        return runner.wait(
            lambda: runner.build(
                targets, start, end, flags, signals=True, on_progress=on_progress, **options
            )
        )

    async def build_async(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        slots: int | None = None,
        thread_slots: int | None = None,
        process_slots: int | None = None,
        on_progress: OnProgress | None = None,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """The same on an event loop, whose host keeps its signals; cancelling stops gracefully."""
        flags = _slot_flags(slots, thread_slots, process_slots, options)
        runner = await self.runner_async()
        return await runner.build(
            targets, start, end, flags, signals=False, on_progress=on_progress, **options
        )


def _slot_flags(
    slots: int | None,
    thread_slots: int | None,
    process_slots: int | None,
    others: Mapping[str, object],
) -> dict[str, object]:
    """What bounds a run, as flags; UsageError for a name that only other tools have."""
    if "max_workers" in others:
        raise UsageError(
            "max_workers is not a name of ours; write thread_slots=N for tasks in threads, or "
            "slots=N for tasks of all kinds."
        )
    return {"--slots": slots, "--threads": thread_slots, "--process-slots": process_slots}


def _new_jobs(requests: Iterable[JobRequest[Any]]) -> Iterator[NewJob]:
    if isinstance(requests, JobRequest):
        raise UsageError("enqueue_many takes many jobs; for one, write app.enqueue(job).")
    return (_new_job(request) for request in requests)


def _new_job(request: JobRequest[R], **options: Any) -> NewJob:  # noqa: ANN401 (passed on)
    if not isinstance(request, JobRequest):
        raise UsageError(
            f"enqueue takes a job, got {type(request).__name__}; write app.enqueue(task.job(...))."
        )
    return to_new_job(request.with_options(**options) if options else request)


def _timing(when: Duration, tz: str) -> Timing:
    if isinstance(when, str) and not is_duration(when):
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


def _check_named(verb: str, keys: Collection[str], task: str | None) -> None:
    if bool(keys) == (task is not None):
        raise UsageError(
            f'app.{verb} takes keys of jobs or task=, one of the two: app.{verb}("page-1"), or '
            f"app.{verb}(task=summarise)."
        )


def _task_name(task: Returning[Any] | str | None) -> str | None:
    return task if task is None or isinstance(task, str) else task.name

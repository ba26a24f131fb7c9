# SPDX-License-Identifier: Apache-2.0
"""What does a user define and call? The registry of one application, and its way to the store."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock import wiring
from penstock.clock import Duration, SystemClock, blocking_sleep, to_seconds
from penstock.config.budgets import check_budgets
from penstock.config.find_app import address_of
from penstock.config.load import Loaded, load_settings
from penstock.config.provider_policies import check_providers
from penstock.definitions.provider import (
    ModelOptions,
    Provider,
    ProviderOptions,
    Uses,
    models_of,
)
from penstock.definitions.request import (
    Enqueued,
    EnqueuedMany,
    JobRequest,
    check_name,
    to_new_job,
)
from penstock.definitions.task import PROCESS, LimitValue, Task, TaskDecorator, TaskOptions
from penstock.errors import UnknownTask, UsageError
from penstock.ids import SystemIds
from penstock.model.job import Edge, NewJob
from penstock.model.reply import ReplyClassifier
from penstock.model.scheduling import MetadataSource
from penstock.model.views import EnqueueReport
from penstock.runtime import interpreter
from penstock.runtime.embedded import EmbeddedRun, RunReport, refuse_running_loop, run_and_close
from penstock.runtime.remote import TaskOrder
from penstock.runtime.statistics_line import StatisticsLine
from penstock.stores.patience import insist, insist_async, open_patiently
from penstock.stores.reply import Reply
from penstock.stores.store import Store

ENQUEUE_CHARACTERS = 4 * 1024 * 1024  # of payloads of one transaction, and one more job
GIVE_WAY_JOBS = 50  # after so many the writer's thread may have the interpreter at once
GIVE_WAY_SECONDS = 1e-6  # the shortest that there is; without, the writer waits 5 ms for it
ENQUEUE_AHEAD = 4  # batches on their way while the next is made
UNCHANGED = "nothing was changed. Try again, or find what it waits for."
KEPT_BEFORE = "the jobs before are kept. Do the same again."  # keys make that safe

log = logging.getLogger("penstock.app")

R = TypeVar("R")
_CONFIGURED: Any = object()  # timeout not given: as configured


class Penstock:
    """An application: its tasks, its providers, and the store that its jobs are kept in."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        check_name("app name", name)
        if "/" in name or name.startswith("."):
            raise UsageError(f"The app name {name!r} must be usable as a file name.")
        self.name = name
        self.tasks: dict[str, Task[..., Any]] = {}
        self.providers: dict[str, Provider] = {}
        self._code_settings: dict[str, Any] = {} if store is None else {"store": store}
        self._store: Store | None = None
        self._store_pid = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Penstock {self.name!r}, {len(self.tasks)} tasks>"

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
        timeout: Duration | None = _CONFIGURED,
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
        limit_seconds: float | None = None
        if timeout is not _CONFIGURED and timeout is not None:
            limit_seconds = to_seconds(timeout)
            if limit_seconds <= 0:
                raise UsageError(f"timeout must be above 0 seconds, got {limit_seconds:g}.")
        if limits is not None and not isinstance(limits, Mapping):
            raise UsageError(
                f"limits is a mapping such as {{'host': 'example.org'}}, got {limits!r:.200}."
            )
        options = TaskOptions(
            group=group,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=limit_seconds,
            has_timeout=timeout is not None,
            limits=dict(limits or {}),
            executor=executor,
            metadata=metadata,
            uses=uses,
        )

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            if max_attempts is not None and max_attempts < 1:
                raise UsageError(
                    f"Task {function.__name__!r}: max_attempts must be at least 1, "
                    f"got {max_attempts}."
                )
            task: Task[..., Any] = Task(name or function.__name__, function, options)
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

    @property
    def code_settings(self) -> dict[str, Any]:
        """What the app says in code, as it would stand in a file of settings."""
        tables = {name: provider.options.table() for name, provider in self.providers.items()}
        return {**self._code_settings, "providers": tables}

    def load(
        self,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Loaded:
        """All settings of this app, with where each came from; refuses what counts nothing."""
        loaded = load_settings(
            flags or {},
            os.environ if environ is None else environ,
            folder or Path.cwd(),
            self.code_settings,
        )
        check_providers(loaded, self.tasks, self.providers)
        check_budgets(loaded, self.tasks, self.providers)
        return loaded

    def store_url(self, loaded: Loaded) -> str:
        """Where the store is, with its password if it has one: to connect with, not to print."""
        named = loaded.settings.store
        return wiring.default_store_url(self.name) if named is None else named.reveal()

    @property
    def store(self) -> Store:
        """The store, opened when first needed, once per process."""
        with self._lock:
            if self._store is None or self._store_pid != os.getpid():
                self._store = self._open_store()
                self._store_pid = os.getpid()
            return self._store

    def _open_store(self) -> Store:
        loaded = self.load()
        url, durability = self.store_url(loaded), loaded.settings.durability

        def sleep(seconds: float) -> bool:
            blocking_sleep(seconds)
            return True

        return open_patiently(
            lambda: wiring.open_store(url, durability=durability),
            SystemClock(),
            sleep,
            lambda error: log.warning("Waiting for the store: %s", error),
        )

    async def _store_async(self) -> Store:
        """The store; a server is a network away, so it is not opened on the loop."""
        if self._store is None or self._store_pid != os.getpid():
            return await asyncio.to_thread(lambda: self.store)
        return self._store

    def use_store(self, store: Store) -> None:
        """Use a store that is open already."""
        with self._lock:
            self._store, self._store_pid = store, os.getpid()

    def close(self) -> None:
        """Close the store; it opens again when needed."""
        with self._lock:
            if self._store is not None and self._store_pid == os.getpid():
                self._store.close()
            self._store = None

    def enqueue(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> Enqueued:
        """Accept one job. When this returns, the job survives a crash, and power loss."""
        job = self._accept(
            request, key=key, after=after, priority=priority, delay=delay, group=group
        )
        store = self.store
        ask = partial(store.enqueue, [job])
        report = insist(ask, store, UNCHANGED, ask())
        return Enqueued(job.key, job.key in report.created)

    async def enqueue_async(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> Enqueued:
        """The same on an event loop."""
        job = self._accept(
            request, key=key, after=after, priority=priority, delay=delay, group=group
        )
        store = await self._store_async()
        report = await insist_async(lambda: store.enqueue([job]))
        return Enqueued(job.key, job.key in report.created)

    def enqueue_many(self, requests: Iterable[JobRequest[Any]]) -> EnqueuedMany:
        """Accept many jobs, streaming in batches; each batch is all or nothing."""
        if isinstance(requests, JobRequest):
            raise UsageError("enqueue_many takes many jobs; for one, write app.enqueue(job).")
        store = self.store
        created = existing = 0
        waiting: deque[tuple[list[NewJob], Reply[EnqueueReport]]] = deque()
        source = (self._accept(request) for request in requests)
        while batch := _next_batch(source, store.bulk_jobs):
            waiting.append((batch, store.enqueue(batch)))
            if len(waiting) > ENQUEUE_AHEAD:
                new, known = _counts_of(waiting.popleft(), store)
                created, existing = created + new, existing + known
        while waiting:
            new, known = _counts_of(waiting.popleft(), store)
            created, existing = created + new, existing + known
        return EnqueuedMany(created, existing)

    def _accept(self, request: JobRequest[R], **options: Any) -> NewJob:  # noqa: ANN401 (passed on)
        if not isinstance(request, JobRequest):
            raise UsageError(
                f"enqueue takes a job, got {type(request).__name__}; write "
                f"app.enqueue(task.job(...))."
            )
        return to_new_job(request.with_options(**options) if options else request)

    def run(self, *, drain: bool = False, slots: int | None = None) -> RunReport:
        """Work on the queue inside this program until it is drained or interrupted."""
        refuse_running_loop()
        with interpreter.tuned():
            return run_and_close(wiring.new_event_loop(), self.run_async(drain=drain, slots=slots))

    async def run_async(self, *, drain: bool = False, slots: int | None = None) -> RunReport:
        """The same on an event loop; cancelling it stops gracefully."""
        flags = {} if slots is None else {"--slots": slots}
        loaded = self.load(flags)
        wiring.check_dimensions(loaded, self.tasks)
        settings = loaded.settings
        ids = SystemIds()
        options = wiring.RunOptions(run_id=ids.new_id("run"), drain=drain)
        task_order = self._task_order()
        clock = SystemClock()
        every = settings.runtime.statistics_seconds
        store = await self._store_async()
        statistics = StatisticsLine(every, options.run_id, store, clock)
        run = EmbeddedRun(store, clock, settings.runtime)
        return await run.run(
            lambda keeper, table: wiring.build_worker(
                options,
                self.tasks,
                settings,
                store,
                keeper,
                table,
                clock=clock,
                ids=ids,
                task_order=task_order,
                events=statistics.events,
                providers=self.providers,
                sources=loaded.sources,
            ),
            wiring.slot_count(settings, self.providers),
            options.run_id,
            statistics,
        )

    def _task_order(self) -> TaskOrder | None:
        """How other processes get at this app; None if no task asks for one."""
        if all(task.kind != PROCESS for task in self.tasks.values()):
            return None
        address = address_of(self, self.name)
        return TaskOrder(app=address, folder=str(Path.cwd()), path=tuple(sys.path))


def _next_batch(source: Iterator[NewJob], most: int) -> list[NewJob]:
    """The next jobs of one transaction, bounded in number and in size."""
    batch: list[NewJob] = []
    size = 0
    for job in source:
        batch.append(job)
        size += len(job.payload)
        if len(batch) % GIVE_WAY_JOBS == 0:
            blocking_sleep(GIVE_WAY_SECONDS)
        if len(batch) == most or size > ENQUEUE_CHARACTERS:
            break
    return batch


def _counts_of(sent: tuple[list[NewJob], Reply[EnqueueReport]], store: Store) -> tuple[int, int]:
    """How many jobs of a batch were new, and how many known (or twice in it)."""
    batch, reply = sent
    report = insist(lambda: store.enqueue(batch), store, KEPT_BEFORE, reply)
    return len(report.created), len(batch) - len(report.created)

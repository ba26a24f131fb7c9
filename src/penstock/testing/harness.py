# SPDX-License-Identifier: Apache-2.0
"""The test harness: runs an app in memory, in virtual time, reproducibly from a seed.

The engine is the real one; its store is in memory and its time is virtual, so that a retry in five
minutes happens at once. `def` tasks run on the loop itself, one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, Unpack

import msgspec

from penstock.app import wiring
from penstock.app.app import Penstock
from penstock.app.build import (
    BuildOptions,
    build_request,
    build_scope,
    build_tasks,
    kept_datasets,
    served_schedules,
)
from penstock.app.daemon import begun_now, checked_values, plan_of_now, preflight_run
from penstock.builds.build import Build, EmbeddedBuild
from penstock.builds.locks import LockHolder
from penstock.clock import Duration, to_micros, to_seconds
from penstock.config.budgets import check_budgets
from penstock.config.load import load_settings, merge_tables
from penstock.config.provider_policy import check_providers
from penstock.config.settings import Settings
from penstock.definitions.dataset import Dataset, Moment
from penstock.definitions.request import Enqueued, EnqueuedMany, JobRequest
from penstock.definitions.task import Task
from penstock.errors import AccountClosed, BudgetUsedUp, ScheduleEnded, UsageError
from penstock.events.kinds import SchedulerEvent
from penstock.events.sink import RequestEvents, SchedulerEvents
from penstock.ids import SeededIds
from penstock.model.job import TERMINAL, Attempt, AttemptError, Edge, Job, JobId, JobState, WorkerId
from penstock.model.plan import BuildReport, BuildRequest
from penstock.model.run import OnProgress
from penstock.model.schedule import UnitView
from penstock.outputs.root import OutputRoot, open_root
from penstock.planning.units import DaemonPlan
from penstock.requests.clients.provider_clients import MakeTransport
from penstock.schedules.daemon_start import Arming, DaemonStart
from penstock.schedules.plan import check_partitions
from penstock.sentences import counted
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing.recording_sink import RecordingSink
from penstock.testing.virtual_loop import VirtualBeat, VirtualClock, VirtualLoop
from penstock.worker.log_lines import StatisticsLine
from penstock.worker.parts import Stopping
from penstock.worker.run_progress import ProgressReporter, check_on_progress
from penstock.worker.slot_table import SlotTable
from penstock.worker.thread_executor import InlineRunner
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    import pyarrow

V = TypeVar("V")
T = TypeVar("T")

DRAIN_SECONDS = 2 * 86_400.0  # virtual; longer than the engine waits for an unhealthy provider
LOOK_SECONDS = 30.0  # virtual; how often a drain is looked at
PAGE = 1_000  # jobs read at once

R = TypeVar("R")


class ByKey(dict[str, V]):
    """Values by job key; a missing one says what the job is instead."""

    def __init__(self, values: Mapping[str, V], jobs: Mapping[str, Job], what: str) -> None:
        super().__init__(values)
        self._jobs = jobs
        self._what = what

    def __missing__(self, key: str) -> NoReturn:
        job = self._jobs.get(key)
        if job is None:
            raise KeyError(f"no job has the key {key!r}")
        error = job.last_error
        why = "" if error is None else f": {error.kind}: {error.message}"
        raise KeyError(f"job {key!r} has no {self._what}, it is {job.state.value}{why}")


class Simulated(Protocol):
    """Answers requests in place of a provider."""

    def transport(self) -> Any:  # noqa: ANN401 (of httpx2 or httpx)
        ...


def _simulated_transport(simulated: Simulated, library: object) -> Any:  # noqa: ANN401
    return simulated.transport()


async def _at_once(call: Callable[[], T], /) -> T:
    return call()


class _VirtualLocks:
    """Renews the locks of a run on the loop, where nothing can block."""

    def __init__(
        self,
        store: InProcessStore,
        clock: VirtualClock,
        run_id: str,
        build: EmbeddedBuild,
        ttl_seconds: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._run_id = run_id
        self._build = build
        self._ttl_seconds = ttl_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(self._ttl_seconds / 3)
            ours = await self._store.beat_locks(self._run_id, self._ttl_seconds)
            if self._build.has_locks() and not ours:
                self._build.lost()


class Harness:
    """One app with a store and a time of its own; made by `harness(app)`."""

    def __init__(
        self,
        app: Penstock,
        seed: int,
        settings: Settings,
        root: OutputRoot,
        providers: Mapping[str, Simulated],
    ) -> None:
        self.app = app
        self._root = root  # of datasets; a folder that nobody else has
        self._wires: dict[str, MakeTransport] = {
            name: partial(_simulated_transport, simulated) for name, simulated in providers.items()
        }
        for name in app.providers.keys() - providers.keys():
            self._wires[name] = partial(self._refuse_network, name)
        self._refused: UsageError | None = None  # a request that would have left this test
        self.seed = seed
        self._settings = settings
        self._loop = VirtualLoop(seed=seed)
        self._ids = SeededIds(seed)
        self.clock = VirtualClock(self._loop)
        self.store = InProcessStore(self.clock)
        self.sink = RecordingSink()
        self._events = SchedulerEvents(self.clock, (self.sink,))
        self._request_events = RequestEvents(self.clock, (self.sink,))
        self._plan: DaemonPlan | None = None
        self._daemon: asyncio.Task[None] | None = None  # stands still between calls
        self._worker: Worker | None = None  # its worker

    def __repr__(self) -> str:
        return f"<Harness of {self.app.name!r}, seed {self.seed}, {len(self._jobs())} jobs>"

    def enqueue(
        self,
        request: JobRequest[R],
        key: str | None = None,
        after: Iterable[str | Edge] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> Enqueued:
        """Accept one job, as `app.enqueue` does."""
        return self.app.enqueue(request, key, after, priority, delay, group)

    def enqueue_many(self, requests: Iterable[JobRequest[Any]]) -> EnqueuedMany:
        """Accept many jobs, as `app.enqueue_many` does."""
        return self.app.enqueue_many(requests)

    def drain(
        self, within: Duration = DRAIN_SECONDS, on_progress: OnProgress | None = None
    ) -> None:
        """Work until every job has ended, delayed ones included.

        Args:
            within: how much virtual time it may take.
            on_progress: as that of `app.run`, once a virtual second.

        Raises:
            UsageError: work is left that nobody can do, or that does not come to an end.
            BudgetUsedUp: what is left waits for a budget.
        """
        _refuse_running_loop()
        check_on_progress(on_progress)
        self._loop.run_until_complete(self._drain(to_seconds(within), on_progress))

    async def _drain(self, within_seconds: float, on_progress: OnProgress | None) -> None:
        loop, run_id = asyncio.get_running_loop(), self._ids.new_id("run")
        progress = ProgressReporter(run_id, self.store, self.clock, on_progress)
        with self._run(self.app.tasks, drain=True, run_id=run_id) as worker:
            watching = loop.create_task(self._watch(worker, within_seconds))
            reporting = loop.create_task(progress.run())
            try:
                await worker.run()
            finally:
                stopped = watching.done()
                watching.cancel()
                reporting.cancel()
        if on_progress is not None:
            progress.end(await self.store.outlook(WorkerId(""), run_id))
        if self._refused is not None:
            raise self._refused
        if stopped:
            raise UsageError(watching.result())
        if worker.stops:
            raise BudgetUsedUp(worker.stops[0].sentence, worker.stops[0].budget)
        if worker.closed_accounts:
            raise AccountClosed(worker.closed_accounts[0].sentence, 0)
        if worker.left_behind:
            raise UsageError(self._left_behind())

    @contextmanager
    def _run(
        self,
        tasks: Mapping[str, Task[..., Any]],
        *,
        drain: bool,
        run_id: str | None = None,
        until: str | None = None,
    ) -> Iterator[Worker]:
        """A worker of the store, with its beat and its statistics; on the loop."""
        loop = asyncio.get_running_loop()
        beat = VirtualBeat(self.store, self.clock, self._settings)
        table = SlotTable.create(wiring.slot_count(self._settings, self.app.providers))
        run_id = run_id or self._ids.new_id("run")
        every = self._settings.runtime.statistics_seconds
        statistics = StatisticsLine(every, run_id, self.store, self.clock, self._events)
        beside: list[asyncio.Task[None]] = []
        try:
            worker = wiring.build_worker(
                wiring.RunOptions(run_id=run_id, app=self.app.name, drain=drain, until=until),
                tasks,
                self._settings,
                self.store,
                beat,
                table,
                clock=self.clock,
                ids=self._ids,
                threads=InlineRunner,
                events=self._events,
                providers=self.app.providers,
                wires=self._wires,
                request_events=self._request_events,
                policy=self.app.registry.retry_policy,
                preflights=self.app.preflights.values(),
                checked=checked_values(self.app.name, self.app.preflights, self._plan),
                plan=plan_of_now(self._plan, self.app.schedules, self.clock),
            )
            beside = [loop.create_task(beat.run()), loop.create_task(statistics.run())]
            yield worker
        finally:
            for task in beside:
                task.cancel()
            table.close()

    def advance(self, duration: Duration) -> None:
        """Let schedules tick and the queue be worked on for so much virtual time.

        The first time preflights run before, in a time of their own. Between two calls time stands
        still: whatever runs goes on with the next.

        Raises:
            PreflightFailed: checks did not pass; nothing was begun, and the next call tries again.
            ScheduleEnded: a schedule has used up its attempts, so the run has ended.
        """
        _refuse_running_loop()
        self._loop.run_until_complete(self._advance(to_seconds(duration)))
        if self._refused is not None:
            raise self._refused

    async def _advance(self, seconds: float) -> None:
        if self._daemon is None:
            await self._start()
            self._daemon = asyncio.get_running_loop().create_task(self._work())
        daemon = self._daemon
        await asyncio.wait((daemon,), timeout=seconds)
        if daemon.done():
            self._daemon = None  # the next call begins anew
            daemon.result()

    def restart(self) -> None:
        """Stop what `advance` has begun, gracefully; the next call checks and arms anew."""
        if self._daemon is not None and self._worker is not None:
            daemon, self._daemon = self._daemon, None
            self._worker.stop(Stopping.GRACEFUL)
            self._loop.run_until_complete(daemon)

    async def _start(self) -> None:
        now = to_micros(self.clock.now())
        plan = self._plan = self.app.plan_daemon(self._settings, now)
        checks = preflight_run(
            plan,
            self.app.preflights,
            self._settings,
            self.clock,
            self._ids,
            policy=self.app.registry.retry_policy,
            providers=self.app.providers,
            wires=self._wires,
            threads=InlineRunner,
            events=self._events,
            request_events=self._request_events,
        )
        arming = Arming(self.app.name, self.store, self.clock, self._ids.random)
        start = DaemonStart(
            checks,
            arming,
            lambda: begun_now(plan, self.app.schedules, to_micros(self.clock.now())),
        )
        await start.run()

    async def _work(self) -> None:
        registry, clock = self.app.registry, self.clock
        schedules = served_schedules(
            registry, lambda: self._root, self._settings, self.store, clock, self._ids, _at_once
        )
        tasks = {**self.app.tasks, **schedules}
        if kept_datasets(registry):
            tasks |= build_tasks(self.app.datasets, self._root, self.app.datasets)
        with self._run(tasks, drain=False) as worker:
            self._worker = worker
            await worker.run()
        if worker.ended_schedules:
            raise ScheduleEnded(" ".join(worker.ended_schedules))
        if worker.stops:
            raise BudgetUsedUp(worker.stops[0].sentence, worker.stops[0].budget)
        if worker.closed_accounts:
            raise AccountClosed(worker.closed_accounts[0].sentence, 0)

    def build(
        self,
        *targets: str | Dataset[..., Any],
        start: Moment,
        end: Moment,
        **options: Unpack[BuildOptions],
    ) -> BuildReport:
        """Bring datasets up to date, as `app.build` does; nothing that is asked for is too new."""
        self.app.registry.check_datasets()
        names = [self.app.registry.find_dataset(one).name for one in targets]
        now = to_micros(self.clock.now())
        request = build_request(self.app.datasets, names, start, end, now, **options)
        return self._loop.run_until_complete(self._build(request))

    def read(
        self,
        dataset: str | Dataset[..., Any],
        start: Moment | None = None,
        end: Moment | None = None,
    ) -> pyarrow.Table:
        """What is committed of a dataset, as an Arrow table."""
        return self.app.registry.find_dataset(dataset).read(start, end)

    async def _build(self, request: BuildRequest) -> BuildReport:
        run_id = self._ids.new_id("run")
        times = self._settings.runtime
        build = Build(
            build_scope(self.app.name, self.app.datasets, self._root),
            request,
            LockHolder(run_id, run_id, times.lease_ttl_seconds),
            self.store,
            self.clock,
            rand=self._ids.random,
            aside=_at_once,
            now_at=max(to_micros(self.clock.now()), *(end for _, end in request.ranges)),
        )
        tasks = build_tasks(self.app.datasets, self._root, build.names)

        async def work(end_key: str, begun: Callable[[Worker], None]) -> str | None:
            with self._run(tasks, drain=True, run_id=run_id, until=end_key) as worker:
                begun(worker)
                await worker.run()
            closed = [one.sentence for one in worker.closed_accounts]
            return " ".join([*(stop.sentence for stop in worker.stops), *closed]) or None

        embedded = EmbeddedBuild(build)
        beat = _VirtualLocks(self.store, self.clock, run_id, embedded, times.lease_ttl_seconds)
        return await embedded.run(beat, work)

    def unit(self, key: str) -> UnitView:
        """All that is known of one unit of a schedule, such as `schedule:poll:a`."""
        unit = self.store.unit(key).result()
        if unit is None:
            raise KeyError(f"no unit has the key {key!r}")
        return unit

    def cursor(self, key: str) -> Any:  # noqa: ANN401 (JSON is dynamic)
        """The cursor of one unit, as JSON gives it back; None if it was never set."""
        text = self.store.cursor(key).result()
        return None if text is None else msgspec.json.decode(text)

    def _refuse_network(self, name: str, library: object) -> NoReturn:
        self._refused = UsageError(
            f"The provider {name!r} has no simulation in this test, so nothing is sent; write "
            f"harness(app, providers={{{name!r}: SimulatedProvider()}}), or use "
            "app.run(drain=True) to reach the real one."
        )
        raise self._refused

    async def _watch(self, worker: Worker, within_seconds: float) -> str:
        """Stop a drain that cannot end; gives the reason."""
        deadline = self.clock.monotonic() + within_seconds
        while True:
            await self.clock.sleep(min(LOOK_SECONDS, within_seconds))
            if self.clock.monotonic() >= deadline:
                worker.stop(Stopping.NOW)
                return (
                    f"The drain did not end within {within_seconds:g} virtual seconds: "
                    f"{self._unfinished()}. Give the task a timeout, or drain(within=...) more."
                )
            if not worker.running and self._nobody_can_start():
                worker.stop(Stopping.NOW)
                return (
                    f"The drain cannot end: {self._unfinished()}, and none may start. Look for a "
                    "limit of 0 and for a paused queue."
                )

    def _nobody_can_start(self) -> bool:
        """Ready jobs that nobody has taken for a while: a free worker takes them at once."""
        stats = self.store.stats().result()
        oldest = stats.oldest_ready_seconds
        return (
            oldest is not None
            and oldest >= LOOK_SECONDS
            and stats.next_due_at is None
            and not stats.states[JobState.IN_PROGRESS]
        )

    def _unfinished(self) -> str:
        left = [job for job in self._jobs().values() if job.state not in TERMINAL]
        if not left:
            return "the last job ended just now"
        first = left[0]
        return (
            f"{counted(len(left), 'job')} left, the first is {first.key!r} of task {first.task!r}, "
            f"{first.state.value}"
        )

    def _left_behind(self) -> str:
        tasks = sorted(
            {
                job.task
                for job in self._jobs().values()
                if job.state not in TERMINAL and job.task not in self.app.tasks
            }
        )
        return (
            f"Work is left that nobody can do: {self._unfinished()}. The app {self.app.name!r} "
            f"does not define: {', '.join(map(repr, tasks))}."
        )

    @property
    def results(self) -> Mapping[str, Any]:
        """What done jobs returned, as JSON gives it back, by key."""
        jobs = self._jobs()
        done = {
            key: None if job.result is None else msgspec.json.decode(job.result)
            for key, job in jobs.items()
            if job.state is JobState.DONE
        }
        return ByKey(done, jobs, "result")

    @property
    def states(self) -> Mapping[str, JobState]:
        """The state of every job, by key; a state equals its text (`"done"`)."""
        jobs = self._jobs()
        return ByKey({key: job.state for key, job in jobs.items()}, jobs, "state")

    @property
    def errors(self) -> Mapping[str, AttemptError]:
        """Why jobs ended in `error`, by key."""
        jobs = self._jobs()
        failed = {
            key: job.last_error
            for key, job in jobs.items()
            if job.state is JobState.ERROR and job.last_error is not None
        }
        return ByKey(failed, jobs, "error")

    @property
    def events(self) -> list[SchedulerEvent]:
        """What the engine said so far."""
        return self.sink.events

    def job(self, key: str) -> Job:
        """All that is known of one job."""
        job = self.store.job(key).result()
        if job is None:
            raise KeyError(f"no job has the key {key!r}")
        return job

    def attempts(self, key: str) -> list[Attempt]:
        """The history of one job."""
        return self.store.attempts(key).result()

    def _jobs(self) -> dict[str, Job]:
        found: dict[str, Job] = {}
        last = JobId(0)
        while page := self.store.jobs(JobFilter(), last, PAGE).result():
            found.update((job.key, job) for job in page)
            last = page[-1].id
        return found

    def close(self) -> None:
        """End what still runs and give everything back."""
        try:
            self._loop.end_leftovers()
        finally:
            self._loop.close()


@contextmanager
def harness(
    app: Penstock,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    providers: Mapping[str, Simulated] | None = None,
) -> Iterator[Harness]:
    """Run an app in memory and in virtual time.

    Neither files nor the environment are read, so that a test means the same everywhere.

    Args:
        app: the app; while the harness is open, `app.enqueue` goes to its memory as well.
        seed: decides the order of what is ready at once; the same seed, the same run.
        settings: tables as in penstock.toml, such as `{"limits": {"host": {"*": 1}}}`.
        providers: who answers the requests of the app's providers, by their names; such as a
            `SimulatedProvider`. Requests of others are refused, and the drain says so.
    """
    _refuse_running_loop()
    with TemporaryDirectory() as nowhere:  # no files: a test means the same everywhere
        said = merge_tables({"providers": app.registry.code_settings["providers"]}, settings or {})
        loaded = load_settings({}, {}, Path(nowhere), said)
    check_providers(loaded, app.registry.all_tasks, app.providers)
    check_budgets(loaded, app.registry.all_tasks, app.providers)
    check_partitions(loaded, app.registry.dimensions)
    for name in providers or {}:
        if name not in app.providers:
            raise UsageError(f"The app {app.name!r} has no provider {name!r} to be simulated.")
    app.registry.check_datasets()
    with TemporaryDirectory() as folder:
        root = OutputRoot(folder, "")
        if app.datasets:
            root = open_root(folder, SeededIds(seed))
        test = Harness(app, seed, loaded.settings, root, providers or {})
        app.close()
        app.use_store(test.store)
        app.use_root(root)
        try:
            yield test
        finally:
            try:
                test.close()
            finally:
                app.close()


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "The harness has an event loop of its own and cannot be used on a running one; use it in a "
        "plain `def` test."
    )

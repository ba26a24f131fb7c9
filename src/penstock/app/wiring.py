# SPDX-License-Identifier: Apache-2.0
"""Composition root: definitions, settings and a store become a worker."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.builds.kept import KeptLocks, keeper_mark
from penstock.builds.slice import SliceKind, SliceTask, StepKind, StepTask
from penstock.builds.slice_inputs import SliceReader
from penstock.clock import Clock, SystemClock
from penstock.config.budgets import budgets_of, prices_of
from penstock.config.load import LoadedSettings, dotted
from penstock.config.provider_policy import (
    account_errors,
    dialect_of,
    idempotency_header,
    provider_policies,
    unserved_tasks,
)
from penstock.config.settings import ProviderSettings, Settings
from penstock.config.show import configured_capacity
from penstock.definitions.preflight import Preflight
from penstock.definitions.provider import Provider
from penstock.definitions.schedule import Schedule
from penstock.definitions.task import ROW_GROUP, Task
from penstock.errors import ConfigError
from penstock.events.sink import RequestEvents, SchedulerEvents, default_sinks
from penstock.ids import IdSource, SystemIds
from penstock.model.lease import ConfiguredCaps
from penstock.model.spending import Budget
from penstock.planning.units import DaemonPlan, plan_mark
from penstock.requests.clients.provider_clients import MakeTransport
from penstock.requests.exchange import ReplyLimits
from penstock.requests.journal.paid_policy import HOLD, PaidPolicy
from penstock.retry.policy import RetryPolicy
from penstock.schedules.plan_keeper import PlanKeeper
from penstock.schedules.preflight_results import CheckedValues, RecheckedReader
from penstock.schedules.preflight_run import PreflightKind
from penstock.schedules.tick import TickKind
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.worker.attempt import UNLIMITED, TaskLimits
from penstock.worker.executor import LENT_PLACES, ROW_GROUP_SLOTS
from penstock.worker.job_kind import PlainKind
from penstock.worker.kind import JobReader, Kind, ServedTask
from penstock.worker.parts import (
    LeaseKeeper,
    Observers,
    SupervisorLink,
    WorkerConfig,
    WorkerLoop,
    WorkerParts,
)
from penstock.worker.process_executor import ProcessPool
from penstock.worker.provider_run import NamedRun, ProviderRun, ServedProvider
from penstock.worker.slot_table import SlotTable
from penstock.worker.start_budget import StartBudget
from penstock.worker.task_protocol import TaskOrder
from penstock.worker.thread_executor import ThreadPool, ThreadRunner
from penstock.worker.worker import Worker

_NONE: Mapping[str, Provider] = {}
_NO_WIRES: Mapping[str, MakeTransport] = {}
_NO_SOURCES: Mapping[str, str] = {}

MEANWHILE = "Running jobs go on; none is started until it is reachable again."

log = logging.getLogger("penstock.limits")
worker_log = logging.getLogger("penstock.worker")


def check_dimensions(loaded: LoadedSettings, tasks: Mapping[str, Task[..., Any]]) -> None:
    """Refuse limits of a dimension that no task has and that looks like a typo.

    One that is like no other is let through, since a file or a script may serve several apps; if it
    was typed, a warning says that it limits nothing.
    """
    known = sorted(frozenset[str]().union(*(task.dimensions for task in tasks.values())))
    for dimension in loaded.settings.limits.keys() - set(known):
        names = loaded.settings.limits[dimension]
        sources = {loaded.sources[dotted(("limits", dimension, name))] for name in names}
        typed = sorted(source for source in sources if source.startswith("--"))
        sentence = (
            f"limits.{dimension} is a dimension that no task has "
            f"(from {typed[0] if typed else min(sources)})"
        )
        near = difflib.get_close_matches(dimension, known, 1)
        if near:
            raise ConfigError(f"{sentence}; the nearest known one is {near[0]!r}.")
        if typed:
            have = f"known are {', '.join(map(repr, known))}" if known else "no task has limits"
            log.warning("%s; it limits nothing, %s.", sentence, have)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The configuration of one worker."""

    run_id: str
    app: str = ""  # its name: budgets are per app
    drain: bool = False
    starts: StartBudget | None = None  # of the run; None: it may start any number of jobs
    solo: bool = False
    supervisor_pid: int = 0  # who reports its death; 0: nobody
    until: str | None = None  # drain until the job of this key has ended
    lease_ttl_seconds: float | None = None  # None: as configured
    signals: bool = False  # of an embedded run: it is stopped by signals


def build_worker(
    options: RunOptions,
    tasks: Mapping[str, Task[..., Any]],
    settings: Settings,
    store: Store,
    keeper: LeaseKeeper,
    table: SlotTable,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    threads: Callable[[asyncio.AbstractEventLoop], ThreadRunner] = ThreadPool,
    task_order: TaskOrder | None = None,
    events: SchedulerEvents | None = None,
    providers: Mapping[str, Provider] = _NONE,
    share: ProcessShare = ProcessShare(),  # noqa: B008 (a constant)
    wires: Mapping[str, MakeTransport] = _NO_WIRES,
    request_events: RequestEvents | None = None,
    supervisor: SupervisorLink | None = None,
    sources: Mapping[str, str] = _NO_SOURCES,
    policy: RetryPolicy = RetryPolicy(),  # noqa: B008 (a constant)
    preflights: Iterable[Preflight[..., Any]] = (),
    checked: CheckedValues | None = None,
    plan: Callable[[], DaemonPlan] | None = None,
) -> Worker:
    """Put a worker together; must be called on its loop.

    Without a `task_order` bodies of process tasks run where all others run. `share` is our part of
    every cap; `wires` answer for providers; `sources` are of settings; `policy` is the app's
    baseline, `preflights` its checks, `checked` what they returned, `plan` what a daemon ticks.
    """
    policies = provider_policies(settings, providers)
    clock = clock or SystemClock()
    ids = ids or SystemIds()
    loop = asyncio.get_running_loop()
    parts = WorkerParts(
        store=store,
        caps=ConfiguredCaps({**_caps_of(tasks), **settings.caps()}),
        keeper=keeper,
        table=table,
        threads=threads(loop),
        processes=None if task_order is None else ProcessPool(task_order, loop),
        clock=clock,
        ids=ids,
        policy=replace(policy, give_up_after_seconds=settings.tasks.give_up_after),
        events=events or SchedulerEvents(clock, default_sinks()),
        retry=StoreRetry(worker_log, clock, ids.random, MEANWHILE),
        loop=WorkerLoop(),
        observers=Observers(),
        providers=_serving(
            options,
            settings,
            sources,
            providers,
            policies,
            wires,
            store,
            clock,
            ids,
            share,
            request_events or RequestEvents(clock, default_sinks()),
        ),
        supervisor=supervisor,
        starts=options.starts,
    )
    if checked is not None:
        parts = replace(parts, begin=partial(checked.read, store, parts.retry))
    config = _config(options, tasks, settings, sources, providers, share)
    config = replace(config, unserved=unserved_tasks(tasks, policies, share))
    config = _keeping_plan(plan, config, options, parts, tasks)
    return Worker(config, served_tasks(tasks, settings, parts, preflights, checked), parts)


def _caps_of(tasks: Mapping[str, Task[..., Any]]) -> dict[str, int]:
    """The keyed limits that definitions bring along."""
    found: dict[str, int] = {}
    for task in tasks.values():
        if isinstance(task, SliceTask):
            found.update(task.caps)
    return found


def _keeping_plan(
    plan: Callable[[], DaemonPlan] | None,
    config: WorkerConfig,
    options: RunOptions,
    parts: WorkerParts,
    tasks: Mapping[str, Task[..., Any]],
) -> WorkerConfig:
    """The configuration of a worker that tells what it ticks; one worker of a run keeps it so."""
    if plan is None:
        return config
    config = replace(config, plan=plan_mark(plan()))
    if not config.place and not config.solo:
        parts.observers.subscribe((PlanKeeper(options.app, options.run_id, plan, parts),))
        ticking = [task for task in tasks.values() if isinstance(task, Schedule)]
        marks = frozenset(keeper_mark(options.app, one.name) for one in ticking if one.keeps)
        if marks:
            times = config.lease_ttl_seconds, config.beat_seconds
            parts.observers.subscribe((KeptLocks(marks, parts, *times),))
    return config


def _config(
    options: RunOptions,
    tasks: Mapping[str, Task[..., Any]],
    settings: Settings,
    sources: Mapping[str, str],
    providers: Mapping[str, Provider],
    share: ProcessShare,
) -> WorkerConfig:
    runtime = settings.runtime
    slots = runtime.slots_by_kind()
    if any(task.slot_kind == ROW_GROUP for task in tasks.values()):
        slots[ROW_GROUP] = ROW_GROUP_SLOTS
    return WorkerConfig(
        run_id=options.run_id,
        app=options.app,
        slots=slots,
        slots_max=runtime.slots,
        lease_ttl_seconds=options.lease_ttl_seconds or runtime.lease_ttl_seconds,
        grace_seconds=runtime.grace_seconds,
        beat_seconds=runtime.beat_seconds,
        max_crashes=settings.tasks.max_crashes,
        place=share.index,
        drain=options.drain or options.until is not None,
        until=options.until,
        solo=options.solo,
        supervisor_pid=options.supervisor_pid,
        runs_suspects=not options.supervisor_pid,
        capacity=configured_capacity(settings, sources, providers),
        journal_retention_seconds=settings.calls_kept() if _has_paid(settings) else None,
    )


def kinds_of(
    tasks: Mapping[str, Task[..., Any]],
    parts: WorkerParts,
    preflights: Iterable[Preflight[..., Any]],
    checked: CheckedValues | None,
) -> dict[type[Task[..., Any]], Kind]:
    """The kinds of jobs, by the class of their tasks; whatever is not named here is plain."""
    schedules = {name: task for name, task in tasks.items() if isinstance(task, Schedule)}
    slices = {name: task for name, task in tasks.items() if isinstance(task, SliceTask)}
    reader = SliceReader(slices, parts)
    return {
        Preflight: PreflightKind(checked),
        Schedule: TickKind(schedules, parts, checked, preflights),
        SliceTask: SliceKind(slices, _rechecked(checked, parts, reader) or reader, checked),
        StepTask: StepKind(reader, parts),
    }


def _rechecked(
    checked: CheckedValues | None, parts: WorkerParts, then: JobReader | None = None
) -> JobReader | None:
    """What reads for jobs if preflights stay on duty; None if none does."""
    if checked is None or not checked.on_duty:
        return None
    return RecheckedReader(checked, checked.rechecked_for_job, parts.store, parts.retry, then)


def served_tasks(
    tasks: Mapping[str, Task[..., Any]],
    settings: Settings,
    parts: WorkerParts,
    preflights: Iterable[Preflight[..., Any]] = (),
    checked: CheckedValues | None = None,
) -> dict[str, ServedTask]:
    """Each task with its limits and the kind of its jobs."""
    kinds = kinds_of(tasks, parts, preflights, checked)
    plain = PlainKind(checked, _rechecked(checked, parts), parts.store.upstream)
    return {
        name: ServedTask(
            task,
            _task_limits(task, settings, parts.policy),
            next((kinds[one] for one in type(task).__mro__ if one in kinds), plain),
        )
        for name, task in tasks.items()
    }


def _task_limits(task: Task[..., Any], settings: Settings, policy: RetryPolicy) -> TaskLimits:
    """Merge what a task, schedule or preflight says with what is configured."""
    options, crashes = task.options, settings.tasks.max_crashes
    if options.retry is not None:
        policy = policy.for_task(*options.retry.seconds())
    if isinstance(task, Preflight):
        within = settings.runtime.preflight_timeout
        timeout = min(options.timeout_seconds or within, within)
        return TaskLimits(1, timeout, 1, within, policy)
    seconds: float | None = None
    if options.has_timeout:
        seconds = options.timeout_seconds or settings.tasks.timeout
    if isinstance(task, Schedule):
        return TaskLimits(options.max_attempts or UNLIMITED, seconds, crashes, policy=policy)
    attempts = options.max_attempts or settings.tasks.max_attempts
    return TaskLimits(attempts, seconds, crashes, policy=policy)


def _serving(
    options: RunOptions,
    settings: Settings,
    sources: Mapping[str, str],
    providers: Mapping[str, Provider],
    policies: Mapping[str, ProviderPolicy],
    wires: Mapping[str, MakeTransport],
    store: Store,
    clock: Clock,
    ids: IdSource,
    share: ProcessShare,
    events: RequestEvents,
) -> ProviderRun | None:
    """Whoever serves the providers of an app; None if it has none."""
    if not providers:
        return None
    said = {name: settings.providers.get(name, ProviderSettings()) for name in providers}
    budgets = budgets_of(settings, sources)
    served = [
        ServedProvider(
            provider,
            policies[name],
            said[name].base_url,
            wires.get(name),
            _limits(said[name]),
            _paid_policy(name, said[name], budgets, options.app),
            said[name].redirects,
            dialect_of(said[name]),
            account_errors(said[name]),
        )
        for name, provider in providers.items()
    ]
    return ProviderRun(
        served,
        store,
        clock,
        share=share,
        rand=ids.random,
        run=NamedRun(options.app, options.run_id),
        events=events,
        budgets=budgets,
    )


def _paid_policy(
    name: str, said: ProviderSettings, budgets: tuple[Budget, ...], app: str
) -> PaidPolicy | None:
    """What holds for the calls of a provider; None: they cost nothing."""
    if not said.paid:
        return None
    return PaidPolicy(
        name,
        app=app,
        holds_in_doubt=said.in_doubt == HOLD,
        idempotency_header=idempotency_header(said),
        prices=prices_of(said),
        dollar_budgets=tuple(one for one in budgets if one.micros is not None),
    )


def _has_paid(settings: Settings) -> bool:
    return any(said.paid for said in settings.providers.values())


def _limits(said: ProviderSettings) -> ReplyLimits:
    return ReplyLimits(
        said.reply_deadline_seconds, said.reply_body_bytes_max, said.reply_header_bytes_max
    )


def slot_count(settings: Settings, providers: Mapping[str, Provider] = _NONE) -> int:
    """How many bodies there may be in a worker: slots are lent where there are providers."""
    slots = sum(settings.runtime.slots_by_kind().values()) + ROW_GROUP_SLOTS
    return LENT_PLACES * slots if providers else slots

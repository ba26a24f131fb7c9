# SPDX-License-Identifier: Apache-2.0
"""Composition root: settings become objects. Nothing else imports concrete backends."""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import uvloop

from penstock.admission.requests.caps import ProcessShare, ProviderPolicy
from penstock.clock import Clock, SystemBootClock, SystemClock
from penstock.config.budgets import budgets_of, prices_of
from penstock.config.capacity import configured_capacity
from penstock.config.load import Loaded
from penstock.config.names import dotted
from penstock.config.provider_policies import (
    idempotency_header,
    provider_policies,
    unserved_tasks,
)
from penstock.config.settings import ProviderSettings, Settings
from penstock.config.store_url import SQLITE_PREFIX, is_server, refuse_unknown
from penstock.definitions.preflight import Preflight
from penstock.definitions.provider import Provider
from penstock.definitions.task import ASYNC, PROCESS, THREAD, Task
from penstock.errors import ConfigError, StoreError, StoreMissing, UsageError
from penstock.events.default_sinks import default_sinks
from penstock.events.sink import RequestEvents, SchedulerEvents
from penstock.ids import IdSource, SystemIds
from penstock.model.finding import Finding, problem
from penstock.model.lease import ConfiguredCaps
from penstock.model.spending import Budget
from penstock.model.views import QueueFacts
from penstock.outbound.exchange import ReplyLimits
from penstock.outbound.journal.rules import HOLD, PaidRules
from penstock.outbound.provider_clients import MakeWire
from penstock.redaction import shown_url
from penstock.retry.policy import RetryPolicy
from penstock.runtime.asking import aside, within
from penstock.runtime.checked_values import CheckedValues
from penstock.runtime.processes import ProcessPool
from penstock.runtime.provider_run import ProviderRun, ServedProvider
from penstock.runtime.remote import TaskOrder
from penstock.runtime.slot_table import SlotTable
from penstock.runtime.slots import LENT_PLACES
from penstock.runtime.threads import ThreadPool, ThreadRunner
from penstock.runtime.worker import Worker
from penstock.runtime.worker_config import LeaseKeeper, WorkerConfig
from penstock.stores.sqlite.backing_up import BackupReport, back_up
from penstock.stores.sqlite.checkup import Checkup, boot_finding, library_finding
from penstock.stores.sqlite.checkup_place import SystemProbe
from penstock.stores.sqlite.looking import keys_with_prefix
from penstock.stores.sqlite.placing import sqlite_version
from penstock.stores.sqlite.restoring import Restore
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store import Store
from penstock.task_limits import task_limits

PART_BYTES_MAX = 255  # file systems take no more
NAME_BYTES_MAX = 220  # a store that was replaced has a longer name, and so has its log
PATH_BYTES_MAX = 500  # SQLite takes 512, with what it adds
SHOWN_MAX = 60  # characters of a name that is too long
COMPLETION_SECONDS = 1.0  # a shell waits no longer for the keys of a server

_NONE: Mapping[str, Provider] = {}
_NO_WIRES: Mapping[str, MakeWire] = {}
_NO_SOURCES: Mapping[str, str] = {}

log = logging.getLogger("penstock.limits")


class OpenServer(Protocol):
    """How a store on a server is opened."""

    def __call__(
        self, url: str, *, durability: str, reading_will_do: bool, make: bool
    ) -> Store: ...


def default_store_url(app_name: str) -> str:
    return f"{SQLITE_PREFIX}.penstock/{app_name}.db"


def default_stores(folder: Path) -> list[str]:
    """The stores that lie where those of apps lie that name none."""
    return [
        f"{SQLITE_PREFIX}{path.relative_to(folder)}"
        for path in sorted((folder / ".penstock").glob("*.db"))
    ]


def store_file(url: str, folder: Path | None = None) -> Path:
    """The file of an embedded store; a relative one lies in `folder`."""
    refuse_unknown(url)
    path = Path(url.removeprefix(SQLITE_PREFIX))
    if not path.name or path.name == ":memory:":
        raise ConfigError(
            f"The store {url!r} names no file; write sqlite:///path. A store in memory would be "
            f"lost with its process; tests use penstock.testing.harness."
        )
    place = (folder or Path.cwd()) / path
    if _no_name(place):
        raise ConfigError(
            f"The store {url[:SHOWN_MAX]!r} has a name that no file can have: it is longer than "
            f"{NAME_BYTES_MAX} bytes, its whole path is longer than {PATH_BYTES_MAX}, or there is "
            "a NUL in it. Name another place with --store."
        )
    return place


def _no_name(path: Path) -> bool:
    """Can neither the file system nor SQLite use it, with what they add to the names beside it?"""
    longest = max(len(os.fsencode(part)) for part in path.parts)
    return (
        "\0" in str(path)
        or len(os.fsencode(path.name)) > NAME_BYTES_MAX
        or longest > PART_BYTES_MAX
        or len(os.fsencode(path)) > PATH_BYTES_MAX
    )


def open_store(
    url: str,
    *,
    durability: str = "full",
    folder: Path | None = None,
    reading_will_do: bool = False,
    make: bool = True,
) -> Store:
    """Open the store that a URL names; relative files lie in `folder`.

    Without `make` one that is not there yet is StoreMissing. With `reading_will_do` a store that
    may not be written can still be read. A server that cannot be reached is StoreUnavailable at
    once: whoever wants to wait for it asks again.
    """
    if is_server(url):
        open_postgres: OpenServer = _of_postgres("opening", url).open_postgres
        return open_postgres(url, durability=durability, reading_will_do=reading_will_do, make=make)
    path = store_file(url, folder)
    if not make and not path.exists():
        raise StoreMissing(shown_url(url))
    return SqliteStore.open(path, durability=durability, reading_will_do=reading_will_do)


def check_dimensions(loaded: Loaded, tasks: Mapping[str, Task[..., Any]]) -> None:
    """Refuse limits of a dimension that no task has but for a slip of the pen.

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


def _of_postgres(module: str, url: str) -> Any:  # noqa: ANN401 (a module)
    """What only a store on PostgreSQL needs; psycopg is imported for nobody else."""
    try:
        return import_module(f"penstock.stores.postgres.{module}")
    except ImportError as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"The store {shown_url(url)} needs psycopg, which cannot be imported ({why}); install "
            "it with pip install 'penstock[postgres]'."
        ) from None


def back_up_store(url: str, file: Path, *, force: bool, folder: Path) -> BackupReport:
    """Copy an embedded store to a file while it is in use."""
    _refuse_server(url, "is backed up by PostgreSQL's own tools, such as pg_dump")
    path = store_file(url, folder)
    if not os.path.lexists(path):
        raise UsageError(f"There is no store {url} to back up; name another with --store.")
    return back_up(path, folder / file, SystemIds(), force=force)


def restore_of_store(url: str, file: Path, *, folder: Path) -> Restore:
    """The restore of an embedded store from a file, still to be run."""
    _refuse_server(
        url,
        "is restored by PostgreSQL's own tools, such as pg_restore; then run 'penstock restore "
        "--after-pg-restore', so that nobody from before owns anything",
    )
    return Restore(folder / file, store_file(url, folder), SystemIds())


def machine_findings() -> list[Finding]:
    """What does a store need of this machine?"""
    return [library_finding(sqlite_version()), boot_finding(SystemBootClock())]


def store_checkup(url: str, *, folder: Path, full: bool) -> StoreCheckup:
    """A look at a store that changes nothing."""
    if is_server(url):
        there = _of_postgres("checkup", url)
        return ServerCheckup(url, there.postgres_findings, there.postgres_facts, full=full)
    path = store_file(url, folder)
    return Checkup(path, SystemProbe(), SystemClock(), SystemBootClock(), full=full)


class StoreCheckup(Protocol):
    """Findings about a store, and then what its queue is like, if that could be seen."""

    @property
    def facts(self) -> QueueFacts | None: ...

    def findings(self) -> Iterable[Finding]: ...


class AskServer(Protocol):
    """How a server is looked at; wholly, if that is wanted."""

    def __call__(self, url: str, *, full: bool) -> list[Finding]: ...


class ServerCheckup:
    """A look at a store on a server; and at its queue, if that can be read."""

    def __init__(
        self,
        url: str,
        ask: AskServer,
        ask_queue: Callable[[str], QueueFacts | None],
        *,
        full: bool,
    ) -> None:
        self._url = url
        self._full = full
        self._ask = ask
        self._ask_queue = ask_queue

    @property
    def facts(self) -> QueueFacts | None:
        return self._ask_queue(self._url)

    def findings(self) -> Iterable[Finding]:
        try:
            return self._ask(self._url, full=self._full)
        except StoreError as error:
            return [problem("store", str(error))]


def keys_beginning(url: str, start: str, limit: int, *, folder: Path) -> list[str]:
    """Keys of jobs, by a look that leaves no trace."""
    if is_server(url):
        ask = _of_postgres("looking", url).keys_with_prefix
        found: list[str] = within(aside(lambda: ask(url, start, limit)), COMPLETION_SECONDS)
        return found
    return keys_with_prefix(store_file(url, folder), start, limit)


def _refuse_server(url: str, instead: str) -> None:
    if is_server(url):
        raise UsageError(f"The store {shown_url(url)} {instead}.")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one worker shall run."""

    run_id: str
    drain: bool = False
    solo: bool = False
    supervised: bool = False
    until: str | None = None  # drain until the job of this key has ended
    lease_ttl_seconds: float | None = None  # None: as configured


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
    wires: Mapping[str, MakeWire] = _NO_WIRES,
    request_events: RequestEvents | None = None,
    worn: Callable[[str], None] | None = None,
    sources: Mapping[str, str] = _NO_SOURCES,
    policy: RetryPolicy = RetryPolicy(),  # noqa: B008 (a constant)
    preflights: Iterable[Preflight[..., Any]] = (),
    checked: CheckedValues | None = None,
) -> Worker:
    """Put a worker together; must be called on its loop.

    Without a `task_order` the bodies of process tasks run where all others run. `share` is this
    process's part of every cap; `wires` answer in place of providers; `sources` are of settings;
    `policy` is the baseline of the app, `preflights` its checks, `checked` what they returned.
    """
    policies = provider_policies(settings, providers)
    clock = clock or SystemClock()
    runtime = settings.runtime
    config = WorkerConfig(
        run_id=options.run_id,
        slots={
            ASYNC: runtime.async_slots,
            THREAD: runtime.thread_slots,
            PROCESS: runtime.process_slots,
        },
        lease_ttl_seconds=options.lease_ttl_seconds or runtime.lease_ttl_seconds,
        grace_seconds=runtime.grace_seconds,
        beat_seconds=runtime.beat_seconds,
        place=share.index,
        drain=options.drain or options.until is not None,
        until=options.until,
        solo=options.solo,
        runs_suspects=not options.supervised,
        capacity=configured_capacity(settings, sources, providers),
        journal_retention_seconds=settings.journal_retention if _has_paid(settings) else None,
        unserved=unserved_tasks(tasks, policies, share),
    )
    loop = asyncio.get_running_loop()
    ids = ids or SystemIds()
    return Worker(
        config,
        task_limits(tasks, settings, preflights),
        store,
        ConfiguredCaps(settings.caps()),
        keeper,
        table,
        threads(loop),
        None if task_order is None else ProcessPool(task_order, loop),
        clock,
        ids,
        replace(policy, give_up_after_seconds=settings.tasks.give_up_after),
        events or SchedulerEvents(clock, default_sinks()),
        worn,
        _serving(
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
        checked,
    )


def _serving(
    options: RunOptions,
    settings: Settings,
    sources: Mapping[str, str],
    providers: Mapping[str, Provider],
    policies: Mapping[str, ProviderPolicy],
    wires: Mapping[str, MakeWire],
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
            _paid_rules(name, said[name], budgets),
        )
        for name, provider in providers.items()
    ]
    return ProviderRun(
        served,
        store,
        clock,
        share=share,
        rand=ids.random,
        run_id=options.run_id,
        events=events,
        budgets=budgets,
    )


def _paid_rules(name: str, said: ProviderSettings, budgets: tuple[Budget, ...]) -> PaidRules | None:
    """What holds for the calls of a provider; None: they cost nothing."""
    if not said.paid:
        return None
    return PaidRules(
        name,
        holds_doubts=said.in_doubt == HOLD,
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
    runtime = settings.runtime
    slots = runtime.async_slots + runtime.thread_slots + runtime.process_slots
    return LENT_PLACES * slots if providers else slots


def new_event_loop() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()

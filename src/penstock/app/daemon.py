# SPDX-License-Identifier: Apache-2.0
"""Puts the preflights of a daemon together, and what its work needs of their results."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.app.wiring import RunOptions, build_worker, slot_count
from penstock.clock import Clock, to_micros
from penstock.config.settings import Settings
from penstock.definitions.preflight import Preflight
from penstock.definitions.provider import Provider
from penstock.definitions.schedule import Schedule
from penstock.events.sink import RequestEvents, SchedulerEvents
from penstock.ids import IdSource
from penstock.planning.units import DaemonPlan, unit_spread
from penstock.requests.clients.provider_clients import MakeTransport
from penstock.retry.policy import RetryPolicy
from penstock.schedules.preflight_results import CheckedValues
from penstock.schedules.preflight_run import CheckTable, EndlessLease, PreflightRun
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.worker.thread_executor import ThreadPool, ThreadRunner
from penstock.worker.worker import Worker

LEASE_SECONDS = 1e9  # of the worker of the first phase, whose store nobody else has

_NO_WIRES: Mapping[str, MakeTransport] = {}


def preflight_run(
    plan: DaemonPlan,
    preflights: Mapping[str, Preflight[..., Any]],
    settings: Settings,
    clock: Clock,
    ids: IdSource,
    *,
    policy: RetryPolicy,
    providers: Mapping[str, Provider],
    wires: Mapping[str, MakeTransport] = _NO_WIRES,
    threads: Callable[[asyncio.AbstractEventLoop], ThreadRunner] = ThreadPool,
    events: SchedulerEvents | None = None,
    request_events: RequestEvents | None = None,
    progress: Callable[[int, int, int], None] | None = None,
    table: CheckTable | None = None,
) -> PreflightRun | None:
    """The checks of a plan, on a worker and a store of their own; must be called on its loop.

    None if there are none. `table` is where others read what runs; the n-th check is job n.
    """
    if not plan.preflights:
        return None
    store = InProcessStore(clock)

    def build() -> Worker:
        return build_worker(
            RunOptions(run_id=ids.new_id("run"), drain=True, lease_ttl_seconds=LEASE_SECONDS),
            preflights,
            settings,
            store,
            EndlessLease(),
            table or CheckTable.create(slot_count(settings, providers)),
            clock=clock,
            ids=ids,
            threads=threads,
            events=events,
            providers=providers,
            wires=wires,
            request_events=request_events,
            policy=policy,
        )

    return PreflightRun(plan.preflights, store, clock, build, progress)


def checked_values(
    app: str, preflights: Mapping[str, Preflight[..., Any]], plan: DaemonPlan | None
) -> CheckedValues | None:
    """What the preflights of an app have returned, still to be read; None if it has none."""
    if not preflights:
        return None
    return CheckedValues(app, preflights.values(), {} if plan is None else plan.shares)


def plan_of_now(
    plan: DaemonPlan | None, schedules: Mapping[str, Schedule[..., Any]], clock: Clock
) -> Callable[[], DaemonPlan] | None:
    """What a worker keeps of a daemon's plan; None if there is none."""
    if plan is None:
        return None
    return lambda: begun_now(plan, schedules, to_micros(clock.now()))


def begun_now(
    plan: DaemonPlan, schedules: Mapping[str, Schedule[..., Any]], now: int
) -> DaemonPlan:
    """The same plan, with first ticks that count from now: checks may have taken a while."""
    counts = Counter(unit.task for unit in plan.schedules)
    units = tuple(
        msgspec.structs.replace(
            unit,
            first_at=schedules[unit.task].timing.first(
                now, unit_spread(unit.key), counts[unit.task]
            ),
        )
        for unit in plan.schedules
    )
    return msgspec.structs.replace(plan, schedules=units)

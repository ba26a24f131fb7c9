# SPDX-License-Identifier: Apache-2.0
"""The lead: what the first worker of a run does before anybody works, and tells the supervisor.

Of a daemon: preflights, then arming the schedules. Of a build: the locks, then the plan.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from penstock.app.app import Penstock
from penstock.app.build import (
    build_scope,
    build_tasks,
    check_parquet,
    spec_datasets,
    typed_request,
)
from penstock.app.daemon import begun_now, preflight_run
from penstock.builds.build import Build, Prepared
from penstock.builds.locks import LockHolder
from penstock.clock import Clock, to_micros
from penstock.config.load import LoadedSettings
from penstock.config.settings import Settings
from penstock.definitions.preflight import Preflight
from penstock.definitions.task import Task
from penstock.errors import InternalError, PreflightFailed
from penstock.ids import SystemIds
from penstock.model.job import PREFLIGHT, AttemptError, ErrorCategory
from penstock.model.schedule import PreflightResult
from penstock.planning.build_plan import check_build
from penstock.planning.graph import closure
from penstock.planning.units import DaemonPlan, PreflightPlan
from penstock.schedules.daemon_start import Arming, DaemonStart
from penstock.schedules.preflight_run import CheckTable
from penstock.supervisor import protocol
from penstock.supervisor.protocol import BuildSpec, unit_name

CHECKS_TOLD_MAX = 10_000  # failures that are told one by one
NAMES_AT_ONCE = 500
DIED = "died"  # the kind of error of a check that ends its process

HINTS = {
    ErrorCategory.NODE: "Is the host up, and can this machine reach it?",
    ErrorCategory.SERVICE: "It asked to wait longer than preflight_timeout.",
    ErrorCategory.TIMEOUT: "It did not answer within preflight_timeout.",
}


class Lead(Protocol):
    """What the first worker does before the work: preflights, or the plan of a build."""

    plan_id: str | None  # of a build, known when it has run

    def stop(self) -> None: ...

    async def run(self) -> bool: ...


class PreflightRounds:
    """Runs the preflights of a daemon so that one that crashes its process is found."""

    def __init__(
        self,
        app: Penstock,
        plan: DaemonPlan,
        settings: Settings,
        clock: Clock,
        channel: socket.socket,
        table: CheckTable,
        order: protocol.WorkerOrder,
    ) -> None:
        self._app = app
        self._plan = plan
        self._settings = settings
        self._clock = clock
        self._channel = channel
        self._table = table
        self._alone = frozenset(order.alone)
        self._crashed = {one.unit: one.problem for one in order.crashed}
        self._ended = [0, 0]  # how many have passed and failed in earlier rounds

    async def run(self) -> list[PreflightResult]:
        """Check all together; after a crash those that ran then come last, one by one."""
        found = {
            plan.unit: self._died(plan, self._crashed[shown])
            for plan in self._plan.preflights
            if (shown := unit_name(plan.name, plan.partition)) in self._crashed
        }
        left = [plan for plan in self._plan.preflights if plan.unit not in found]
        alone = [plan for plan in left if unit_name(plan.name, plan.partition) in self._alone]
        together = [plan for plan in left if plan not in alone] if alone else left
        self._count(found.values())
        for plans in (together, *([plan] for plan in alone)):
            if not plans:
                continue
            results = await self._round(plans)
            found.update((result.unit, result) for result in results)
            self._count(results)
            if plans is not together:
                for result in results:
                    protocol.send(self._channel, check_message(result, self._app.preflights))
        return [found[plan.unit] for plan in self._plan.preflights]

    async def _round(self, plans: Sequence[PreflightPlan]) -> list[PreflightResult]:
        """Run these, and say before which they are."""
        self._table.clear()  # a body that was given up in an earlier one may still be in it
        names = [unit_name(plan.name, plan.partition) for plan in plans]
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = tuple(names[start : start + NAMES_AT_ONCE])
            protocol.send(self._channel, protocol.ToCheck(part, first=start == 0))
        checks = preflight_run(
            msgspec.structs.replace(self._plan, preflights=tuple(plans)),
            self._app.preflights,
            self._settings,
            self._clock,
            SystemIds(),
            policy=self._app.registry.retry_policy,
            providers=self._app.providers,
            progress=self._progress,
            table=self._table,
        )
        return [] if checks is None else await checks.run()

    def _died(self, plan: PreflightPlan, problem: str) -> PreflightResult:
        return PreflightResult(
            unit=plan.unit,
            name=plan.name,
            partition=plan.partition,
            error=AttemptError(ErrorCategory.OWN, DIED, problem),
            required=plan.required,
            checked_at=to_micros(self._clock.now()),
        )

    def _count(self, results: Iterable[PreflightResult]) -> None:
        for result in results:
            self._ended[result.error is not None] += 1

    def _progress(self, passed: int, failed: int, _: int) -> None:
        message = protocol.Checking(
            passed=self._ended[0] + passed,
            failed=self._ended[1] + failed,
            total=len(self._plan.preflights),
        )
        protocol.send(self._channel, message)


class DaemonLead:
    """Owns the way of one daemon from its plan to its work, and tells the supervisor of it."""

    def __init__(
        self,
        app: Penstock,
        plan: DaemonPlan,
        settings: Settings,
        clock: Clock,
        channel: socket.socket,
        table: CheckTable,
        order: protocol.WorkerOrder,
    ) -> None:
        self.plan_id: str | None = None  # a daemon builds nothing
        self._preflights = app.preflights
        self._channel = channel
        self._check_only = order.spec.check
        rounds = PreflightRounds(app, plan, settings, clock, channel, table, order)
        self._start = DaemonStart(
            rounds if plan.preflights else None,
            Arming(app.name, app.store, clock, SystemIds().random),
            lambda: begun_now(plan, app.schedules, to_micros(clock.now())),
            self._told,
            check_only=self._check_only,
        )

    def stop(self) -> None:
        """End it at once, wherever it is."""
        self._start.stop()

    async def run(self) -> bool:
        """Check and arm; False if there is no work to go on with."""
        try:
            armed = await self._start.run()
        except PreflightFailed:
            return False  # the supervisor was told of each
        if armed is None:
            return False
        message = protocol.Armed(
            schedules=armed.schedules,
            units=armed.units,
            new=armed.report.new,
            retimed=armed.report.retimed,
            revived=armed.report.revived,
            retired=armed.retired,
        )
        protocol.send(self._channel, message)
        return True

    def _told(self, results: Sequence[PreflightResult]) -> None:
        failed = [result for result in results if result.error is not None]
        for result in (results if self._check_only else failed)[:CHECKS_TOLD_MAX]:
            protocol.send(self._channel, check_message(result, self._preflights))
        protocol.send(
            self._channel,
            protocol.Checked(
                passed=len(results) - len(failed),
                failed=sum(result.required for result in failed),
                left_out=sum(result.is_left_out for result in failed),
            ),
        )


def check_message(
    result: PreflightResult, preflights: Mapping[str, Preflight[..., Any]]
) -> protocol.Check:
    """What the supervisor is told of one check."""
    error = result.error
    if error is None:
        return protocol.Check(name=result.name, partition=result.partition, passed=True)
    said = error.message.partition(chr(10))[0]
    hint = preflights[PREFLIGHT + result.name].hint or HINTS.get(error.category, "")
    return protocol.Check(
        name=result.name,
        partition=result.partition,
        passed=False,
        required=result.required,
        problem=said if error.kind == DIED else f"{error.kind}: {said}".removesuffix(": "),
        hint=hint,
    )


class BuildLead:
    """Owns the way of one build from its locks to its jobs, and tells the supervisor of it.

    Whatever becomes of it, the supervisor lets the locks go: it renews them, and would take locks
    that are gone for lost ones.
    """

    def __init__(
        self,
        app: Penstock,
        spec: BuildSpec,
        loaded: LoadedSettings,
        clock: Clock,
        channel: socket.socket,
        run_id: str,
    ) -> None:
        self._channel = channel
        self._task: asyncio.Task[Prepared | None] | None = None
        self.plan_id: str | None = None  # known when it has run
        self._build = Build(
            build_scope(
                app.name,
                spec_datasets(app, spec),
                app.root(loaded),
                spec.rows,
                retry_dropped=spec.retry_dropped,
            ),
            typed_request(app.datasets, spec, to_micros(clock.now())),
            LockHolder(run_id, spec.mark, loaded.settings.runtime.lease_ttl_seconds),
            app.store,
            clock,
            rand=SystemIds().random,
            aside=asyncio.to_thread,
        )

    def stop(self) -> None:
        """End it at once, wherever it is."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> bool:
        """Lock and plan; False if there is no work to go on with."""
        self._task = asyncio.get_running_loop().create_task(self._prepare())
        try:
            prepared = await self._task
        except asyncio.CancelledError:
            if not self._task.cancelled():
                raise
            return False
        self.plan_id = None if prepared is None else prepared.plan_id
        protocol.send(self._channel, self._planned(prepared))
        return prepared is not None

    async def _prepare(self) -> Prepared | None:
        await self._build.lock()
        protocol.send(self._channel, protocol.Locked(self._build.names))
        return await self._build.prepare()

    def _planned(self, prepared: Prepared | None) -> protocol.Planned:
        facts = self._build.facts if prepared is None else prepared.facts
        if facts is None:
            raise InternalError("A build was prepared without a plan.")
        future = sum(counts.future for counts in facts.counts.values())
        if prepared is None:
            return protocol.Planned(plan_id=None, fresh=facts.fresh, future=future)
        return protocol.Planned(
            plan_id=prepared.plan_id,
            slices=facts.slices,
            jobs=prepared.jobs,
            levels=prepared.levels,
            fresh=facts.fresh,
            future=future,
            resumed=prepared.plan is None,
        )


def check_build_spec(app: Penstock, spec: BuildSpec, now: int) -> None:
    """Refuse what cannot be built, before there is a store or a folder."""
    if spec.rows is not None:
        spec_datasets(app, spec)
        return
    for name in spec.targets:
        app.registry.find_dataset(name)
    specs = app.registry.dataset_specs
    check_build(specs, typed_request(app.datasets, spec, now), now)
    check_parquet(app.datasets, closure(specs, spec.targets))


def tasks_of_build(
    app: Penstock, spec: BuildSpec, loaded: LoadedSettings
) -> dict[str, Task[..., Any]]:
    """What every worker of a build serves."""
    datasets = spec_datasets(app, spec)
    specs = {name: dataset.spec for name, dataset in datasets.items()}
    return build_tasks(datasets, app.root(loaded), closure(specs, spec.targets))

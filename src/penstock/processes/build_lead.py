# SPDX-License-Identifier: Apache-2.0
"""What the first worker of a build does before the work: locks, then the plan."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from penstock.app.app import Penstock
from penstock.app.build import build_scope, build_tasks, typed_request
from penstock.builds.build import Build, Prepared
from penstock.builds.locks import LockHolder
from penstock.clock import Clock, to_micros
from penstock.config.load import LoadedSettings
from penstock.definitions.task import Task
from penstock.errors import InternalError
from penstock.ids import SystemIds
from penstock.planning.build_plan import check_build
from penstock.planning.graph import closure
from penstock.supervisor import protocol
from penstock.supervisor.protocol import BuildSpec


class BuildLead:
    """Owns the way of one build from its locks to its jobs, and tells the supervisor of it."""

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
            build_scope(app.name, app.datasets, app.root(loaded)),
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
            await self._build.release()
            return False
        except BaseException:
            await self._build.release()
            raise
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


def check(app: Penstock, spec: BuildSpec, now: int) -> None:
    """Refuse what cannot be built, before there is a store or a folder."""
    for name in spec.targets:
        app.registry.find_dataset(name)
    check_build(app.registry.dataset_specs, typed_request(app.datasets, spec, now), now)


def tasks_of(app: Penstock, spec: BuildSpec, loaded: LoadedSettings) -> dict[str, Task[..., Any]]:
    """What every worker of a build serves."""
    names = closure(app.registry.dataset_specs, spec.targets)
    return build_tasks(app.datasets, app.root(loaded), names)

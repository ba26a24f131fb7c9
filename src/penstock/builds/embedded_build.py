# SPDX-License-Identifier: Apache-2.0
"""How does a build run inside somebody's program, from its locks to its report?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from penstock.builds.build import Build
from penstock.model.plan import BuildReport
from penstock.worker.config import Stopping
from penstock.worker.worker import Worker

#: Works until the job of a key has ended; tells of its worker as soon as there is one. The answer
#: says which budget has stopped it before, if any.
Work = Callable[[str, Callable[[Worker], None]], Awaitable[str | None]]


class Beat(Protocol):
    """Whoever renews the locks."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class EmbeddedBuild:
    """Owns one build, its beat and its worker. Belongs to one loop."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._worker: Worker | None = None
        self._loop = asyncio.get_running_loop()

    def has_locks(self) -> bool:
        return self._build.has_locks

    def lost(self) -> None:
        """Somebody else has the locks: from any thread."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._build.is_lost = True
        if self._worker is not None:
            self._worker.stop(Stopping.NOW)

    async def run(self, beat: Beat, work: Work) -> BuildReport:
        """Prepare, work and finish; whatever happens, the locks are let go."""
        beat.start()
        try:
            prepared = await self._build.prepare()
            over_budget = None
            if prepared is not None and not self._build.is_lost:
                over_budget = await work(prepared.end_key, self._begun)
            report = await self._build.finish()
            return msgspec.structs.replace(report, over_budget=over_budget)
        finally:
            beat.stop()
            await self._build.release()

    def _begun(self, worker: Worker) -> None:
        self._worker = worker
        if self._build.is_lost:
            worker.stop(Stopping.NOW)

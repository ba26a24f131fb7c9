# SPDX-License-Identifier: Apache-2.0
"""How is Penstock driven beside its peers? One embedded worker with default settings."""

from __future__ import annotations

from pathlib import Path

import apsw

from benchmarks.peers.driver import Mark, read_pragmas
from penstock import Context, Penstock
from penstock.model.job import JobState

UNFINISHED = (JobState.QUEUED, JobState.IN_PROGRESS)


class PenstockSqlite:
    """The only driver that runs in our own environment."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._app = Penstock("bench", store=f"sqlite:///{folder / 'penstock.db'}")

        @self._app.task()
        async def noop(ctx: Context, number: int) -> None:
            mark(number)

        self._task = noop

    def put(self, number: int) -> None:
        self._app.enqueue(self._task.job(number))

    def put_many(self, numbers: range) -> None:
        self._app.enqueue_many(self._task.job(number) for number in numbers)

    def unfinished(self) -> int:
        states = self._app.store.stats().result().states
        return sum(states.get(state, 0) for state in UNFINISHED)

    def pragmas(self) -> dict[str, str]:
        writers = [found for found in apsw.connections() if not found.readonly("main")]
        weakest = min(writers, key=lambda writer: int(writer.pragma("synchronous")))
        return read_pragmas(weakest.pragma)

    def work(self) -> None:
        self._app.run()


def open_peer(folder: Path, mark: Mark) -> PenstockSqlite:
    return PenstockSqlite(folder, mark)

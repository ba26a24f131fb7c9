# SPDX-License-Identifier: Apache-2.0
"""How is Penstock driven beside its peers? One embedded worker with default settings."""

from __future__ import annotations

from benchmarks.peers.driver import Mark
from penstock import Context, Penstock
from penstock.model.job import JobState

UNFINISHED = (JobState.QUEUED, JobState.IN_PROGRESS)


class PenstockPeer:
    """The only queue that runs in our own environment; its store is opened by whoever makes it."""

    def __init__(self, url: str, mark: Mark, padding: int = 0) -> None:
        self._app = Penstock("bench", store=url)
        self._padding = " " * padding

        @self._app.task()
        async def noop(ctx: Context, number: int, text: str = "") -> None:
            mark(number)

        self._task = noop
        _ = self._app.store

    def put(self, number: int) -> None:
        self._app.enqueue(self._task.job(number))

    def put_many(self, numbers: range) -> None:
        if self._padding:
            self._app.enqueue_many(self._task.job(number, self._padding) for number in numbers)
        else:
            self._app.enqueue_many(self._task.job(number) for number in numbers)

    def unfinished(self) -> int:
        states = self._app.store.stats().result().states
        return sum(states.get(state, 0) for state in UNFINISHED)

    def work(self) -> None:
        self._app.run()

# SPDX-License-Identifier: Apache-2.0
"""How is Procrastinate driven? An async task on uvloop, with its concurrency handed in."""

from __future__ import annotations

import logging

import psycopg
import uvloop
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.peers.driver import Mark, read_server_settings

TASK = "noop"
BATCH = 1_000  # jobs of one call of put_many
POOL_SIZE = 20  # connections of a worker; its own default of 4 is slower


class ProcrastinatePostgres:
    """Fetches and finishes one job per statement; finished jobs are kept, or deleted if asked."""

    def __init__(self, url: str, mark: Mark, concurrency: int, delete: bool) -> None:
        self._url = url
        self._mark = mark
        self._concurrency = concurrency
        self._delete = "successful" if delete else "never"
        self._asking = psycopg.connect(url, autocommit=True)
        self._app = App(connector=SyncPsycopgConnector(conninfo=url))
        self._app.open()
        if self._ask("select to_regclass('procrastinate_jobs')") == "None":
            self._app.schema_manager.apply_schema()

    def put(self, number: int) -> None:
        self._app.configure_task(TASK).defer(number=number)

    def put_many(self, numbers: range) -> None:
        deferrer = self._app.configure_task(TASK)
        for first in range(numbers.start, numbers.stop, BATCH):
            batch = range(first, min(first + BATCH, numbers.stop))
            deferrer.batch_defer(*({"number": number} for number in batch))

    def unfinished(self) -> int:
        query = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
        return int(self._ask(query))

    def durability(self) -> dict[str, str]:
        return read_server_settings(self._ask)

    def _ask(self, query: str) -> str:
        row = self._asking.execute(query.encode()).fetchone()
        return str(row[0] if row else None)

    def work(self) -> None:
        logging.disable(logging.INFO)
        uvloop.run(self._work())

    async def _work(self) -> None:
        app = App(
            connector=PsycopgConnector(conninfo=self._url, min_size=POOL_SIZE, max_size=POOL_SIZE)
        )
        mark = self._mark

        async def noop(number: int) -> None:
            mark(number)

        app.task(name=TASK)(noop)
        async with app.open_async():
            await app.run_worker_async(concurrency=self._concurrency, delete_jobs=self._delete)


def open_peer(
    place: str, mark: Mark, concurrency: int = 50, delete: int = 0
) -> ProcrastinatePostgres:
    return ProcrastinatePostgres(place, mark, concurrency, bool(delete))

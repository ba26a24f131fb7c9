# SPDX-License-Identifier: Apache-2.0
"""How is PgQueuer driven? An async entrypoint on uvloop and asyncpg, in batches."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.driver import Mark, read_server_settings

ENTRYPOINT = "noop"
POOL_SIZE = 4  # connections, one of which listens


class PgqueuerPostgres:
    """Its tables are durable by default; finished jobs move to a log table in batches."""

    def __init__(
        self, url: str, mark: Mark, batch: int, pooled: bool, chunk: int, padding: int
    ) -> None:
        self._url = url
        self._mark = mark
        self._batch = batch
        self._pooled = pooled
        self._chunk = chunk
        self._padding = " " * padding
        self._loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._connection, self._queries = self._loop.run(_connect(url))

    def put(self, number: int) -> None:
        self._loop.run(self._queries.enqueue(ENTRYPOINT, self._payload(number)))

    def put_many(self, numbers: range) -> None:
        self._loop.run(self._put_many(numbers))

    async def _put_many(self, numbers: range) -> None:
        for first in range(numbers.start, numbers.stop, self._chunk):
            last = min(first + self._chunk, numbers.stop)
            payloads = [self._payload(number) for number in range(first, last)]
            count = len(payloads)
            await self._queries.enqueue([ENTRYPOINT] * count, [*payloads], [0] * count)

    def _payload(self, number: int) -> bytes:
        return f"{number}{self._padding}".encode()

    def unfinished(self) -> int:
        return int(self._ask("select count(*) from pgqueuer"))

    def durability(self) -> dict[str, str]:
        return read_server_settings(self._ask)

    def _ask(self, query: str) -> str:
        return str(self._loop.run(self._connection.fetchval(query)))

    def work(self) -> None:
        logging.disable(logging.INFO)
        self._loop.run(self._work())

    async def _work(self) -> None:
        driver: AsyncpgDriver | AsyncpgPoolDriver = AsyncpgDriver(self._connection)
        if self._pooled:
            pool = await asyncpg.create_pool(self._url, min_size=POOL_SIZE, max_size=POOL_SIZE)
            driver = AsyncpgPoolDriver(pool)
        queuer = PgQueuer(driver)
        mark = self._mark

        async def noop(job: Job) -> None:
            mark(int(job.payload or b""))

        queuer.entrypoint(ENTRYPOINT)(noop)
        await queuer.run(batch_size=self._batch)


async def _connect(url: str) -> tuple[asyncpg.Connection, Queries]:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    if not await queries.has_table("pgqueuer"):
        await queries.install()
    return connection, queries


def open_peer(
    place: str,
    mark: Mark,
    batch: int = 100,
    pooled: int = 0,
    chunk: int = 1_000,
    padding: int = 0,
) -> PgqueuerPostgres:
    return PgqueuerPostgres(place, mark, batch, bool(pooled), chunk, padding)

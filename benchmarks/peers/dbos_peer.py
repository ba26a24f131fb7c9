# SPDX-License-Identifier: Apache-2.0
"""How is DBOS driven? Async workflows and a queue that is polled every 10 ms."""

from __future__ import annotations

import threading

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.peers.driver import Mark

QUEUE = "bench"
WORKFLOW = "noop"
POLL_SECONDS = 0.01  # its default is 1 s
BATCH = 1_000  # jobs of one transaction of put_many


class DbosPeer:
    """Creates its tables when a worker is launched, so the producer launches and stops one."""

    def __init__(self, url: str, mark: Mark, concurrency: int) -> None:
        self._url = url
        self._mark = mark
        self._concurrency = concurrency
        self._client: DBOSClient | None = None
        self._engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def put(self, number: int) -> None:
        self._opened().enqueue({"queue_name": QUEUE, "workflow_name": WORKFLOW}, number)

    def put_many(self, numbers: range) -> None:
        client = self._opened()
        for first in range(numbers.start, numbers.stop, BATCH):
            with self._engine.begin() as connection:
                for number in range(first, min(first + BATCH, numbers.stop)):
                    client.enqueue_in_transaction(
                        connection, {"queue_name": QUEUE, "workflow_name": WORKFLOW}, number
                    )

    def count_unfinished(self, table: str) -> int:
        with self._engine.connect() as connection:
            rows = connection.exec_driver_sql(
                f"select count(*) from {table} where status in ('ENQUEUED', 'PENDING')"
            )
            return int(rows.scalar_one())

    def ask(self, query: str) -> str:
        """One value, over its own connection."""
        with self._opened()._sys_db.engine.connect() as connection:
            return str(connection.exec_driver_sql(query).scalar_one())

    def work(self) -> None:
        self._launch()
        threading.Event().wait()

    def _launch(self) -> None:
        mark = self._mark

        async def noop(number: int) -> None:
            mark(number)

        DBOS.workflow(name=WORKFLOW)(noop)
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": self._url,
            "log_level": "ERROR",
            "application_version": "1",
        }
        DBOS(config=config)
        DBOS.launch()
        DBOS.register_queue(
            QUEUE, worker_concurrency=self._concurrency, polling_interval_sec=POLL_SECONDS
        )

    def _opened(self) -> DBOSClient:
        if self._client is None:
            self._launch()
            DBOS.destroy()
            self._client = DBOSClient(system_database_url=self._url)
        return self._client

# SPDX-License-Identifier: Apache-2.0
"""How is DBOS on SQLite driven? Async workflows, WAL, a queue that is polled every 10 ms."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.peers.driver import Mark, read_pragmas

QUEUE = "bench"
WORKFLOW = "noop"
CONCURRENCY = 300  # workflows at once; fewer and many more are slower
POLL_SECONDS = 0.01  # its default is 1 s
BATCH = 1_000  # jobs of one transaction of put_many


class DbosSqlite:
    """Creates its tables when a worker is launched, so the producer launches and stops one.

    Its own journal mode is the rollback journal; in WAL it is about twice as fast, and a file that
    was put into WAL stays there.
    """

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._mark = mark
        path = folder / "dbos.db"
        self._url = f"sqlite:///{path}"
        connection = sqlite3.connect(path)
        connection.execute("pragma journal_mode = wal")
        connection.close()
        self._client: DBOSClient | None = None

    def put(self, number: int) -> None:
        self._opened().enqueue({"queue_name": QUEUE, "workflow_name": WORKFLOW}, number)

    def put_many(self, numbers: range) -> None:
        client = self._opened()
        engine = sqlalchemy.create_engine(self._url)
        for first in range(numbers.start, numbers.stop, BATCH):
            with engine.begin() as connection:
                for number in range(first, min(first + BATCH, numbers.stop)):
                    client.enqueue_in_transaction(
                        connection, {"queue_name": QUEUE, "workflow_name": WORKFLOW}, number
                    )
        engine.dispose()

    def unfinished(self) -> int:
        with sqlalchemy.create_engine(self._url).connect() as connection:
            rows = connection.exec_driver_sql(
                "select count(*) from workflow_status where status in ('ENQUEUED', 'PENDING')"
            )
            return int(rows.scalar_one())

    def pragmas(self) -> dict[str, str]:
        with self._opened()._sys_db.engine.connect() as connection:
            return read_pragmas(
                lambda name: connection.exec_driver_sql(f"pragma {name}").scalar_one()
            )

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
            QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_SECONDS
        )

    def _opened(self) -> DBOSClient:
        if self._client is None:
            self._launch()
            DBOS.destroy()
            self._client = DBOSClient(system_database_url=self._url)
        return self._client


def open_peer(folder: Path, mark: Mark) -> DbosSqlite:
    return DbosSqlite(folder, mark)

# SPDX-License-Identifier: Apache-2.0
"""What do the fault tests of the PostgreSQL store share? Jobs, ends, questions to the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict

from penstock.model.job import AttemptError, ErrorCategory, JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, JobFailure, JobRef, LeaseRequest
from penstock.model.lease import WorkerInfo as Info
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.postgres.cluster import Server
from tests.postgres.proxy import Proxy

WORKER = WorkerId("w-1")
SECONDS = 100.0  # nothing here takes this long, however busy the machine is
TTL_SECONDS = 3600.0


class Place(NamedTuple):
    """A store behind a proxy, and the server behind that."""

    proxy: Proxy
    server: Server
    database: str
    store: Store

    def ask(self, statement: str, *values: object) -> object:
        """The first column of the first row, past the proxy."""
        return self.server.ask(statement, *values, database=self.database)

    def column(self, statement: str) -> list[tuple[object, ...]]:
        with self.server.connect(self.database) as connection:
            return connection.execute(statement.encode()).fetchall()

    def leased(self) -> set[tuple[object, ...]]:
        """What the server believes to be in progress: (job, token)."""
        return set(self.column("select job_id, token from penstock.hot where row_state = 4"))


@contextmanager
def place(server: Server, url: str, options: str = "") -> Iterator[Place]:
    """Open the store of a database through a proxy."""
    database = str(conninfo_to_dict(url)["dbname"])
    with Proxy(server) as proxy:
        store = open_postgres(proxy.url(database) + options)
        try:
            yield Place(proxy, server, database, store)
        finally:
            proxy.forgive()
            store.close()


def new_jobs(count: int, prefix: str = "k", **more: object) -> list[NewJob]:
    return [
        NewJob(key=f"{prefix}{n}", task="t", payload="{}", group="g", **more)  # type: ignore[arg-type]
        for n in range(count)
    ]


def register(store: Store, worker: WorkerId = WORKER, ttl_seconds: float = TTL_SECONDS) -> None:
    info = Info(id=worker, run_id="r", tasks=("t",))
    store.register(info, ttl_seconds).result(SECONDS)


def request(limit: int, worker: WorkerId = WORKER) -> LeaseRequest:
    return LeaseRequest(worker=worker, tasks=("t",), limit=limit, caps=ConfiguredCaps())


def lease(store: Store, limit: int, worker: WorkerId = WORKER) -> list[LeasedJob]:
    """Lease until so many are had."""
    jobs: list[LeasedJob] = []
    while len(jobs) < limit:
        found = store.lease(request(limit - len(jobs), worker)).result(SECONDS).jobs
        assert found, "nothing is left to lease"
        jobs += found
    return jobs


def done(job: LeasedJob, ended_at: int = 2) -> JobEnd:
    return JobEnd(job, JobState.DONE, 1, ended_at, result='"well"')


def failed(job: LeasedJob) -> JobFailure:
    return JobFailure(
        ref=ref(job),
        key=job.key,
        task=job.task,
        error=AttemptError(ErrorCategory.OWN, "Oops", "it did not work"),
        started_at=1,
        ended_at=2,
        delay_seconds=3600.0,
        charge=True,
        ends=False,
    )


def ref(job: LeasedJob) -> JobRef:
    return JobRef(job.id, job.token)


def states(store: Store) -> dict[str, int]:
    return {str(state): n for state, n in store.stats().result(SECONDS).states.items() if n}


def is_sound(store: Store) -> bool:
    broken: Sequence[str] = store.check().result(SECONDS)
    assert list(broken) == []
    return True


def one_sentence(error: BaseException, *words: str) -> str:
    """A message for people: no traceback, no lines, an end, no password; the text."""
    text = str(error)
    assert "\n" not in text, text
    assert text.endswith("."), text
    assert len(text) < 600, text
    for word in words:
        assert word in text, text
    return text

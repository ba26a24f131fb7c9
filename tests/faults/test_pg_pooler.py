# SPDX-License-Identifier: Apache-2.0
"""F40: a pooler in transaction mode. Nothing relies on a session; what it cannot tell is asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.model.job import Edge, JobState, WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest, Verdict
from penstock.model.views import FIRST_END
from penstock.stores.postgres.open import open_postgres, statements
from penstock.stores.protocol import Store
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_world import (
    SECONDS,
    WORKER,
    Place,
    done,
    is_sound,
    lease,
    new_jobs,
    register,
    request,
    states,
)
from tests.postgres.cluster import Server
from tests.postgres.pooler import Pooler
from tests.postgres.proxy import Proxy

_OTHER = WorkerId("w-2")
_NO_END = 2**62


class _Behind(NamedTuple):
    """Two stores behind one pooler."""

    place: Place
    pooler: Pooler
    other: Store


@pytest.fixture
def behind(postgres_server: Server, postgres_url: str) -> Iterator[_Behind]:
    database = str(conninfo_to_dict(postgres_url)["dbname"])
    with Pooler(postgres_server, size=3) as pooler, Proxy(postgres_server) as proxy:
        url = pooler.url(database)
        with closing(open_postgres(url)) as store, closing(open_postgres(url)) as other:
            yield _Behind(Place(proxy, postgres_server, database, store), pooler, other)


@pytest.mark.parametrize("name", OPERATIONS)
def test_f40_every_operation_works_behind_a_pooler(name: str, behind: _Behind) -> None:
    operation = OPERATIONS[name](behind.place, 5)
    for _ in range(5):
        operation.call()

    operation.audit()
    assert behind.pooler.counts.back_ends > 1
    assert _left_behind(behind) == []


def _left_behind(behind: _Behind) -> list[tuple[object, ...]]:
    """What lies about in the pooler's back ends: statements, settings, locks."""
    with closing(psycopg.connect(behind.pooler.url(behind.place.database))) as connection:
        connection.prepare_threshold = None
        found: list[tuple[object, ...]] = []
        for _ in range(2 * behind.pooler.counts.back_ends):
            found += connection.execute(
                "select 'statement', statement from pg_prepared_statements"
                " union all select 'setting', name from pg_settings where source = 'session'"
                " union all select 'lock', objid::text from pg_locks"
                " where locktype = 'advisory' and pid = pg_backend_pid()"
            ).fetchall()
            connection.commit()
        return found


def test_f40_two_processes_share_limits_dependants_and_the_end_of_all_things(
    behind: _Behind,
) -> None:
    store, other = behind.place.store, behind.other
    register(store)
    register(other, _OTHER)
    limited = new_jobs(4, "limited-", limit_keys=("host:a",))
    store.enqueue(limited).result(SECONDS)
    child = new_jobs(1, "child-", after=tuple(Edge(job.key) for job in limited))
    other.enqueue(child).result(SECONDS)
    store.set_cap("host:a", 2).result(SECONDS)

    held = lease(store, 2)
    blocked = other.lease(request(4, _OTHER)).result(SECONDS)
    assert blocked.jobs == []
    assert [(key.limit_key, key.cap) for key in blocked.blocked] == [("host:a", 2)]
    assert store.ack(WORKER, [done(job) for job in held]).result(SECONDS) == [Verdict.ACCEPTED] * 2
    rest = lease(other, 2, _OTHER)
    assert states(store) == {"done": 2, "in_progress": 2, "waiting": 1}
    assert other.ack(_OTHER, [done(job) for job in rest]).result(SECONDS) == [Verdict.ACCEPTED] * 2
    (last,) = lease(store, 1)
    assert last.key == "child-0"
    assert store.ack(WORKER, [done(last)]).result(SECONDS) == [Verdict.ACCEPTED]
    assert other.beat([WORKER, _OTHER], 60.0).result(SECONDS) == {WORKER, _OTHER}

    assert is_sound(store)
    progress, mark = other.purge(_NO_END, FIRST_END).result(SECONDS)
    while progress.more:
        progress, mark = other.purge(_NO_END, mark).result(SECONDS)
    assert states(store).get(JobState.DONE, 0) == 0
    assert is_sound(other)


def test_f40_work_is_found_by_asking_where_nobody_tells(behind: _Behind) -> None:
    """The listening connection shares its back ends, so what the server tells reaches nobody."""
    store, other = behind.place.store, behind.other
    register(store)

    async def wait_and_lease() -> list[str]:
        await store.wait_for_work(0.05)  # what was there before
        waiting = asyncio.create_task(store.wait_for_work(SECONDS))
        await asyncio.sleep(0.05)
        await other.enqueue(new_jobs(1))
        await waiting
        batch = await store.lease(
            LeaseRequest(worker=WORKER, tasks=("t",), limit=1, caps=ConfiguredCaps())
        )
        return [job.key for job in batch.jobs]

    assert asyncio.run(wait_and_lease()) == ["k0"]


def test_f40_no_statement_leaves_anything_in_a_session() -> None:
    """But `listen`, on the connection that does nothing else, and `own_path` without a pooler."""
    texts = "\n".join(text for name, text in statements().items() if name != "own_path")

    locks = re.findall(r"pg\w*_advisory_\w+", texts)
    assert locks
    assert [lock for lock in locks if "_xact_" not in lock] == []
    settings = re.findall(r"set_config\('\w+', '[^']*', (\w+)\)", texts)
    assert len(settings) == texts.count("set_config") > 0
    assert set(settings) == {"true"}  # until the transaction ends
    assert not re.search(r"^set ", texts, re.MULTILINE)
    assert [name for name, text in statements().items() if text.startswith("listen")] == ["listen"]
    assert not re.search(r"\b(prepare|declare|temporary|temp)\b", texts)

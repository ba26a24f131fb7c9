# SPDX-License-Identifier: Apache-2.0
"""Jobs that are enqueued inside a transaction of the user's own are there if it is committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from penstock import Context, Enqueued, Penstock, finished
from penstock.errors import EnqueueRefused, UsageError
from penstock.model.job import JobState
from penstock.testing import harness
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


class Shouting(TextLoader):
    """What a user may have taught a connection."""

    def load(self, data: Any) -> str:
        return str(super().load(data)).upper()


@pytest.fixture
def app(postgres_url: str) -> Iterator[Penstock]:
    app = Penstock("shop", store=postgres_url)

    @app.task()
    async def send(ctx: Context, order: int) -> int:
        return order

    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table orders (id integer primary key)")
    yield app
    app.close()


@pytest.fixture
def connection(postgres_url: str, app: Penstock) -> Iterator[psycopg.Connection[Any]]:
    assert app.store.check().result() == []  # it is made by now
    with psycopg.connect(postgres_url) as connection:
        yield connection
        connection.rollback()
    assert app.store.check().result() == []


def states(app: Penstock) -> dict[JobState, int]:
    found = app.store.stats().result().states
    return {state: count for state, count in found.items() if count}


def orders(url: str) -> list[int]:
    with psycopg.connect(url) as looking:
        return [n for (n,) in looking.execute("select id from orders order by id").fetchall()]


def somebody_waits(url: str) -> bool:
    """Whether a transaction of this database waits for a lock."""
    waiting = "wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(url) as looking:
        return bool(looking.execute(f"select 1 from pg_stat_activity where {waiting}").fetchone())


def test_a_job_is_there_when_the_transaction_is_committed_and_runs(
    app: Penstock, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    send = app.tasks["send"]
    connection.execute("insert into orders values (1)")
    accepted = app.enqueue(send.job(order=1), key="one", connection=connection)

    assert accepted == Enqueued("one", created=True, differs=False)
    assert states(app) == {}
    connection.commit()
    assert states(app) == {JobState.QUEUED: 1}
    assert app.store.check().result() == []

    connection.execute("insert into orders values (2)")
    assert app.enqueue(send.job(order=2), key="two", connection=connection).created
    connection.rollback()
    app.enqueue(send.job(order=3), key="three", connection=connection)  # before anything else
    connection.rollback()
    assert states(app) == {JobState.QUEUED: 1}
    assert orders(postgres_url) == [1]

    assert app.run(drain=True).done == 1
    assert app.job("one").result == 1


def test_known_keys_are_known_and_the_first_one_wins(
    app: Penstock, connection: psycopg.Connection[Any]
) -> None:
    send = app.tasks["send"]
    app.enqueue(send.job(order=1), key="a")

    same = app.enqueue(send.job(order=1), key="a", connection=connection)
    other = app.enqueue(send.job(order=2), key="a", connection=connection)
    many = app.enqueue_many(
        [send.job(order=n).with_options(key=key) for n, key in ((1, "a"), (2, "b"), (3, "b"))],
        connection=connection,
    )
    connection.commit()

    assert (same.created, same.differs) == (False, False)
    assert (other.created, other.differs) == (False, True)
    assert (many.created, many.existing, many.differing) == (1, 2, 1)
    assert states(app) == {JobState.QUEUED: 2}


def test_many_jobs_with_limits_groups_and_delays_come_with_the_commit(
    app: Penstock, connection: psycopg.Connection[Any]
) -> None:
    @app.task(limits={"host": "one"}, group="other")
    async def limited(ctx: Context, n: int) -> int:
        return n

    jobs = [limited.job(n=n).with_options(key=f"n{n}", priority=n % 3) for n in range(2_500)]
    later = app.enqueue(limited.job(n=-1), key="later", delay="1h", connection=connection)
    counted = app.enqueue_many(jobs, connection=connection)
    assert states(app) == {}
    connection.commit()

    assert later.created
    assert counted.created == 2_500
    stats = app.store.stats().result()
    assert (stats.states[JobState.QUEUED], stats.tasks["limited"][JobState.QUEUED]) == (2501, 2501)


def test_jobs_wait_for_others_of_the_same_and_of_other_transactions(
    app: Penstock, connection: psycopg.Connection[Any]
) -> None:
    send = app.tasks["send"]
    app.enqueue(send.job(order=0), key="there")
    first = app.enqueue(send.job(order=1), key="first", connection=connection)
    app.enqueue(
        send.job(order=2), key="last", after=[first, finished("there")], connection=connection
    )
    with pytest.raises(EnqueueRefused, match="'nobody' does not exist"):
        app.enqueue(send.job(order=3), key="odd", after=["nobody"], connection=connection)
    connection.commit()

    assert states(app) == {JobState.QUEUED: 2, JobState.WAITING: 1}
    assert app.run(drain=True).done == 3
    app.enqueue(send.job(order=4), key="ended", after=["last"], connection=connection)
    connection.commit()
    assert app.run(drain=True).done == 1


def test_a_second_transaction_with_the_same_key_waits_for_the_first(
    app: Penstock, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    send = app.tasks["send"]
    app.enqueue(send.job(order=1), key="k", connection=connection)
    found: list[Enqueued] = []

    def second() -> None:
        with psycopg.connect(postgres_url) as other:
            found.append(app.enqueue(send.job(order=2), key="k", connection=other))

    thread = threading.Thread(target=second)
    thread.start()
    wait_until(lambda: somebody_waits(postgres_url))
    connection.commit()
    thread.join()

    assert found == [Enqueued("k", created=False, differs=True)]
    assert states(app) == {JobState.QUEUED: 1}


def test_others_enqueue_and_work_while_a_transaction_is_open(
    app: Penstock, connection: psycopg.Connection[Any]
) -> None:
    send = app.tasks["send"]
    app.enqueue(send.job(order=1), key="held", connection=connection)

    app.enqueue(send.job(order=2), key="free")  # the same lane, which was empty
    assert app.run(drain=True).done == 1
    connection.commit()
    assert app.run(drain=True).done == 1


def test_a_worker_that_idles_is_woken_by_the_commit(
    app: Penstock, connection: psycopg.Connection[Any]
) -> None:
    send = app.tasks["send"]

    async def main() -> None:
        run = asyncio.create_task(app.run_async())
        await asyncio.to_thread(wait_until, lambda: bool(app.store.workers().result()))
        app.enqueue(send.job(order=7), key="k", connection=connection)
        await asyncio.to_thread(connection.commit)
        assert await send.result_async("k", timeout=60) == 7
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c, "row_factory", dict_row),
        lambda c: setattr(c, "prepare_threshold", 0),
        lambda c: setattr(c, "autocommit", True),
        lambda c: setattr(c, "isolation_level", psycopg.IsolationLevel.SERIALIZABLE),
        lambda c: c.adapters.register_loader("text", Shouting),
        lambda c: setattr(c, "cursor_factory", psycopg.ClientCursor),
        lambda c: c.execute("set search_path = nowhere"),
    ],
    ids=["rows", "prepared", "autocommit", "serializable", "loader", "cursor", "path"],
)
def test_whatever_a_connection_was_taught_it_stays_so_and_jobs_come(
    app: Penstock,
    connection: psycopg.Connection[Any],
    change: Callable[[psycopg.Connection[Any]], object],
) -> None:
    send = app.tasks["send"]
    app.enqueue(send.job(order=0), key="before")  # so that its lane is in every snapshot
    change(connection)
    connection.commit()
    kept = {name: getattr(connection, name) for name in ("row_factory", "autocommit")}
    with connection.transaction():
        connection.execute("insert into public.orders values (1)")
        for n in range(8):  # also with statements that the server has prepared
            app.enqueue(send.job(order=n), key=f"k{n}", connection=connection)
        before = connection.execute("show enable_seqscan").fetchone()
        assert states(app) == {JobState.QUEUED: 1}
    connection.commit()

    assert states(app) == {JobState.QUEUED: 9}
    assert "'on'" in repr(before).lower()
    assert {name: getattr(connection, name) for name in kept} == kept


def test_a_pipeline_of_the_user_goes_on(
    app: Penstock, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    send = app.tasks["send"]
    with connection.pipeline():
        connection.execute("insert into orders values (1)")
        accepted = app.enqueue(send.job(order=1), key="k", connection=connection)
        again = app.enqueue(send.job(order=1), key="k", connection=connection)
        connection.execute("insert into orders values (2)")
        connection.commit()

    assert (accepted.created, again.created) == (True, False)
    assert orders(postgres_url) == [1, 2]
    assert states(app) == {JobState.QUEUED: 1}


def test_an_async_connection_commits_rolls_back_and_survives_being_cancelled(
    app: Penstock, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    send = app.tasks["send"]

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as user:
            await user.execute("insert into orders values (1)")
            one = await app.enqueue_async(send.job(order=1), key="one", connection=user)
            many = await app.enqueue_many_async(
                [send.job(order=n).with_options(key=f"n{n}") for n in range(50)], connection=user
            )
            assert (one.created, many.created) == (True, 50)
            await user.commit()
            await app.enqueue_async(send.job(order=2), key="two", connection=user)
            await user.rollback()
            async with user.pipeline():
                await app.enqueue_async(send.job(order=3), key="three", connection=user)
                await user.commit()

            await asyncio.to_thread(
                lambda: app.enqueue(send.job(order=4), key="held", connection=connection)
            )
            await user.execute("insert into orders values (2)")
            waiting = asyncio.create_task(
                app.enqueue_async(send.job(order=5), key="held", connection=user)
            )
            await asyncio.to_thread(wait_until, lambda: somebody_waits(postgres_url))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await user.execute("insert into orders values (3)")  # the transaction lives
            await user.commit()

    asyncio.run(main())
    connection.rollback()
    assert states(app) == {JobState.QUEUED: 52}
    assert orders(postgres_url) == [1, 2, 3]


def test_many_async_transactions_that_wait_for_each_other_come_to_an_end(
    app: Penstock, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    """More of them than threads of a loop's own pool, all for one key."""
    send = app.tasks["send"]

    async def one(n: int) -> bool:
        async with await psycopg.AsyncConnection.connect(postgres_url) as user:
            found = await app.enqueue_async(send.job(order=1), key="k", connection=user)
            await app.enqueue_async(send.job(order=n), key=f"own{n}", connection=user)
            return found.created

    async def main() -> list[bool]:
        return await asyncio.gather(*(one(n) for n in range(40)))

    assert sum(asyncio.run(main())) == 1
    assert states(app) == {JobState.QUEUED: 41}


def test_what_cannot_be_is_refused_in_a_sentence_and_the_transaction_lives(
    app: Penstock, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    send = app.tasks["send"]

    def refused(connection: Any, said: str) -> None:
        with pytest.raises(UsageError, match=said) as error:
            app.enqueue(send.job(order=1), connection=connection)
        assert str(error.value).endswith(".")

    refused(object(), "takes a psycopg.Connection here, got builtins's object")
    connection.execute("insert into orders values (1)")
    with psycopg.connect(postgres_url, dbname="postgres") as elsewhere:
        elsewhere.execute("create temporary table mine (id integer)")
        refused(elsewhere, "another database than the store")
        elsewhere.execute("insert into mine values (1)")
    with psycopg.connect(postgres_url, client_encoding="latin1") as latin:
        refused(latin, "speaks LATIN1, and payloads are UTF8")
    refused(latin, "connection= is closed")
    with psycopg.connect(postgres_url) as failed:
        with pytest.raises(psycopg.errors.DivisionByZero):
            failed.execute("select 1 / 0")
        refused(failed, "has failed already; roll it back")
        failed.rollback()
    connection.commit()
    assert orders(postgres_url) == [1]

    with harness(Penstock("file")) as t, pytest.raises(UsageError, match="commit yours first"):
        t.app.enqueue(send.job(order=1), connection=connection)

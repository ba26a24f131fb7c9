# SPDX-License-Identifier: Apache-2.0
"""The next transaction is opened with a commit: what if only one of the two comes off?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from penstock.errors import EnqueueRefused
from penstock.model.job import Edge, JobState, NewJob
from penstock.stores import group_commit
from penstock.stores.postgres import pipeline
from penstock.stores.postgres.open import open_postgres
from penstock.stores.postgres.pipeline import Question
from penstock.stores.postgres.session import PostgresSession
from penstock.stores.postgres.transaction import PostgresTransaction
from penstock.stores.protocol import Store
from penstock.stores.sql.statements import Row
from tests.postgres.cluster import Server
from tests.postgres.proxy import Proxy

pytestmark = pytest.mark.integration

BATCHES, JOBS = 16, 500
ROUNDS = 20  # until both kinds of commits were seen
TIMES = 5


class Commits(list[str]):
    """What became of commits with an opening behind them, as the transaction was told."""

    def note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        commit = PostgresTransaction.commit

        def noting(tx: PostgresTransaction, then: Sequence[Question]) -> list[list[Row]] | None:
            if not then:
                return commit(tx, then)
            self.append("error")
            answers = commit(tx, then)
            self[-1] = "half" if answers is None else "both"
            return answers

        monkeypatch.setattr(PostgresTransaction, "commit", noting)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    made = Commits()
    made.note(monkeypatch)
    return made


@pytest.fixture
def behind_proxy(postgres_server: Server) -> Iterator[tuple[Store, Proxy]]:
    name = f"ahead_{os.getpid()}_{time.monotonic_ns()}"
    postgres_server.create_database(name)
    with Proxy(postgres_server) as proxy:
        store = open_postgres(proxy.url(name))
        try:
            yield store, proxy
        finally:
            proxy.forgive()
            store.close()
    postgres_server.ask(f"drop database {name} with (force)")


@pytest.fixture
def alone(postgres_url: str) -> Iterator[tuple[Any, PostgresSession]]:
    """A store whose writer has nothing to do, and its session, which a test uses in its place."""
    store: Any = open_postgres(postgres_url)
    store.enqueue([_job("first")]).result()
    yield store, store._sessions[0]
    store.close()


def _job(key: str, **more: object) -> NewJob:
    return NewJob(key=key, task="t", payload="1", group="g", **more)  # type: ignore[arg-type]


def _hurt(proxy: Proxy, hurt: str) -> None:
    if hurt == "opening fails":
        proxy.inject_error("40001", when="pg_current_xact_id", n=TIMES, every=2)
    elif hurt == "cut before the opening":
        proxy.cut_before(TIMES, "pg_current_xact_id", every=2)
    elif hurt == "opening's answer lost":
        proxy.drop_replies(TIMES, "pg_current_xact_id", every=2)
    elif hurt == "commit's answer lost":
        proxy.drop_commit_replies(TIMES, every=2)
    else:
        proxy.cut_before_commits(TIMES, every=2)


@pytest.mark.parametrize(
    ("hurt", "told"),
    [
        ("opening fails", {"half"}),
        ("cut before the opening", {"half", "error"}),  # the commit's answer may be lost as well
        ("opening's answer lost", {"half", "error"}),
        ("commit's answer lost", {"error"}),
        ("cut before the commit", {"error"}),
    ],
)
def test_what_was_committed_is_told_and_nothing_is_lost(
    behind_proxy: tuple[Store, Proxy],
    commits: Commits,
    monkeypatch: pytest.MonkeyPatch,
    hurt: str,
    told: set[str],
) -> None:
    monkeypatch.setattr(group_commit, "TURN_SECONDS", 0.0)  # a transaction for each batch
    store, proxy = behind_proxy
    rounds = 0
    while rounds < ROUNDS and len({*commits}) < 2:  # on a busy machine none may be behind another
        _hurt(proxy, hurt)
        batches = [[_job(f"{rounds} {n} {m}") for m in range(JOBS)] for n in range(BATCHES)]
        replies = [store.enqueue(batch) for batch in batches]
        assert [len(reply.result().created) for reply in replies] == [JOBS] * BATCHES
        proxy.forgive()
        rounds += 1

    assert {*commits} - {"both"} <= told
    assert len({*commits}) > 1, "nothing was hurt, or nothing was opened behind a commit"
    assert store.stats().result().states[JobState.QUEUED] == rounds * BATCHES * JOBS
    assert store.check().result() == []


def test_what_is_expected_is_asked_behind_the_commit(alone: tuple[Any, PostgresSession]) -> None:
    _, session = alone
    session.begin(wait=True)
    session.expect(lambda life, at: (("read_meta", ("cluster",)),))

    session.commit(more=True)
    tx: Any = session.begin(wait=True)

    assert list(tx._asked) == [("read_meta", ("cluster",))]
    assert tx.first("read_meta", "cluster") == tx.boot.boot_id
    session.rollback()


def test_a_question_that_fails_behind_a_commit_spoils_nothing(
    alone: tuple[Any, PostgresSession],
) -> None:
    store, session = alone
    tx = session.begin(wait=True)
    tx.run("write_meta", "mine", "kept")
    session.expect(lambda life, at: (("insert_job", ()),))  # parameters are missing

    session.commit(more=True)

    again = session.begin(wait=True)
    assert again.first("read_meta", "mine") == "kept"
    session.rollback()
    assert store.enqueue([_job("next")]).result().created == {"next"}


@pytest.mark.parametrize(
    ("monotonic", "owned_now", "is_fresh"),
    [(7.0, 5, True), (7.0 + pipeline.FRESH_SECONDS * 2, 5, False), (7.0, 6, False)],
)
def test_a_transaction_is_fresh_while_its_time_is_the_time(
    monotonic: float, owned_now: int, is_fresh: bool
) -> None:
    begun = pipeline.Begun(1, 2, "3", 4, "life", 5)
    opening = pipeline.Opening(ahead=None, life="life", owned_now=5, since=7.0)
    assert pipeline.Opened(opening, begun, [], []).is_fresh(monotonic, owned_now) is is_fresh


def test_a_transaction_that_was_opened_long_ago_is_given_up(
    alone: tuple[Any, PostgresSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = alone[1]
    session.begin(wait=True)
    session.commit(more=True)
    opened = session._opened.begun
    monkeypatch.setattr(pipeline, "FRESH_SECONDS", -1.0)

    tx = session.begin(wait=True)

    assert session._begun.number != opened.number
    assert tx.now > opened.now
    assert tx.first("transaction_fate", opened.number) == "aborted"
    session.rollback()


def test_a_transaction_that_was_opened_dies_with_its_connection(
    alone: tuple[Any, PostgresSession], postgres_url: str
) -> None:
    store, inside = alone
    session: Any = inside
    session.begin(wait=True)
    session.commit(more=True)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", [session._opened.begun.pid])

    assert store.enqueue([_job(f"{n}") for n in range(JOBS)]).result().created
    assert session._opened is None
    assert store.check().result() == []


def test_nothing_stays_open_when_nothing_waits(
    behind_proxy: tuple[Store, Proxy], commits: Commits
) -> None:
    """Refused operations and withdrawn ones are no reason to keep what was opened for them."""
    store, _ = behind_proxy
    inside: Any = store
    batches = [[_job(f"{n} {m}") for m in range(JOBS)] for n in range(BATCHES)]
    replies = [store.enqueue(batch) for batch in batches]
    refused = store.enqueue([_job("child", after=(Edge("nobody"),)), _job("other")])
    withdrawn = store.enqueue([_job("w1"), _job("w2")])
    try:
        more = len(withdrawn.result(0).created)
    except TimeoutError:
        more = 0

    assert [len(reply.result().created) for reply in replies] == [JOBS] * BATCHES
    with pytest.raises(EnqueueRefused):
        refused.result()
    store.enqueue([_job("last")]).result()
    assert "both" in commits
    assert inside._sessions[0]._opened is None
    expected = BATCHES * JOBS + 1 + more
    assert store.stats().result().states[JobState.QUEUED] == expected
    assert store.check().result() == []

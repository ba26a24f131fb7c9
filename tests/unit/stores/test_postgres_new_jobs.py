# SPDX-License-Identifier: Apache-2.0
"""Rows of new jobs as arrays and as the text of a COPY, and what the server makes of a batch."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.model.job import Edge, JobState, NewJob
from penstock.model.views import EndMark
from penstock.stores.group_commit import Contended
from penstock.stores.postgres import bulk_insert
from penstock.stores.postgres.open import open_postgres, statements
from penstock.stores.sql.statements import Row

WAIT = 30.0
QUERIES = statements()
AWKWARD = ("a\tb", "a\\b", "a\nb", "a\rb", '"{},', "\\N", "\\.", "ä€😀", "")


def row(key: str, payload: str = "{}", partition: str | None = None) -> Row:
    return (key, 1, partition, 0, payload, 2, 9, None, None)


def job(key: str, payload: str = "{}", **more: object) -> NewJob:
    return NewJob(key=key, task="t", payload=payload, group="g", **more)  # type: ignore[arg-type]


def many(count: int, first: int = 0) -> list[NewJob]:
    return [job(f"k{number:05}") for number in range(first, first + count)]


def test_rows_are_copied_in_the_order_of_keys() -> None:
    (text,) = bulk_insert.jobs_copied([row("b"), row("a")], [1, 2], 5, 3)
    assert text == "2\ta\t1\t0\t{}\t\\N\t\\N\t\\N\t5\t3\n1\tb\t1\t0\t{}\t\\N\t\\N\t\\N\t5\t3\n"


def test_a_long_batch_is_copied_in_pieces() -> None:
    rows = [row(f"{n:04}") for n in range(bulk_insert.PIECE + 1)]
    pieces = list(bulk_insert.jobs_copied(rows, range(len(rows)), 5, 1))
    assert [piece.count("\n") for piece in pieces] == [bulk_insert.PIECE, 1]


def test_awkward_texts_come_back_as_they_were(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    try:
        odd = [
            job(f"key {n} {text}", f'"{text}"', partition=text) for n, text in enumerate(AWKWARD)
        ]
        report = store.enqueue([*odd, *many(bulk_insert.COPY_MIN)]).result()
        assert len(report.created) == len(odd) + bulk_insert.COPY_MIN
        for one in odd:
            found = store.job(one.key).result()
            assert found is not None
            assert (found.payload, found.partition) == (one.payload, one.partition)
        assert store.check().result() == []
    finally:
        store.close()


@pytest.mark.parametrize("known", [1, 20, 60])
def test_known_keys_among_many_are_told_and_nothing_is_there_twice(
    postgres_url: str, known: int
) -> None:
    store = open_postgres(postgres_url)
    try:
        store.enqueue(many(60)).result()
        report = store.enqueue(many(60, first=60 - known)).result()
        assert (len(report.created), len(report.existing)) == (60 - known, known)
        again = store.enqueue(many(60, first=200)).result()
        assert len(again.created) == 60
        assert store.stats().result().states[JobState.QUEUED] == 180 - known
        assert store.check().result() == []
    finally:
        store.close()


def test_a_job_that_waits_for_another_has_the_higher_id_whatever_is_in_stock(
    postgres_url: str,
) -> None:
    store, other = open_postgres(postgres_url), open_postgres(postgres_url)
    try:
        with psycopg.connect(postgres_url) as connection:
            reserved = connection.execute(QUERIES["reserve_ids"].replace("$1", "50").encode())
            inside: Any = store
            inside._sessions[0]._lanes.ids = [number for (number,) in reserved]
        other.enqueue([job("parent")]).result()
        children = [job(f"child {n}", after=(Edge("parent"),)) for n in range(40)]
        assert len(store.enqueue(children).result().created) == 40
    finally:
        store.close()
        other.close()


@pytest.mark.parametrize("with_ids", [False, True], ids=["no-ids", "ids-in-stock"])
@pytest.mark.parametrize("delayed", [0, 1, 50], ids=["all-due", "one-delayed", "all-delayed"])
def test_a_lane_that_another_process_has_purged_is_made_again(
    postgres_url: str, delayed: int, with_ids: bool
) -> None:
    """Its number is remembered, and not asked for before the commit where somebody is told."""
    store, other = open_postgres(postgres_url), open_postgres(postgres_url)
    inside: Any = store
    session = inside._sessions[0]
    try:
        for first in (0, 100):  # the second time its number is known
            store.enqueue(many(50, first=first)).result()
            store.cancel([one.key for one in many(50, first=first)]).result()
        remembered = dict(session._lanes.numbers)
        progress, _ = other.purge(2**62, EndMark(0, 0)).result()
        assert progress.count == 100
        if with_ids:
            with psycopg.connect(postgres_url) as connection:
                reserved = connection.execute(QUERIES["reserve_ids"].replace("$1", "200").encode())
                session._lanes.ids = [number for (number,) in reserved]
        batch = [
            job(f"n{number}", delay_seconds=60.0 if number < delayed else 0.0)
            for number in range(50)
        ]

        assert len(store.enqueue(batch).result(WAIT).created) == 50
        assert session._lanes.numbers.keys() == remembered.keys()
        assert session._lanes.numbers != remembered
        assert store.check().result() == []
    finally:
        store.close()
        other.close()


def test_a_lane_that_is_gone_when_it_shall_be_made_known_is_looked_for_again(
    postgres_url: str,
) -> None:
    """A number that is wrong, and that nobody has checked, leads to another run and not on."""
    store = open_postgres(postgres_url)
    inside: Any = store
    session = inside._sessions[0]
    try:
        store.enqueue(many(50)).result()
        for made_work in (False, True):
            session._lanes.numbers = {"a": 999_999}
            tx: Any = session.begin(wait=True)
            tx.touch(999_999)
            tx.made_work = made_work
            with pytest.raises(Contended):
                session.commit(more=True)
            assert session._lanes.numbers == {}
            session.rollback()
        assert store.enqueue(many(50, first=50)).result(WAIT).created
    finally:
        store.close()


def test_batches_of_one_transaction_that_are_new_and_known_by_turns_end(postgres_url: str) -> None:
    """COPY is for all of them or for none, else each run would meet the next known key."""
    store = open_postgres(postgres_url)
    inside: Any = store
    try:
        store.enqueue(many(50)).result()
        with inside._writer._session_lock:  # so that they share a transaction
            batches = (many(50, first=100), many(50), many(50, first=200), many(50))
            replies = [store.enqueue(batch) for batch in batches]

        assert [len(reply.result(WAIT).created) for reply in replies] == [50, 0, 50, 0]
        assert store.check().result() == []
    finally:
        store.close()


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_text_that_cannot_be_kept_is_refused_and_the_next_batch_accepted(
    postgres_url: str, text: str
) -> None:
    store = open_postgres(postgres_url)
    try:
        for count in (2, bulk_insert.COPY_MIN):
            with pytest.raises(Exception, match=r"NUL|0x00|surrogate|bug of Penstock"):
                store.enqueue([*many(count), job("bad", text)]).result(WAIT)
        assert len(store.enqueue(many(50)).result(WAIT).created) == 50
        assert store.check().result() == []
    finally:
        store.close()

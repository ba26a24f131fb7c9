# SPDX-License-Identifier: Apache-2.0
"""Rows of new jobs as arrays and as the text of a COPY, and what the server makes of a batch."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.model.job import Edge, JobState, NewJob
from penstock.model.views import EndMark
from penstock.stores.postgres import new_jobs
from penstock.stores.postgres.opening import open_postgres, statements
from penstock.stores.sql.statements import Row

QUERIES = statements()
AWKWARD = ("a\tb", "a\\b", "a\nb", "a\rb", '"{},', "\\N", "\\.", "ä€😀", "")


def row(key: str, payload: str = "{}", partition: str | None = None) -> Row:
    return (key, 1, partition, 0, payload, 2, 9, None, None)


def job(key: str, payload: str = "{}", **more: object) -> NewJob:
    return NewJob(key=key, task="t", payload=payload, group="g", **more)  # type: ignore[arg-type]


def many(count: int, first: int = 0) -> list[NewJob]:
    return [job(f"k{number:05}") for number in range(first, first + count)]


def test_rows_are_copied_in_the_order_of_keys() -> None:
    (text,) = new_jobs.jobs_copied([row("b"), row("a")], [1, 2], 5)
    assert text == "2\ta\t1\t0\t{}\t\\N\t\\N\t\\N\t5\n1\tb\t1\t0\t{}\t\\N\t\\N\t\\N\t5\n"


def test_a_long_batch_is_copied_in_pieces() -> None:
    rows = [row(f"{n:04}") for n in range(new_jobs.PIECE + 1)]
    pieces = list(new_jobs.jobs_copied(rows, range(len(rows)), 5))
    assert [piece.count("\n") for piece in pieces] == [new_jobs.PIECE, 1]


def test_awkward_texts_come_back_as_they_were(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    try:
        odd = [
            job(f"key {n} {text}", f'"{text}"', partition=text) for n, text in enumerate(AWKWARD)
        ]
        report = store.enqueue([*odd, *many(new_jobs.COPY_MIN)]).result()
        assert len(report.created) == len(odd) + new_jobs.COPY_MIN
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


def test_a_lane_that_was_purged_meanwhile_is_made_again(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    try:
        for first in (0, 100):  # the second time its number is known
            store.enqueue(many(50, first=first)).result()
            store.cancel([one.key for one in many(50, first=first)]).result()
        progress, _ = store.purge(2**62, EndMark(0, 0)).result()
        assert progress.count == 100
        assert len(store.enqueue(many(50)).result().created) == 50
        assert store.check().result() == []
    finally:
        store.close()

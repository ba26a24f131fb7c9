# SPDX-License-Identifier: Apache-2.0
"""What does a producer notice of a store that is kept by a server?"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Sequence

import pytest

from penstock import Context, Penstock
from penstock.app import queue
from penstock.errors import StoreUnavailable, StoreUnknown
from penstock.model.job import JobState, NewJob
from penstock.model.views import EnqueueReport
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing import ManualClock
from tests.postgres_modules import put_module

URL = "postgresql://me:hunter2hunter2@h/db"


class Served(InProcessStore):
    """Loses answers of enqueue calls that were done."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.loses = 0

    def enqueue(self, jobs: Sequence[NewJob]) -> Reply[EnqueueReport]:
        reply = super().enqueue(jobs)
        if not self.loses:
            return reply
        self.loses -= 1
        return Reply.failed(StoreUnknown("the answer got lost"))


@pytest.fixture
def app() -> Penstock:
    app = Penstock("shop", store=URL)

    @app.task()
    async def visit(ctx: Context, n: int) -> None: ...

    return app


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which the store was opened; the first try always fails."""
    threads: list[threading.Thread] = []

    def open_postgres(url: str, **_: object) -> Served:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            raise StoreUnavailable("The server of postgresql://me@h/db cannot be reached.")
        return Served()

    put_module(monkeypatch, "open", open_postgres=open_postgres)
    monkeypatch.setattr(queue, "blocking_sleep", lambda seconds: None)
    return threads


def test_a_producer_waits_for_a_server_that_comes_up_and_says_so(
    app: Penstock, opened: list[threading.Thread], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.app"):
        assert app.enqueue(app.tasks["visit"].job(n=1), key="k").created

    assert len(opened) == 2
    unreachable, reachable = caplog.messages
    assert unreachable == (
        "The store is unreachable: The server of postgresql://me@h/db cannot be reached. "
        "Waiting for it up to 30 s."
    )
    assert re.fullmatch(r"The store is reachable again after \d+\.\d s\.", reachable)


def test_a_server_is_never_waited_for_on_the_event_loop(
    app: Penstock, opened: list[threading.Thread]
) -> None:
    async def main() -> bool:
        return (await app.enqueue_async(app.tasks["visit"].job(n=1), key="k")).created

    assert asyncio.run(main())
    assert len(opened) == 2
    assert threading.current_thread() not in opened


def test_jobs_whose_answer_got_lost_are_there_once(
    app: Penstock, opened: list[threading.Thread]
) -> None:
    store = app.store
    assert isinstance(store, Served)
    visit = app.tasks["visit"]

    store.loses = 2
    app.enqueue(visit.job(n=1), key="a")
    store.loses = 2
    asyncio.run(_enqueue(app))
    store.loses = 2
    many = app.enqueue_many(visit.job(n=n).with_options(key=f"m{n}") for n in range(2_500))

    assert many.created + many.existing == 2_500
    assert store.stats().result().states[JobState.QUEUED] == 2_502


async def _enqueue(app: Penstock) -> None:
    await app.enqueue_async(app.tasks["visit"].job(n=1), key="b")

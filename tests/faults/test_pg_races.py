# SPDX-License-Identifier: Apache-2.0
"""Do operations that run side by side on PostgreSQL end as if one had come after the other?"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.model.job import Edge, EdgeKind, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest
from penstock.stores.postgres import store as store_module
from penstock.stores.postgres.open import open_postgres
from tests.faults.pg_campaign import run_campaign
from tests.faults.pg_pairs import ACTS, Fleet, at_random, fleet, preempt
from tests.faults.races import done, register

pytestmark = pytest.mark.faults

#: Each pair that shares something: the first stops before each of its statements in turn.
CRITICAL = [
    ("after p, q", "ack q, p"),
    ("into e", "lease"),
    ("ack i", "ack g, lease"),
    ("ack i", "lease"),
    ("cap 2", "lease"),
    ("retry", "after f"),
    ("after f", "retry"),
    ("q fails", "retry"),
    ("after old", "purge"),
    ("cancel p", "ack p"),
    ("ack p", "q fails"),
    ("a", "a, b after a"),
    ("e commits s", "q commits s"),
    ("q stages l", "e commits l"),
    ("a takes", "b takes"),
    ("a takes", "beats"),
    ("e commits s", "a takes"),
    ("plan ends", "a takes"),
    ("p intends", "q intends"),
    ("p intends", "p intends"),
    ("e answered", "e closed"),
    ("old answered", "purge"),
    ("purge", "old answered"),
]
POINTS = 3  # of each pair in a test run; `make soak-pg-races` takes all of all pairs
RANDOM = 6
JOBS = 60
ONE = ConfiguredCaps({"one:*": 1})


@pytest.fixture(scope="module")
def world_of_two(
    request: pytest.FixtureRequest,
) -> Iterator[Fleet]:
    server = request.getfixturevalue("postgres_server")
    url = server.create_database(f"races_{os.getpid()}_{time.monotonic_ns()}")
    with fleet(url) as made:
        yield made


@pytest.mark.parametrize(("first", "second"), CRITICAL, ids=lambda name: name.replace(" ", "-"))
def test_a_pair_ends_as_one_after_the_other(first: str, second: str, world_of_two: Fleet) -> None:
    allowed = world_of_two.serial(first, second)
    world_of_two.together(first, second, preempt(1))
    last = world_of_two.statements_of()

    for point in {2 + (last - 2) * part // (POINTS - 1) for part in range(POINTS)}:
        got = world_of_two.together(first, second, preempt(point))
        assert got in allowed, f"stopped before statement {point}"


@pytest.mark.parametrize("seed", range(RANDOM))
def test_any_pair_in_any_order_of_statements(seed: int, world_of_two: Fleet) -> None:
    names = sorted(ACTS)
    first, second = names[seed * 7 % len(names)], names[(seed * 11 + 3) % len(names)]
    if first == second:
        second = names[(seed * 11 + 4) % len(names)]

    assert world_of_two.together(first, second, at_random(seed)) in world_of_two.serial(
        first, second
    )


def test_a_fleet_that_does_everything_at_once_loses_and_repeats_nothing(
    fresh_postgres: Callable[[], str],
) -> None:
    calls = run_campaign(fresh_postgres(), clients=4, seconds=4.0, seed=1, leases=50)

    assert calls["deadlocks"] <= 6 + calls["commits"] // 500  # each stops somebody for a second


def test_an_idle_worker_is_told_of_every_job_without_asking(
    fresh_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SLOW_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(store_module, "POLL_SECONDS", 3600.0)
    url = fresh_postgres()
    idle, busy = (open_postgres(url, durability="normal") for _ in range(2))
    register(idle, "w", ttl=1e6)

    async def work_off(count: int) -> set[str]:
        seen: set[str] = set()
        while len(seen) < count:
            batch = await idle.lease(
                LeaseRequest(worker=WorkerId("w"), tasks=("t",), limit=4, caps=ONE)
            )
            seen.update(job.key for job in batch.jobs)
            await idle.ack(WorkerId("w"), [done(job) for job in batch.jobs])
            if not batch.jobs and not batch.more:
                await asyncio.wait_for(idle.wait_for_work(None), 60)
        return seen

    def produce() -> None:
        chance = random.Random(3)
        for number in range(JOBS):
            limits = ("one:a",) if number % 3 == 0 else ()
            after = (Edge(f"k{number - 1}", EdgeKind.FINISHED),) if number % 5 == 4 else ()
            job = NewJob(
                key=f"k{number}",
                task="t",
                payload="{}",
                group=f"g{number % 4}",
                limit_keys=limits,
                after=after,
            )
            busy.enqueue([job]).result()
            time.sleep(0.01 * chance.random())

    producer = threading.Thread(target=produce)
    producer.start()
    seen = asyncio.run(work_off(JOBS))
    producer.join()

    assert seen == {f"k{number}" for number in range(JOBS)}
    assert idle.check().result() == []
    idle.close()
    busy.close()


def test_an_acknowledgement_of_nothing_is_answered_with_nothing(
    fresh_postgres: Callable[[], str],
) -> None:
    store = open_postgres(fresh_postgres(), durability="normal")
    assert store.ack(register(store, "w"), []).result() == []
    store.close()

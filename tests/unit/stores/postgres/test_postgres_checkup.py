# SPDX-License-Identifier: Apache-2.0
"""Does a look at a server see its queue, and does it tell a standby?"""

from __future__ import annotations

from contextlib import closing
from typing import LiteralString

import msgspec
import psycopg
import pytest

from penstock.model.job import AttemptError, Edge, ErrorCategory, JobState, NewJob
from penstock.model.schedule import PreflightResult, UnitPlan
from penstock.stores.postgres.doctor import postgres_facts, postgres_findings
from penstock.stores.postgres.open import open_postgres
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld
from tests.postgres.fixtures import MakeCluster

pytestmark = pytest.mark.integration


def test_the_queue_of_a_server_is_seen_and_one_that_is_not_there_is_not_made(
    postgres_url: str,
) -> None:
    assert postgres_facts(postgres_url) is None
    assert postgres_facts(postgres_url) is None
    with closing(open_postgres(postgres_url)) as store:
        store.enqueue([NewJob(key="a", task="sell", payload="{}", group="g")]).result()
        store.set_paused(True).result()
        store.set_cap("host:a", 0).result()

    facts = postgres_facts(postgres_url)

    assert facts is not None
    assert facts.stats.paused
    assert facts.stats.tasks["sell"][JobState.QUEUED] == 1
    assert facts.caps == {"host:a": 0}
    assert (facts.workers, facts.served) == ([], frozenset())


def test_units_that_have_ended_in_error_are_seen(postgres_url: str) -> None:
    with closing(open_postgres(postgres_url)) as store:
        world = StoreWorld(store, ManualClock())
        plan = UnitPlan(
            key="schedule:poll:a",
            task="schedule:poll",
            payload="{}",
            group="a",
            partition="a",
            timing="every 10 s",
            first_at=0,
        )
        well = msgspec.structs.replace(plan, key="schedule:poll:b", partition="b", group="b")
        store.arm("shop", [plan, well]).result()
        worker = world.new_worker(tasks=["schedule:poll"])
        leased = world.take_all(worker)
        world.fail(worker, leased[plan.key], max_attempts=1)

    facts = postgres_facts(postgres_url)

    assert facts is not None
    assert [(unit.key, unit.state) for unit in facts.units] == [(plan.key, JobState.ERROR)]


def test_a_standby_is_a_problem_and_its_queue_is_seen(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tcp=True)
    open_postgres(cluster.url()).close()
    with closing(cluster.standby()) as standby:
        standby.catch_up()
        ill = [found for found in postgres_findings(standby.url()) if not found.ok]
        facts = postgres_facts(standby.url())

    assert [found.check for found in ill] == ["server", "durability"]
    assert "is a standby" in ill[0].text
    assert facts is not None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("update penstock.hot set pending = 2 where pending = 1", "of open dependencies"),
        ("delete from penstock.hot where pending = 1", "is stored in two tables, or in none"),
        ("delete from penstock.ready_lanes", "The head of lane"),
        ("update penstock.hot set worker = 7 where pending = 0", "has a worker without"),
    ],
    ids=["edges", "places", "lanes", "workers"],
)
def test_a_store_that_contradicts_itself_is_found_by_a_full_look_only(
    postgres_url: str, damage: LiteralString, said: str
) -> None:
    jobs = [
        NewJob(key="a", task="sell", payload="{}", group="g"),
        NewJob(key="b", task="sell", payload="{}", group="g", after=(Edge("a"),)),
    ]
    with closing(open_postgres(postgres_url)) as store:
        store.enqueue(jobs).result()
    assert _invariants(postgres_url, full=True) == ["all hold"]
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(damage).rowcount == 1

    assert _invariants(postgres_url, full=False) == []
    (told,) = _invariants(postgres_url, full=True)
    assert told.startswith("The store contradicts itself: ")
    assert said in told


def _invariants(url: str, *, full: bool) -> list[str]:
    found = postgres_findings(url, full=full)
    return [finding.text for finding in found if finding.check == "invariants"]


def test_a_failed_start_is_seen(postgres_url: str) -> None:
    with closing(open_postgres(postgres_url)) as store:
        error = AttemptError(ErrorCategory.OWN, "KeyError", "x")
        failed = PreflightResult(unit="preflight:p:a", name="p", partition="a", error=error)
        passed = PreflightResult(unit="preflight:p:b", name="p", partition="b", value="1")
        store.keep_preflights("shop", [failed, passed]).result()

    facts = postgres_facts(postgres_url)

    assert facts is not None
    assert [check.unit for check in facts.failed_checks] == [failed.unit]

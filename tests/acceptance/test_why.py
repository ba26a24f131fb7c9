# SPDX-License-Identifier: Apache-2.0
"""Does `penstock why` name what holds a job up, from the store and from a worker that runs?"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import JobState
from penstock.model.worker import read_status
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from tests.forked import Forked, run_forked
from tests.processes import environment_of_tests, kill_run
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 120.0
APP = """
import asyncio
from penstock import Context, Penstock

app = Penstock("shop")

@app.task(limits={"host": lambda host: host}, timeout=1800)
async def visit(ctx: Context, host: str) -> None:
    await asyncio.sleep(3600)

@app.task()
async def naps(ctx: Context) -> None:
    await asyncio.sleep(3600)

if __name__ == "__main__":
    app.enqueue(visit.job(host="x"), key="holder", group="g1")
    app.enqueue(visit.job(host="x"), key="held-up", group="g1")
    app.enqueue(visit.job(host="x"), key="after", after=["held-up"], group="g1")
    app.enqueue(naps.job(), key="nap-1", group="g2")
"""
CONFIG = """
app = "shop.py"
[limits.host]
"*" = 1
[runtime]
async_slots = 2
grace_seconds = 0
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("postgres_url"))


def test_why_names_the_holder_of_a_full_limit_and_full_slots_as_of_now(
    url: str, tmp_path: Path
) -> None:
    """One run of a worker with two slots and a limit of one; its bodies do not end."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(CONFIG)
    environment = environment_of_tests(PENSTOCK_STORE=url)

    def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_forked(
            [*PENSTOCK, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )

    def why(key: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(penstock("why", key, "--json").stdout)
        return found

    run_forked([sys.executable, "shop.py"], cwd=tmp_path, env=environment, check=True)
    before = why("holder")
    assert (before["gate"], before["command"]) == ("no_worker", "penstock queue run")
    run = Forked(
        [*PENSTOCK, "queue", "run"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with closing(open_store(url)) as store:
            wait_until(lambda: slots_used(store) == 2, SECONDS)
            penstock("queue", "enqueue", "naps", "nap-2", "--group", "g2")
            worker = store.job("holder").result().worker  # type: ignore[union-attr]

            limited, chained, full, running = map(why, ("held-up", "after", "nap-2", "holder"))
            people = penstock("why", "nap-2").stdout
            stats = json.loads(penstock("queue", "stats", "--json").stdout)
    finally:
        kill_run(run)

    assert limited["gate"] == "keyed_limit"
    (limit,) = limited["limits"]
    assert (limit["limit_key"], limit["cap"], limit["count"]) == ("host:x", 1, 1)
    assert limit["source"] == f"as configured for worker {worker!r}, for all 'host:*'"
    (holder,) = limit["holders"]
    assert (holder["key"], holder["worker"], holder["lingers"]) == ("holder", worker, False)
    assert "held by 'holder' on worker" in str(limited["sentence"])
    assert limited["command"] == "penstock queue limit host:x 2"

    assert chained["gate"] == "dependency"
    assert chained["chain"] == ["after", "held-up"]
    assert chained["command"] == limited["command"]

    assert full["gate"] == "slots"
    assert full["as_of"] is not None
    assert "'async' slot" in str(full["sentence"])
    assert "(As of " in people.splitlines()[0]

    assert running["gate"] == "running"
    assert (running["worker"], running["when"] is not None) == (worker, True)
    assert running["as_of"] is not None

    assert {state: n for state, n in stats["groups"]["g1"].items() if n} == {
        "waiting": 1,
        "queued": 1,
        "in_progress": 1,
    }
    assert sum(stats["groups"]["g2"].values()) == 2


def slots_used(store: Store) -> int:
    """How many of its slots the worker says that it uses."""
    if store.stats().result().states[JobState.IN_PROGRESS] < 2:
        return 0
    statuses = [read_status(worker.status) for worker in store.workers().result()]
    return max((status.slots["async"].used for status in statuses if status is not None), default=0)

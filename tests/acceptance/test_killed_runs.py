# SPDX-License-Identifier: Apache-2.0
"""Is what people are told after a kill -9 of supervisor and worker true, before the lease ends?"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import JobState
from penstock.model.run import read_document
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

@app.task()
async def copy(ctx: Context) -> None:
    ctx.progress(12, 40)
    await asyncio.sleep(3600)

if __name__ == "__main__":
    app.enqueue(copy.job(), key="k")
"""
#: A lease that is not over before the test is, however slow the machine.
CONFIG = 'app = "shop.py"\n[runtime]\nlease_ttl_seconds = 600\nbeat_seconds = 100\n'


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("postgres_url"))


def test_what_a_killed_run_held_is_told_to_be_lost_and_the_run_is_reported(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(CONFIG)
    environment = environment_of_tests(PENSTOCK_STORE=url)

    def penstock(*arguments: str) -> str:
        ended = run_forked(
            [*PENSTOCK, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return str(ended.stdout)

    def said(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(penstock(*arguments, "--json"))
        return found

    def start(log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as stream:
            return Forked(
                [*PENSTOCK, "queue", "run", "--drain"],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
            )

    run_forked([sys.executable, "shop.py"], cwd=tmp_path, env=environment, check=True)
    run = start(tmp_path / "first.log")
    with closing(open_store(url)) as store:
        try:
            wait_until(lambda: is_running(store), SECONDS)
            running, shown = said("why", "k"), said("queue", "show", "k")
        finally:
            kill_run(run)
        (killed,) = {view.run_id for view in store.workers().result()}

        why, lost, people = said("why", "k"), said("queue", "show", "k"), penstock("why", "k")
        report, explained = said("report"), said("explain")
        report_text, explain_text = penstock("report"), penstock("explain")
        log = tmp_path / "second.log"
        again = start(log)
        try:
            wait_until(lambda: b"no longer answers" in log.read_bytes(), SECONDS)
            wait_until(lambda: store.runs(1).result() != [killed], SECONDS)
        finally:
            kill_run(again)
        last = said("report")

    assert "Progress: 12 of 40 (30%)." in running["sentence"]
    assert (shown["progress"], shown["gate"]) == ({"done": 12.0, "total": 40.0}, "running")

    assert (why["gate"], why["command"]) == ("silent", "penstock queue run")
    assert "no longer answers: its process is gone. It is taken back in" in people
    assert lost["gate"] == "silent"
    assert "no longer answers" in lost["standing"]

    for document in (report, explained):
        assert (document["run"], document["is_over"]) == (killed, True)
        assert (document["unheard_workers"], document["workers"]) == (1, 1)
        assert 0 < document["unheard_seconds"] <= 10
    assert f"Run {killed}, ended without a final report" in report_text
    for text in (report_text, explain_text):
        assert "1 worker ended without a final report, killed most likely" in text
    assert last["run"] != killed  # the one that began last, though it was killed as well


def is_running(store: Store) -> bool:
    """Does the worker say that the job runs, and has it told of its run?"""
    job = store.job("k").result()
    parts = store.run_parts(None).result()
    told = [read_document(part.document) for part in parts]
    runs = job is not None and job.state is JobState.IN_PROGRESS
    views = store.workers().result()
    return runs and bool(told) and any('"running":1' in (view.status or "") for view in views)

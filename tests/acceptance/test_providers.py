# SPDX-License-Identifier: Apache-2.0
"""Does a run of several processes keep to a provider's caps, tell of it, and remember?"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import JobId
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter
from penstock.testing import ProviderRules, SimulatedProvider
from tests.forked import Forked, run_forked
from tests.processes import environment_of_tests, kill_run
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 120.0
APP = """
from penstock import Context, Penstock

app = Penstock("shop")
api = app.provider("api", base_url={url!r})

@app.task(uses=api)
async def fetch(ctx: Context, n: int) -> int:
    return (await api.http.get(f"/things/{{n}}")).status_code

@app.task(uses=api)
def fetch_in_thread(ctx: Context, n: int) -> int:
    return api.http_sync.get(f"/things/{{n}}").status_code

if __name__ == "__main__":
    app.enqueue_many(fetch.job(n=n) for n in range({jobs}))
    app.enqueue_many(fetch_in_thread.job(n=n) for n in range({jobs}))
"""


def write(folder: Path, url: str, settings: str, jobs: int) -> None:
    (folder / "shop.py").write_text(APP.format(url=url, jobs=jobs))
    (folder / "penstock.toml").write_text(f'app = "shop.py"\n{settings}')
    subprocess.run([sys.executable, "shop.py"], cwd=folder, check=True, timeout=SECONDS)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PENSTOCK, *words],
        cwd=folder,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def document(folder: Path, *words: str) -> Any:
    ended = command(folder, *words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def slow() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(ProviderRules(latency=0.05)) as provider:
        yield provider


def test_processes_share_a_cap_and_one_without_a_part_leaves_the_work_to_others(
    tmp_path: Path, slow: SimulatedProvider
) -> None:
    write(tmp_path, slow.url, "[providers.api]\nmax_parallel = 2\n", 15)

    ended = command(tmp_path, "queue", "run", "--drain", "--processes", "3")

    assert ended.returncode == 0, ended.stderr
    assert slow.counts.served == 30
    assert 1 <= slow.counts.in_flight_max <= 2
    states = document(tmp_path, "queue", "stats")["states"]
    assert states["done"] == 30


def test_what_a_run_learns_is_shown_and_kept(tmp_path: Path) -> None:
    with SimulatedProvider(ProviderRules(concurrency=6, latency=0.05)) as limited:
        write(tmp_path, limited.url, "", 150)
        ended = command(tmp_path, "queue", "run", "--drain")
        assert ended.returncode == 0, ended.stderr
        assert limited.counts.served == 300

    (row,) = document(tmp_path, "providers")["providers"]

    assert (row["provider"], row["model"], row["live"]) == ("api", "127.0.0.1", None)
    assert row["learned"]["ceiling"] == pytest.approx(6, abs=3)
    assert "learned of" in command(tmp_path, "providers").stdout


def test_running_workers_tell_of_their_providers_and_why_names_them(tmp_path: Path) -> None:
    with SimulatedProvider(ProviderRules(latency=600.0)) as stuck:
        settings = "[providers.api]\nmax_parallel = 1\n[runtime]\ngrace_seconds = 0\n"
        write(tmp_path, stuck.url, settings, 6)
        run = Forked(
            [*PENSTOCK, "queue", "run"],
            cwd=tmp_path,
            env=environment_of_tests(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(lambda: live_of(tmp_path) is not None, SECONDS)
            live = live_of(tmp_path)
            url = f"sqlite:///{tmp_path}/.penstock/shop.db"
            with closing(open_store(url)) as store:
                jobs = store.jobs(JobFilter(), JobId(0), 100).result()
            told = [document(tmp_path, "why", job.key) for job in jobs]
        finally:
            kill_run(run)

    assert (live["in_flight"], live["limit"], live["limit_max"]) == (1, 1, 1)
    assert live["as_of_seconds"] >= 0
    gates = {one["gate"] for one in told}
    assert gates == {"running", "provider_limit"}, gates
    assert any("for a permit of its provider 'api'" in one["sentence"] for one in told)


def live_of(folder: Path) -> Any:
    """What the workers say, once a request flies and others wait."""
    ended = command(folder, "providers", "--json")
    rows = json.loads(ended.stdout)["providers"] if ended.returncode == 0 else []
    live = rows[0]["live"] if rows else None
    return live if live and live["in_flight"] and live["waiting"] else None


WAITS = """
import asyncio
from pathlib import Path
from penstock import Context, Penstock

app = Penstock("shop")
api = app.provider("api", base_url={url!r}, max_parallel=1)

def noted(name: str, what: str) -> None:
    Path(f"{{name}}.{{what}}").touch()

@app.task(uses=api, timeout=300)
async def holds(ctx: Context) -> None:
    async with ctx.admit(api, model="127.0.0.1"):
        noted("holds", "begun")
        await asyncio.sleep(300)

@app.task(timeout=300)
def waits_with_client(ctx: Context) -> None:
    noted("waits_with_client", "begun")
    try:
        api.http_sync.get("/")
    except Exception as error:
        noted("waits_with_client", type(error).__name__)
        raise

@app.task(timeout=300)
def waits_with_admit(ctx: Context) -> None:
    noted("waits_with_admit", "begun")
    try:
        with ctx.admit(api, model="127.0.0.1"):
            noted("waits_with_admit", "admitted")
    except Exception as error:
        noted("waits_with_admit", type(error).__name__)
        raise

if __name__ == "__main__":
    app.enqueue(holds.job(), key="holds")
"""


def test_threads_that_wait_for_a_permit_stop_when_their_job_is_cancelled(
    tmp_path: Path, slow: SimulatedProvider
) -> None:
    (tmp_path / "pipeline.py").write_text(WAITS.format(url=slow.url))
    (tmp_path / "penstock.toml").write_text("[runtime]\ngrace_seconds = 0\n")
    subprocess.run([sys.executable, "pipeline.py"], cwd=tmp_path, check=True, timeout=SECONDS)
    run = Forked(
        [*PENSTOCK, "queue", "run"],
        cwd=tmp_path,
        env=environment_of_tests(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    waiting = ("waits_with_client", "waits_with_admit")
    try:
        wait_until((tmp_path / "holds.begun").exists, SECONDS)
        for name in waiting:
            assert command(tmp_path, "queue", "enqueue", name, name).returncode == 0
        for name in waiting:
            begun = tmp_path / f"{name}.begun"
            wait_until(begun.exists, SECONDS)
        wait_until(lambda: (live_of(tmp_path) or {}).get("waiting") == 2, SECONDS)
        for name in waiting:
            assert command(tmp_path, "queue", "cancel", name).returncode == 0

        for name in waiting:
            over = tmp_path / f"{name}.AttemptOver"
            wait_until(over.exists, SECONDS)
        wait_until(lambda: not _waiting(tmp_path), SECONDS)
    finally:
        kill_run(run)

    assert not (tmp_path / "waits_with_admit.admitted").exists()
    assert slow.counts.served == 0


def _waiting(folder: Path) -> int:
    live = document(folder, "providers")["providers"][0]["live"]
    return int(live["waiting"])


REFUSED = """
import urllib.request
from penstock import Context, Penstock
from penstock.worker import attempt_log

attempt_log.REFUSED_SECONDS = 1.0  # a minute, for the test
app = Penstock("shop")

@app.task()
def fetch(ctx: Context, n: int) -> None:
    with open("pids", "a") as file:
        file.write(f"{__import__('os').getpid()}\\n")
    urllib.request.urlopen("http://127.0.0.1:9/")

if __name__ == "__main__":
    app.enqueue_many(fetch.job(n=n) for n in range(200))
"""


def test_an_address_that_refuses_is_told_once_by_a_run_of_two_workers(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(REFUSED)
    (tmp_path / "penstock.toml").write_text('app = "shop.py"\n[runtime]\ngrace_seconds = 0\n')
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=SECONDS)
    with (tmp_path / "log").open("w") as log:
        run = Forked(
            [*PENSTOCK, "queue", "run", "--processes", "2", "--threads", "4"],
            cwd=tmp_path,
            env=environment_of_tests(no_proxy="*"),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: len(pids_of(tmp_path)) == 2, SECONDS)
            wait_until(lambda: told(tmp_path) > 0, SECONDS)
            time.sleep(3.0)  # the other one has known it for longer than that by now
        finally:
            kill_run(run)

    assert told(tmp_path) == 1
    assert "Connection refused by 127.0.0.1:9 for" in (tmp_path / "log").read_text()


def pids_of(folder: Path) -> set[str]:
    kept = folder / "pids"
    return set(kept.read_text().split()) if kept.exists() else set()


def told(folder: Path) -> int:
    return (folder / "log").read_text().count("Connection refused by")

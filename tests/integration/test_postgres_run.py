# SPDX-License-Identifier: Apache-2.0
"""Does the same app run on PostgreSQL, chosen by a URL alone, through a restart of its server?"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.job import JobState
from penstock.stores.open import open_store
from tests.forked import Forked, run_forked
from tests.postgres.fixtures import MakeCluster
from tests.processes import children_of, environment_of_tests, kill_run
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PASSWORD = "canary-in-a-url"
APP = """
import asyncio, os
from penstock import Context, Penstock

app = Penstock("shop")

@app.task()
async def sleeps(ctx: Context, n: int) -> int:
    while n > 20 and not os.path.exists("stopped"):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    return n
"""
JOBS = 100


def test_a_run_goes_on_after_its_server_was_restarted_and_nobody_sees_the_password(
    tmp_path: Path, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(durable=True, tcp=True)
    url = cluster.url(tcp=True).replace("@", f":{PASSWORD}@")
    assert PASSWORD in url
    (tmp_path / "pipeline.py").write_text(APP)
    lines = (f'{{"task": "sleeps", "key": "k{n}", "payload": {{"n": {n}}}}}' for n in range(JOBS))
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines))
    said = ""

    def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_forked(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            cwd=tmp_path,
            env=environment_of_tests(**environment),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    imported = penstock("queue", "import", "jobs.jsonl", "--store", url)
    assert imported.stdout == f"{JOBS} new, 0 known, 0 bad\n", imported.stderr
    run = Forked(
        [sys.executable, "-m", "penstock.cli.main", "queue", "run", "--drain", "--slots", "5"],
        cwd=tmp_path,
        env=environment_of_tests(PENSTOCK_STORE=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        with closing(open_store(url)) as store:
            wait_until(lambda: store.stats().result().states[JobState.DONE] > 10, 60)
        for pid in (run.pid, *children_of(run.pid)):
            assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        cluster.stop(immediate=True)
        (tmp_path / "stopped").touch()  # so that somebody has something to say to the server
        assert run.stdout is not None
        while "is unreachable" not in (line := run.stdout.readline()):
            assert line, said
            said += line
        cluster.start()
        said += line + run.communicate(timeout=120)[0]
    finally:
        kill_run(run)

    assert run.returncode == 0, said
    stats = penstock("queue", "stats", PENSTOCK_STORE=url)
    assert f"all                0       0            0   {JOBS}        0" in stats.stdout
    shown = penstock("config", "show", PENSTOCK_STORE=url)
    for text in (said, stats.stdout, stats.stderr, shown.stdout, shown.stderr):
        assert PASSWORD not in text
    assert "is reachable again after" in said

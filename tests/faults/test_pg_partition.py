# SPDX-License-Identifier: Apache-2.0
"""What does a worker do whose way to the database drops every packet, and what do the others?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.definitions.request import to_new_job
from penstock.model.job import JobState
from penstock.stores.postgres.open import open_postgres
from tests.faults import partition_app
from tests.forked import Forked
from tests.postgres.fixtures import MakeCluster
from tests.postgres.netns import NotPermitted, Partition
from tests.postgres.proxy import Proxy
from tests.processes import environment_of_tests, is_alive, kill_run
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.integration]

TTL = 6.0
CONFIG = f"""
app = "{Path(partition_app.__file__)}"
durability = "normal"
[runtime]
lease_ttl_seconds = {TTL}
beat_seconds = 0.5
grace_seconds = 0.5
async_slots = 4
thread_slots = 2
"""
KEYS = ["k0", "k1", "k2", "stubborn"]


@pytest.fixture
def partition() -> Iterator[Partition]:
    try:
        with Partition() as made:
            yield made
    except NotPermitted as error:
        pytest.skip(str(error))


def _run(folder: Path, command: list[str], url: str, go: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{go.name}.log").open("ab") as log:
        return Forked(
            command,
            cwd=folder,
            env=environment_of_tests(PENSTOCK_STORE=url, PENSTOCK_TEST_GO=str(go)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _times(folder: Path, word: str) -> dict[str, list[float]]:
    """When bodies started, stopped or ended, by key."""
    log = folder / "bodies.log"
    found: dict[str, list[float]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        said, key, _, at = line.split()
        if said == word:
            found.setdefault(key, []).append(float(at))
    return found


def _first_pid(folder: Path, key: str) -> int:
    """The process in which a body began first."""
    lines = [line.split() for line in (folder / "bodies.log").read_text().splitlines()]
    return next(int(pid) for said, its_key, pid, _ in lines if (said, its_key) == ("start", key))


def test_f38_a_worker_that_is_cut_off_stops_in_time_and_its_late_ends_are_refused(
    partition: Partition, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "penstock.cli.main", "queue", "run", "--drain"]
    cluster = make_cluster()
    runs: list[subprocess.Popen[bytes]] = []
    with (
        Proxy(cluster, listener=partition.listener()) as proxy,
        closing(open_postgres(cluster.url(), durability="normal")) as store,
    ):
        requests = [partition_app.waits.job().with_options(key=key) for key in KEYS[:3]]
        requests.append(partition_app.does_not_stop.job().with_options(key=KEYS[3]))
        store.enqueue([to_new_job(request) for request in requests]).result()
        try:
            cut_off, heir = tmp_path / "cut-off", tmp_path / "heir"
            victim = _run(tmp_path, partition.command(command), proxy.url("postgres"), cut_off)
            runs.append(victim)
            wait_until(lambda: _times(tmp_path, "start").keys() == set(KEYS))

            partition.part()
            parted = time.monotonic()
            runs.append(_run(tmp_path, command, cluster.url(), heir))
            wait_until(lambda: all(len(at) > 1 for at in _times(tmp_path, "start").values()))

            stops, starts = _times(tmp_path, "stop"), _times(tmp_path, "start")
            for key in KEYS[:3]:
                if key in stops:
                    assert stops[key][0] < starts[key][1], f"{key} ran twice at once"
                else:  # on a busy machine the supervisor may be the first to see that it is time
                    assert not is_alive(_first_pid(tmp_path, key)), f"{key} ran twice at once"
            heir.touch()
            assert runs[1].wait(60) == 0
            rows = {key: store.job(key).result() for key in KEYS}
            wait_until(lambda: time.monotonic() - parted > 2 * TTL)
            partition.heal()
            cut_off.touch()  # the body that did not stop ends now, if it still runs
            assert victim.wait(60) == 0
        finally:
            for run in runs:
                kill_run(run)
        for key in KEYS:
            row = store.job(key).result()
            assert row == rows[key]
            assert row is not None
            assert (row.state, row.result) == (JobState.DONE, f'"{heir}"')
            assert [attempt.outcome for attempt in store.attempts(key).result()] == ["lost", "done"]
        assert store.check().result() == []

# SPDX-License-Identifier: Apache-2.0
"""A rerun that is killed half way is repeated by the same command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from penstock.model.job import JobId, JobState
from penstock.operate.rerun import rerun
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract.call_words import answer, begin, intent
from tests.contract.world import StoreWorld

JOBS = 250


def test_a_killed_rerun_loses_no_job_and_keeps_no_answer(tmp_path: Path) -> None:
    """In the second slice, between its forgotten answers and its jobs: that slice is as before."""
    path = tmp_path / "store.db"
    clock = ManualClock()
    world = StoreWorld(SqliteStore.open(path, clock=clock, durability="normal"), clock)
    world.add(*(f"k{n}" for n in range(JOBS)))
    worker = world.new_worker()
    for job in world.take_all(worker, 500).values():
        begin(world, intent(job))
        world.store.answered([answer(job)]).result()
        world.ack(worker, job)
    world.store.close()

    words = [sys.executable, "-m", "tests.size.victim", str(path), "rerun", "rerun.in_tx", "2"]
    ended = subprocess.run(words, capture_output=True, timeout=120, check=False)

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    store = SqliteStore.open(path, clock=clock, durability="normal")
    world = StoreWorld(store, clock)
    assert store.check().result() == []
    states = [world.state(f"k{n}") for n in range(JOBS)]
    bought = [len(store.calls(JobId(n)).result()) for n in range(1, JOBS + 1)]
    assert states == [JobState.QUEUED] * 100 + [JobState.DONE] * 150
    assert bought == [0] * 100 + [1] * 150
    assert rerun(store, (), "work", fresh=True).rerun == 150
    assert store.check().result() == []
    store.close()

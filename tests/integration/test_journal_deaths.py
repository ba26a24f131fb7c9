# SPDX-License-Identifier: Apache-2.0
"""What is left of a paid call when its process dies at each step of it?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.job import JobId
from penstock.model.journal import CallState
from penstock.model.spending import Amount
from penstock.stores.sqlite.store import SqliteStore

# A worker that buys one answer, and is killed when it passes a point.
WORKER = """
import os, signal, sys
from pathlib import Path
from penstock import failpoints
from penstock.model.job import NewJob, WorkerId
from penstock.model.journal import Answer, CallKey, Intent
from penstock.model.lease import ConfiguredCaps, LeaseRequest, WorkerInfo
from penstock.model.spending import Amount, Budget, Period
from penstock.stores.sqlite.store import SqliteStore

path, deadly = sys.argv[1:]
store = SqliteStore.open(Path(path))
store.enqueue([NewJob(key="a", task="t", payload="{}", group="g")]).result()
worker = WorkerId("w")
store.register(WorkerInfo(id=worker, run_id="r", tasks=("t",)), 60).result()
request = LeaseRequest(worker=worker, tasks=("t",), limit=1, caps=ConfiguredCaps())
(job,) = store.lease(request).result().jobs
failpoints.arm(lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == deadly else None)
key = CallKey(job.id, "f", 0)
intent = Intent(key, job.token, "r", "t", "p", "m", Amount(5, 50))
store.intend([intent], [Budget("all", Period.RUN, micros=9)]).result()
store.answered([Answer(key, 200, (), b"reply", Amount(3, 30))]).result()
"""

OPEN = [(CallState.OPEN, Amount(5, 50))]


@pytest.mark.parametrize(
    ("point", "left", "spent", "reserved"),
    [
        ("intend.in_tx", [], 0, 0),
        ("intend.committed", OPEN, 0, 5),
        ("answered.in_tx", OPEN, 0, 5),
        ("answered.committed", [(CallState.ANSWERED, Amount())], 3, 0),
    ],
)
def test_a_call_is_open_from_its_intent_to_its_answer_whoever_dies(
    point: str,
    left: list[tuple[CallState, Amount]],
    spent: int,
    reserved: int,
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    died = subprocess.run([sys.executable, "-c", WORKER, str(path), point], check=False)
    assert died.returncode == -9

    store = SqliteStore.open(path)
    try:
        assert store.check().result() == []
        found = store.calls(JobId(1)).result()
        assert [(call.state, call.reserved) for call in found] == left
        balances = [b for b in store.balances(["r"]).result() if b.account.scope == "all"]
        assert sum(b.spent.micros for b in balances) == spent
        assert sum(b.reserved.micros for b in balances) == reserved
    finally:
        store.close()

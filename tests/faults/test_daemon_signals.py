# SPDX-License-Identifier: Apache-2.0
"""F62 for a daemon: signals, once and twice, in each of its phases."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.stores.sqlite.store import SqliteStore
from tests.faults.daemon_project import DaemonProject
from tests.processes import session_of
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

#: stage → what the app is told, and which body is waited for
STAGES = {
    "importing": ({"import": "hang"}, "import"),
    "checking": ({"check-a": "hang"}, "check"),
    "checking in a thread": ({"check-token": "block"}, "check"),
    "checking, blocked": ({"check-a": "block", "hosts": "a"}, "check"),
    "arming": ({}, None),
    "ticking": ({"tick-a": "hang"}, "tick"),
    "idle": ({"interval": "3600", "hosts": "a"}, "ticked"),
}
ARMING_SECONDS = 3.0  # meanwhile a signal reaches the worker, on a busy machine as well
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
#: Every stage, every signal, once and twice: not each with each.
COVER = (
    ("importing", (INT,)),
    ("importing", (TERM, TERM)),
    ("checking", (TERM,)),
    ("checking", (INT, INT)),
    ("checking in a thread", (HUP,)),
    ("checking, blocked", (TERM,)),
    ("arming", (INT,)),
    ("arming", (TERM,)),
    ("ticking", (HUP, HUP)),
    ("ticking", (INT,)),
    ("idle", (TERM,)),
    ("idle", (INT, TERM)),
)


def ends(folder: Path, stage: str, signals: tuple[signal.Signals, ...]) -> Iterator[str]:
    """Send signals at a stage; what is not as it should be."""
    files, body = STAGES[stage]
    project = DaemonProject(folder)
    for name, text in files.items():
        project.say(name, text)
    mark = folder / "mark"
    mark.touch()
    rule = {"at": 1, "once": str(mark), "pause": ARMING_SECONDS}
    armed: dict[str, object] = {"worker": {"arm.in_tx": rule}}
    points = armed if stage == "arming" else None
    process = project.start(failpoints=points)
    try:
        if body is None:
            wait_until(lambda: not mark.exists())
        else:
            wait_until(lambda: bool(project.bodies(body)))
        session = session_of(process.pid)
        for index, number in enumerate(signals):
            if index:
                time.sleep(0.1)
            if process.poll() is None:
                process.send_signal(number)
        code = process.wait(240)
    finally:
        project.close()
    where = f"{stage}, {[number.name for number in signals]}"
    expected = 130 if signals[0] is INT else 0
    err = project.errors()
    if code != expected:
        yield f"{where}: exit code {code} instead of {expected}: {err[-1000:]}"
    if "Traceback" in err:
        yield f"{where}: a traceback: {err[-1000:]}"
    if project.left(session):
        yield f"{where}: processes outlived the run"
    if stage == "arming" or stage.startswith(("checking", "importing")):
        if project.bodies("tick"):
            yield f"{where}: work code ran"
    elif files.get("hosts"):
        yield from (f"{where}: {sentence}" for sentence in project.broken())
    if (folder / "daemon.db").exists():
        store = SqliteStore.open(folder / "daemon.db", durability="normal")
        try:
            if any(worker.alive for worker in store.workers().result()):
                yield f"{where}: a worker is still registered"
        finally:
            store.close()


def test_f62_a_signal_in_any_phase_ends_a_daemon_in_good_order(tmp_path: Path) -> None:
    def case(number: int) -> list[str]:
        stage, signals = COVER[number]
        return list(ends(tmp_path / f"case-{number}", stage, signals))

    with ThreadPoolExecutor(4) as pool:
        broken = [sentence for found in pool.map(case, range(len(COVER))) for sentence in found]

    assert broken == []
    assert {stage for stage, _ in COVER} == set(STAGES)
    assert {number for _, signals in COVER for number in signals} == {INT, TERM, HUP}

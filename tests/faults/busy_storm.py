# SPDX-License-Identifier: Apache-2.0
"""Many processes write to one store at once: who waits how long, and who sees an error?"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from penstock.errors import PenstockError
from penstock.model.job import JobState, NewJob
from tests.faults import sqlite_world as world

_CODE = "import sys; from tests.faults import busy_storm; busy_storm"


@dataclass
class Storm:
    """What a storm was like."""

    writes: list[int] = field(default_factory=list)  # of each process
    worst_wait_seconds: float = 0.0
    checkpoints: int = 0
    warned: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def least_share(self) -> float:
        return min(self.writes) / max(self.writes)


def write(name: str, number: str, seconds: str) -> None:
    """One writer: enqueue and look, again and again; says what it saw."""
    store = world.open_store(Path(name))
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)
    count, worst, problems = 0, 0.0, []
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            job = NewJob(key=f"{number}-{count}", task="t", payload="{}", group=number)
            store.enqueue([job]).result()
            count += 1
            if count % 50 == 0:
                store.stats().result()
        except PenstockError as error:
            problems.append(f"{type(error).__name__}: {error}")
        worst = max(worst, time.monotonic() - began)
    store.close()
    print(json.dumps([count, worst, problems[:3]]), flush=True)


def checkpoint(name: str, number: str, seconds: str) -> None:
    """A foreign program that moves the log, in every way there is."""
    connection = apsw.Connection(name)
    connection.set_busy_timeout(100)
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)
    modes = (
        apsw.SQLITE_CHECKPOINT_PASSIVE,
        apsw.SQLITE_CHECKPOINT_FULL,
        apsw.SQLITE_CHECKPOINT_RESTART,
        apsw.SQLITE_CHECKPOINT_TRUNCATE,
    )
    count = tries = 0
    while time.monotonic() < until:
        tries += 1
        with contextlib.suppress(apsw.BusyError):
            connection.wal_checkpoint(mode=modes[(tries + int(number)) % len(modes)])
            count += 1
    connection.close()
    print(json.dumps([count, 0.0, []]), flush=True)


def storm(path: Path, processes: int, seconds: float, checkpointers: int = 0) -> Storm:
    """Let so many processes write for so long, all at once; then count what is there."""
    world.open_store(path).close()
    roles = ["write"] * processes + ["checkpoint"] * checkpointers
    writers = [
        world.start_python(f"{_CODE}.{role}(*sys.argv[1:])", str(path), str(n), str(seconds))
        for n, role in enumerate(roles)
    ]
    found = Storm()
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        for writer, role in zip(writers, roles, strict=True):
            said, _ = writer.communicate(timeout=seconds + world.SECONDS)
            if writer.returncode:
                found.problems.append(said)
                continue
            *warned, last = said.splitlines()
            found.warned += warned
            count, worst, problems = json.loads(last)
            if role == "checkpoint":
                found.checkpoints += count
                continue
            found.writes.append(count)
            found.worst_wait_seconds = max(found.worst_wait_seconds, worst)
            found.problems += problems
    finally:
        for writer in writers:
            if writer.poll() is None:
                writer.kill()
                writer.communicate()
    store = world.open_store(path)
    kept = store.stats().result().states[JobState.QUEUED]
    if kept != sum(found.writes):
        found.problems.append(f"{sum(found.writes)} jobs were accepted, {kept} are there")
    found.problems += store.check().result()
    store.close()
    return found

# SPDX-License-Identifier: Apache-2.0
"""Many processes write to one store at once: who waits how long, and who sees an error?"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.model.job import JobState, NewJob
from tests.faults import sqlite_world as world

_CODE = "import sys; from tests.faults.busy_storm import write; write(*sys.argv[1:])"


@dataclass
class Storm:
    """What a storm was like."""

    writes: list[int] = field(default_factory=list)  # of each process
    worst_wait_seconds: float = 0.0
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


def storm(path: Path, processes: int, seconds: float) -> Storm:
    """Let so many processes write for so long, all at once; then count what is there."""
    world.open_store(path).close()
    writers = [world.start_python(_CODE, str(path), str(n), str(seconds)) for n in range(processes)]
    found = Storm()
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        for writer in writers:
            said, _ = writer.communicate(timeout=seconds + world.SECONDS)
            if writer.returncode:
                found.problems.append(said)
                continue
            count, worst, problems = json.loads(said)
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

# SPDX-License-Identifier: Apache-2.0
"""What has a folder with real runs in it, whatever its app? Jobs, bodies, and processes to end."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.definitions.request import JobRequest, to_new_job
from penstock.model.job import Attempt, Job, JobId, JobState
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter, Store
from penstock.stores.sqlite.store import SqliteStore
from tests.processes import kill_run


class ProjectFolder:
    """Owns one project folder, its store, and the runs in it; does not know how they start."""

    def __init__(self, folder: Path, config: str, url: str) -> None:
        self.folder = folder
        (folder / "penstock.toml").write_text(config)
        self.store: Store = open_store(url, durability="normal", folder=folder)
        self.running: list[subprocess.Popen[Any]] = []

    def add(
        self,
        task: str,
        count: int = 1,
        *,
        name: str | None = None,
        limit_key: str | None = None,
        **arguments: object,
    ) -> list[str]:
        keys = [f"{name or task}-{n}" for n in range(count)]
        limits = () if limit_key is None else (limit_key,)
        payload = json.dumps(arguments)
        requests = [
            JobRequest[None](task=task, payload=payload, key=key, limit_keys=limits) for key in keys
        ]
        self.store.enqueue([to_new_job(request) for request in requests]).result()
        return keys

    def bodies(self, word: str = "start") -> list[tuple[str, int, float]]:
        """Key, pid and time of each start (or end) of a body."""
        log = self.folder / "bodies.log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [(key, int(pid), float(at)) for said, key, pid, at in lines if said == word]

    def starts(self) -> Counter[str]:
        return Counter(key for key, _, _ in self.bodies())

    def states(self) -> dict[str, JobState]:
        jobs = self.store.jobs(JobFilter(), JobId(0), 1_000).result()
        return {job.key: job.state for job in jobs}

    def job(self, key: str) -> Job:
        found = self.store.job(key).result()
        assert found is not None, key
        return found

    def attempts(self, key: str) -> list[Attempt]:
        return self.store.attempts(key).result()

    def outcomes(self, key: str) -> list[str]:
        return [attempt.outcome for attempt in self.attempts(key)]

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.running:
            kill_run(process)
        self.store.close()


def states_in(path: Path) -> dict[str, JobState]:
    """The states of all jobs in a store that is not open here, and is sound."""
    store = SqliteStore.open(path)
    try:
        assert store.check().result() == []
        return {job.key: job.state for job in store.jobs(JobFilter(), JobId(0), 5_000).result()}
    finally:
        store.close()

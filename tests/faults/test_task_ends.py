# SPDX-License-Identifier: Apache-2.0
"""F55: however a body ends, its job has a short text, and its worker lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.model.job import ERROR_BYTES_MAX, ErrorCategory, Job, JobState
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import ends_app
from tests.faults.ends_app import BAD, DEADLY, EXECUTORS, GOOD
from tests.forked import run_forked
from tests.processes import environment_of_tests

pytestmark = pytest.mark.faults

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
OUTPUT_BYTES_MAX = 2 * 1024 * 1024  # of one run with debug logging, tracebacks included
CONFIG = """
app = "tests.faults.ends_app:app"
store = "sqlite:///ends.db"
durability = "normal"
[runtime]
lease_ttl_seconds = 20.0
beat_seconds = 1.0
grace_seconds = 1.0
[tasks]
max_crashes = 1
"""

#: What a person reads, where the message is not just that of the error.
SAID = {
    "system_exit": "0",
    "sys_exit": "bye",
    "base_exception": "bare",
    "mute": "its message cannot be shown: RuntimeError",
    "stubborn": "its message cannot be shown: KeyboardInterrupt",
    "not_text": "its message cannot be shown: TypeError",
    "unkeepable": "\\x00 \\ud800 \x1b[2J",
    "group": "both (2 sub-exceptions)",
    "recursion_error": "maximum recursion depth exceeded",
}


class Folder:
    """A project folder with the app of this test, and what its runs left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "penstock.toml").write_text(CONFIG)

    def drain(self, tasks: list[str]) -> subprocess.CompletedProcess[bytes]:
        """Enqueue one job of each task, and work until nothing is left."""
        store = self._open()
        ends_app.app.use_store(store)
        ends_app.app.enqueue_many(
            ends_app.app.tasks[task].job().with_options(key=task) for task in tasks
        )
        ends_app.app.close()
        return run_forked(
            [*PENSTOCK, "--log-level", "debug", "queue", "run", "--drain"],
            cwd=self.path,
            env=environment_of_tests(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=240,
        )

    def _open(self) -> SqliteStore:
        return SqliteStore.open(self.path / "ends.db", durability="normal")

    def jobs(self, tasks: list[str]) -> dict[str, Job]:
        store = self._open()
        try:
            assert store.check().result() == []
            found = {task: store.job(task).result() for task in tasks}
            return {task: job for task, job in found.items() if job is not None}
        finally:
            store.close()

    @property
    def processes(self) -> set[str]:
        return {line.split()[1] for line in (self.path / "bodies.log").read_text().splitlines()}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_f55_whatever_a_body_raises_ends_its_job_with_a_short_text_and_the_worker_lives(
    tmp_path: Path, executor: str
) -> None:
    folder = Folder(tmp_path)
    tasks = [f"{name}_{executor}" for name in (*BAD, *GOOD)]

    ended = folder.drain(tasks)

    jobs = folder.jobs(tasks)
    text = ended.stderr.decode()
    assert b" died" not in ended.stderr, text[-2000:]
    assert len(ended.stderr) < OUTPUT_BYTES_MAX
    assert len(folder.processes) == 1 or executor == "process"
    assert ended.returncode == 1  # some ended in error
    for name in GOOD:
        assert jobs[f"{name}_{executor}"].state is JobState.DONE
    for name in BAD:
        job = jobs[f"{name}_{executor}"]
        assert (job.state, job.attempts, job.crashes) == (JobState.ERROR, 1, 0), name
        assert job.last_error is not None
        assert job.last_error.category is ErrorCategory.OWN
        assert len(msgspec.json.encode(job.last_error)) <= ERROR_BYTES_MAX + 2048, name
        assert len(job.last_error.message.encode()) <= ERROR_BYTES_MAX
        assert SAID.get(name, "") in job.last_error.message


@pytest.mark.parametrize("executor", EXECUTORS)
def test_f55_os_exit_0_is_a_crash_and_no_success(tmp_path: Path, executor: str) -> None:
    folder = Folder(tmp_path)
    (name,) = DEADLY
    tasks = [f"{name}_{executor}", f"fine_{executor}"]

    ended = folder.drain(tasks)

    culprit, neighbour = folder.jobs(tasks).values()
    assert culprit.state is JobState.ERROR
    assert culprit.last_error is not None
    assert culprit.last_error.category is ErrorCategory.CRASHED
    assert "exit code 0" in culprit.last_error.message
    assert neighbour.state is JobState.DONE
    assert ended.returncode == 1

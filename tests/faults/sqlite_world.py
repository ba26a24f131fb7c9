# SPDX-License-Identifier: Apache-2.0
"""What do the tests of the store file share? Jobs, ends, processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from tests.forked import Forked, run_forked
from tests.processes import environment_of_tests

WORKER = WorkerId("w-1")
NOBODY = 65534  # a user who owns nothing
SECONDS = 100.0  # nothing here takes this long, however busy the machine is

APP = """
from penstock import Context, Penstock

app = Penstock("faults")

@app.task()
async def work(ctx: Context, n: int) -> str:
    return "x" * n
"""
CONFIG = """
app = "faults_app.py"
store = "sqlite:///store.db"
[runtime]
lease_ttl_seconds = 5.0
beat_seconds = 0.2
grace_seconds = 1.0
async_slots = 4
thread_slots = 2
"""


def open_store(path: Path, durability: str = "normal") -> SqliteStore:
    return SqliteStore.open(path, durability=durability)


def new_jobs(
    count: int, size: int = 10, prefix: str = "k", task: str = "t", payload: str | None = None
) -> list[NewJob]:
    payload = payload or '{"text":"' + "x" * size + '"}'
    return [NewJob(key=f"{prefix}{n}", task=task, payload=payload, group="g") for n in range(count)]


def register(store: SqliteStore, ttl_seconds: float = 60.0) -> None:
    store.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), ttl_seconds).result(SECONDS)


def lease_all(
    store: SqliteStore, limit: int, size: int = 10, worker: WorkerId = WORKER
) -> list[JobEnd]:
    """Lease jobs; their ends, with results of this size."""
    request = LeaseRequest(worker=worker, tasks=("t",), limit=limit, caps=ConfiguredCaps())
    jobs = store.lease(request).result(SECONDS).jobs
    return [JobEnd(job, JobState.DONE, 1, 2, result='"' + "y" * size + '"') for job in jobs]


def one_sentence(error: BaseException | str, path: Path) -> str:
    """A message for people: the file, no traceback, an end; the text."""
    text = str(error)
    assert str(path) in text, text
    assert "\n" not in text, text
    assert text.endswith("."), text
    assert len(text) < 500, text
    return text


def states(store: SqliteStore) -> dict[str, int]:
    return {str(state): n for state, n in store.stats().result(SECONDS).states.items() if n}


def start_python(code: str, *args: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """A process that runs this code; its words come on stdout."""
    return Forked(
        [sys.executable, "-c", code, *args],
        cwd=cwd,
        env=environment_of_tests(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def penstock(
    folder: Path, *args: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return run_forked(
        [*before, sys.executable, "-m", "penstock.cli.main", *args],
        cwd=folder,
        env=environment_of_tests(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


class Running:
    """`penstock queue run` in a process of its own; killed at the end if it still runs."""

    def __init__(self, folder: Path, *args: str, before: tuple[str, ...] = ()) -> None:
        self._output = folder / "output.txt"
        with self._output.open("wb") as output:
            self.process = Forked(
                [*before, sys.executable, "-m", "penstock.cli.main", "queue", "run", *args],
                cwd=folder,
                env=environment_of_tests(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for_file(self, file: Path) -> None:
        self.wait_until(file.exists)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until, self.said
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Wait for the end; the code and what was said."""
        code = self.process.wait(SECONDS)
        return code, self.said


def project(folder: Path) -> Path:
    """A folder with an app and its settings; where its store will be."""
    (folder / "faults_app.py").write_text(APP)
    (folder / "penstock.toml").write_text(CONFIG)
    return folder / "store.db"


def in_own_mounts(target: str, *args: str) -> str:
    """Call `module:function` in a process with mounts of its own, as root; what it printed."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to mount a small file system")
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("needs the permission to mount a file system")
    module, _, function = target.partition(":")
    code = f"import sys; from {module} import {function}; {function}(*sys.argv[1:])"
    ended = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-c", code, *args],
        env=environment_of_tests(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def mount(kind: str, folder: Path, *options: str) -> None:
    subprocess.run(["mount", "-t", kind, *options, "none", str(folder)], check=True)


def as_nobody(act: Callable[[], object]) -> str:
    """Do something as another user, in a child process; what it raised."""
    with tempfile.TemporaryDirectory() as name:  # nobody may be unable to read our sources
        open_store(Path(name) / "store.db").close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover (another process)
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = act()
            os.write(writing, f"nothing was raised: {answer}".encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as said:
        return said.read()

# SPDX-License-Identifier: Apache-2.0
"""Does `penstock doctor` name what is wrong in one sentence with a remedy, and touch nothing?

Each story is the real command in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from penstock.model.job import NewJob
from penstock.stores.sqlite.store import SqliteStore
from tests.forked import run_forked

pytestmark = pytest.mark.acceptance

DOCTOR = [sys.executable, "-m", "penstock.cli.main", "doctor"]
PIPELINE = """
from penstock import Context, Penstock

app = Penstock("clinic")

@app.task()
def heal(ctx: Context) -> None:
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A healthy project with three jobs."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    store = SqliteStore.open(tmp_path / ".penstock/clinic.db", durability="normal")
    store.enqueue(
        [NewJob(key=f"k{n}", task="heal", payload="{}", group="heal") for n in range(300)]
    ).result()
    store.close()
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def doctor(
    folder: Path, *arguments: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    return run_forked(
        [*before, *DOCTOR, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def the_problem(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a doctor who found one thing."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    (sentence,) = [line for line in lines if line.startswith("problem: ")]
    assert all(line.startswith(("ok ", "problem: ")) for line in lines[:-1])
    assert lines[-1].startswith("1 of ")
    return sentence.removeprefix("problem: ")


def test_a_healthy_project_is_well_and_untouched(project: Path) -> None:
    before = snapshot(project)

    done = doctor(project, "--full")

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "All is well."
    assert all(line.startswith("ok ") for line in lines[:-1])
    checks = [line.split(":")[0].removeprefix("ok ") for line in lines[:-1]]
    wanted = ["python", "sqlite", "boot", "settings", "app", "folder", "file system", "space"]
    wanted += ["private", "store", "integrity", "log", "invariants"]
    assert checks == [*wanted, "workers", "waiting", "tasks", "paused", "limits"]
    assert snapshot(project) == before


def test_a_read_only_folder_is_told_and_not_tried(project: Path) -> None:
    """As on a machine whose disk went read-only: a bind mount, since root is refused nothing."""
    folder = project / ".penstock"
    script = f'mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec "$@"'
    namespace = ("unshare", "-rm", "sh", "-c", script, "sh")
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace (unshare -rm)")
    before = snapshot(project)

    sentence = the_problem(doctor(project, before=namespace))

    assert str(folder) in sentence
    assert "cannot be written: the file system is read-only" in sentence
    assert "mount it writable" in sentence
    assert snapshot(project) == before


def test_a_corrupted_file_is_told_with_the_way_back(project: Path) -> None:
    path = project / ".penstock/clinic.db"
    data = bytearray(path.read_bytes())
    for offset in range(4_096, len(data), 4_096):
        data[offset : offset + 32] = b"\xde\xad" * 16
    path.write_bytes(data)
    before = snapshot(project)

    sentence = the_problem(doctor(project))

    assert str(path) in sentence
    assert "is corrupted (" in sentence
    assert "penstock restore FILE --yes" in sentence
    assert snapshot(project) == before


def test_a_newer_schema_is_told_and_not_touched(project: Path) -> None:
    path = project / ".penstock/clinic.db"
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    before = snapshot(project)

    sentence = the_problem(doctor(project))

    assert "has schema 99, made by a newer Penstock" in sentence
    assert "Upgrade Penstock" in sentence
    assert snapshot(project) == before


def test_an_app_that_does_not_import_is_told_and_the_store_is_checked_all_the_same(
    project: Path,
) -> None:
    (project / "pipeline.py").write_text(PIPELINE + "1 / 0\n")

    done = doctor(project)

    sentence = the_problem(done)
    assert "ZeroDivisionError: division by zero (pipeline.py, line 9)" in sentence
    assert "Fix it there" in sentence
    assert "Traceback" not in done.stdout
    assert "ok integrity: the file is sound" in done.stdout
    assert "ok waiting: 300 queued" in done.stdout

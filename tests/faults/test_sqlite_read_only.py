# SPDX-License-Identifier: Apache-2.0
"""F25: what can be done with a store that may not be written?"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import StoreReadOnly
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import sqlite_world as world

LEFT_BEHIND = """
import os, sys
from pathlib import Path
from tests.faults.sqlite_world import new_jobs, open_store
store = open_store(Path(sys.argv[1]))
store.enqueue(new_jobs(3)).result()
os._exit(0)
"""
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, who alone can become somebody who is refused"
)
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "store.db"


@lru_cache(maxsize=1)
def left_behind() -> dict[str, bytes]:
    """The files of a process that died with three jobs in the log."""
    with tempfile.TemporaryDirectory() as name:
        process = world.start_python(LEFT_BEHIND, str(Path(name) / "store.db"))
        said, _ = process.communicate(timeout=world.SECONDS)
        assert process.returncode == 0, said
        return {file.name: file.read_bytes() for file in Path(name).iterdir()}


def leave_behind(path: Path) -> None:
    """A store with three jobs as a process leaves it that died: the log is still there."""
    for name, content in left_behind().items():
        path.with_name(name).write_bytes(content)


@as_root
@forks
@pytest.mark.parametrize(
    ("suffix", "role"),
    [
        ("", "the file itself"),
        ("-wal", "its log"),
        ("-shm", "the index of its log"),
        ("-turn", "its lock file"),
        (None, "its folder"),
    ],
)
def test_f25_a_store_that_may_not_be_written_is_refused_with_the_file_and_the_permission(
    path: Path, suffix: str | None, role: str
) -> None:
    leave_behind(path)
    for file in (path.parent, *path.parent.iterdir()):
        os.chown(file, world.NOBODY, world.NOBODY)
    named = path.parent if suffix is None else path.with_name(path.name + suffix)
    os.chown(named, 0, 0)
    named.chmod(0o755 if suffix is None else 0o644)

    kind, _, sentence = world.as_nobody(lambda: world.open_store(path)).partition(" ")

    assert kind == "StoreReadOnly", sentence
    world.one_sentence(sentence, path)
    assert f"user {world.NOBODY} has no permission to write {str(named)!r} ({role}" in sentence


def read_and_try_to_write(path: Path) -> str:
    store = SqliteStore.open(path, reading_will_do=True)
    assert world.states(store) == {"queued": 3}
    job = store.job("k1").result()
    assert job is not None
    assert job.key == "k1"
    assert len(store.check().result()) == 0
    try:
        store.enqueue(world.new_jobs(1, prefix="new")).result()
    except StoreReadOnly as error:
        return str(error)
    finally:
        store.close()
    return "it was written"


@as_root
@forks
@pytest.mark.parametrize("log_left", [False, True])
def test_f25_what_may_not_be_written_can_still_be_read(path: Path, log_left: bool) -> None:
    leave_behind(path)
    if not log_left:
        world.open_store(path).close()
    assert path.with_name("store.db-wal").exists() == log_left
    for file in path.parent.iterdir():
        file.chmod(0o644)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}

    said = world.as_nobody(lambda: read_and_try_to_write(path))

    assert said.startswith("nothing was raised: Cannot write the store"), said
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def on_read_only_mount(name: str) -> None:
    """The commands on a mount that became read-only. Runs in a process with own mounts."""
    folder = Path(name)
    mounted = folder / "mounted"
    mounted.mkdir()
    world.mount("tmpfs", mounted, "-o", "size=8m")
    world.project(folder)
    path = mounted / "store.db"
    at = ("--store", f"sqlite:///{path}")
    os.chdir(folder)
    code, _, said = command("queue", "enqueue", "work", "one", '{"n":3}', *at)
    assert code == 0, said
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)

    ended = world.penstock(folder, "queue", "run", "--drain", *at)
    code, _, said = command("queue", "enqueue", "work", "two", '{"n":3}', *at)
    assert (ended.returncode, code) == (1, 1)
    for sentence in (ended.stderr.strip(), said.strip()):
        assert "the file system is read-only" in world.one_sentence(sentence, path)
    code, document, said = command("queue", "stats", "--json", *at)
    assert code == 0, said
    assert json.loads(document)["states"]["queued"] == 1
    code, text, said = command("queue", "show", "one", *at)
    assert code == 0, said
    assert "one" in text
    code, _, said = command("backup", str(folder / "backup.db"), *at)
    assert code == 0, said
    copy = world.open_store(folder / "backup.db")
    assert world.states(copy) == {"queued": 1}
    copy.close()


def command(*args: str) -> tuple[int, str, str]:
    """Run a command line in this process: the code, and what it wrote to each stream."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main.run(list(args))
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue(), err.getvalue()


def test_f25_on_a_read_only_mount_commands_that_read_work_and_others_refuse(
    tmp_path: Path,
) -> None:
    world.in_own_mounts(f"{__name__}:on_read_only_mount", str(tmp_path))


def test_f25_a_missing_store_that_may_not_be_made_is_refused_even_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "none" / "store.db"
    (tmp_path / "none").write_text("a file in the place of the folder")

    with pytest.raises(Exception, match="Cannot open the store") as raised:
        SqliteStore.open(path, reading_will_do=True)

    world.one_sentence(raised.value, path)

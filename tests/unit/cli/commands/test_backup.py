# SPDX-License-Identifier: Apache-2.0
"""What do `penstock backup` and `penstock restore` say, and with which code do they end?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.job import WorkerId
from penstock.model.lease import WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from tests.unit.cli.conftest import Command


@pytest.fixture
def filled(project: Path, command: Command) -> Path:
    assert command("queue", "enqueue", "broken", "k").code == 0
    return project


def test_a_backup_goes_out_and_comes_back(filled: Path, command: Command) -> None:
    out = command("backup", "copy.db")
    size = (filled / "copy.db").stat().st_size
    assert (out.code, out.err) == (0, "")
    assert out.out == (
        f"1 job of sqlite:///.penstock/shop.db backed up to copy.db ({size:,} bytes).\n"
    )
    command("queue", "enqueue", "broken", "later")

    asked = command("restore", "copy.db")
    assert asked.code == 2
    assert "shop.db (2 jobs) would be replaced by 'copy.db' (1 job); add --yes" in asked.sentence
    assert command("queue", "show", "later").code == 0

    back = command("restore", "copy.db", "--yes")
    assert back.code == 0
    assert "Restored 1 job from 'copy.db' (by " in back.err
    assert back.out.startswith("1 job of copy.db restored to sqlite:///.penstock/shop.db.\n")
    assert "kept as " in back.out
    assert command("queue", "show", "later").code == 2
    assert command("queue", "show", "k").code == 0


def test_a_restore_into_nothing_needs_no_confirmation(filled: Path, command: Command) -> None:
    command("backup", "copy.db")

    ended = command("restore", "copy.db", "--store", "sqlite:///new/place.db", "--json")

    assert ended.code == 0
    assert (ended.document["jobs"], ended.document["kept"]) == (1, None)
    shown = command("queue", "show", "k", "--store", "sqlite:///new/place.db", "--json")
    assert shown.document["state"] == "queued"


def test_documents_have_numbers(filled: Path, command: Command) -> None:
    document = command("backup", "copy.db", "--json").document

    assert document == {
        "file": "copy.db",
        "store": "sqlite:///.penstock/shop.db",
        "jobs": 1,
        "bytes": (filled / "copy.db").stat().st_size,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backup", "-"], "cannot go to standard output"),
        (["backup", "nowhere/copy.db"], "There is no folder"),
        (["backup", "."], "is a folder"),
        (["backup", "pipeline.py"], "exists already; name another file, or overwrite it"),
        (["backup", ".penstock/shop.db", "--force"], "is the store itself"),
        (["backup", "x.db", "--store", "sqlite:///none.db"], "There is no store"),
        (
            ["backup", "x.db", "--store", "postgresql://a:b@c/d"],
            "[redacted]@c/d is backed up by PostgreSQL's own tools, such as pg_dump.",
        ),
        (["restore", "x.db", "--store", "postgresql://a:b@c/d"], "such as pg_restore"),
        (["restore", "none.db", "--yes"], "There is no backup"),
        (["restore", ".penstock/shop.db", "--yes"], "is the store itself"),
    ],
)
def test_wrong_usage_is_told_in_one_sentence(
    filled: Path, command: Command, arguments: list[str], said: str
) -> None:
    before = sorted(entry.name for entry in filled.iterdir())

    ended = command(*arguments)

    assert ended.code == 2
    assert said in ended.sentence
    assert sorted(entry.name for entry in filled.iterdir()) == before


def test_what_is_no_backup_ends_with_1(filled: Path, command: Command) -> None:
    (filled / "list.txt").write_text("my shopping list\n" * 500)

    ended = command("restore", "list.txt", "--yes")

    assert ended.code == 1
    assert "is not a sound database" in ended.sentence


def test_a_restore_beside_a_live_worker_ends_with_1_and_names_it(
    filled: Path, command: Command
) -> None:
    command("backup", "copy.db")
    store = SqliteStore.open(filled / ".penstock/shop.db")
    info = WorkerInfo(id=WorkerId("w-1"), run_id="r", tasks=(), host="here", pid=7)
    store.register(info, 60.0).result()

    ended = command("restore", "copy.db", "--yes")

    assert ended.code == 1
    assert "w-1 (pid 7 on here)" in ended.sentence
    store.close()

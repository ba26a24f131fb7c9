# SPDX-License-Identifier: Apache-2.0
"""Are migrations, schema and queries what they say they are?"""

from __future__ import annotations

import threading
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from penstock.errors import StoreError
from penstock.model.job import NewJob
from penstock.stores.sql import statements
from penstock.stores.sql.statements import read_migrations, read_queries
from penstock.stores.sqlite.open import PACKAGE
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.old_stores import build


def shape(connection: apsw.Connection) -> set[tuple[str, str, str]]:
    rows = connection.execute("select type, name, sql from sqlite_schema where sql is not null")
    return {
        (str(kind), str(name), " ".join(str(text).split())) for kind, name, text in rows.fetchall()
    }


def test_the_sum_of_all_migrations_is_the_schema() -> None:
    migrated, written = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    for step in read_migrations(PACKAGE):
        migrated.execute(step.script).fetchall()
    written.execute(files(PACKAGE).joinpath("schema.sql").read_text()).fetchall()

    assert shape(migrated) == shape(written)
    facts = "select name, value from meta order by name"
    assert migrated.execute(facts).fetchall() == written.execute(facts).fetchall()


def test_a_migration_tells_the_kind_of_every_lane_by_its_task(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    build(path, 9)
    connection = apsw.Connection(str(path))
    for n, task in enumerate(("dataset:prices#r", "dataset:@step#r", "Schedule:no", "dataset")):
        values = "values (?, ?, 'g', '[]')"
        connection.execute(
            f"insert into lanes (spec, task, grp, limit_keys) {values}", (str(n), task)
        ).fetchall()
    connection.close()

    SqliteStore.open(path, durability="normal").close()

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    lanes = connection.execute("select task, kind from lanes").fetchall()
    found = {str(task): str(kind) for task, kind in lanes}
    connection.close()
    assert found["dataset:prices#r"] == "slice"
    assert found["dataset:@step#r"] == "step"
    assert found["schedule:poll"] == "tick"
    assert {found["Schedule:no"], found["dataset"], found["fetch"]} == {"job"}


def test_a_store_that_is_opened_again_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore.open(path, durability="normal")
    store.enqueue([NewJob(key="k", task="t", payload="{}", group="g")]).result()
    store.close()

    again = SqliteStore.open(path, durability="full")

    assert again.job("k").result() is not None
    assert again.check().result() == []
    again.close()


def test_a_symbolic_link_and_its_target_are_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    one = SqliteStore.open(tmp_path / "real" / "s.db", durability="normal")
    two = SqliteStore.open(tmp_path / "link" / "s.db", durability="normal")

    assert one.url == two.url
    one.close()
    two.close()


def test_eight_openers_of_a_new_file_make_one_sound_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    barrier = threading.Barrier(8)
    outcomes: list[object] = []

    def opens(number: int) -> None:
        barrier.wait()
        try:
            store = SqliteStore.open(path, durability="normal")
            store.enqueue([NewJob(key=f"k{number}", task="t", payload="{}", group="g")]).result()
            store.close()
            outcomes.append("opened")
        except StoreError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=opens, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == ["opened"] * 8
    store = SqliteStore.open(path, durability="normal")
    assert sum(store.stats().result().states.values()) == 8
    assert store.check().result() == []
    store.close()


def test_the_file_is_in_wal_mode_and_synchronous_as_asked(tmp_path: Path) -> None:
    for durability, level in (("full", 2), ("normal", 1)):
        store = SqliteStore.open(tmp_path / f"{durability}.db", durability=durability)
        connection: apsw.Connection = store._writer._session._connection  # type: ignore[union-attr]
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == level
        store.close()


class _Folder:
    """Stands in for a package's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, package: str) -> Path:
        return self._folder


def test_named_queries_lose_their_comments_and_their_last_semicolon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queries.sql").write_text(
        "-- a header --of no query\n\n-- first --\n-- What it does.\nselect 1\n  from x;\n\n"
        "-- second_2 --\nselect '-- no comment'\n"
    )
    monkeypatch.setattr(statements, "files", _Folder(tmp_path))

    assert read_queries("any") == {
        "first": "select 1\n  from x",
        "second_2": "select '-- no comment'",
    }


def test_a_query_that_is_defined_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queries.sql").write_text("-- one --\nselect 1\n-- one --\nselect 2\n")
    monkeypatch.setattr(statements, "files", _Folder(tmp_path))

    with pytest.raises(ValueError, match="two definitions"):
        read_queries("any")


def test_every_query_says_in_a_comment_what_it_does() -> None:
    text = files(PACKAGE).joinpath("queries.sql").read_text()
    parts = statements._HEAD.split(text)

    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        assert body.strip().startswith("-- "), name


@pytest.mark.parametrize(
    ("names", "good"),
    [
        (["0001_a.sql", "0002_b.sql"], True),
        (["0001_a.sql", "0003_b.sql"], False),
        (["0002_a.sql"], False),
        (["0001_a.sql", "0001_b.sql"], False),
        (["0001_a.sql", "readme.md", "__init__.py"], True),
    ],
)
def test_migrations_are_numbered_without_gaps(
    names: list[str], good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "migrations").mkdir()
    for name in names:
        (tmp_path / "migrations" / name).write_text("select 1;")
    monkeypatch.setattr(statements, "files", _Folder(tmp_path))

    if good:
        assert [step.number for step in read_migrations("any")] == list(
            range(1, 1 + sum(name.endswith(".sql") for name in names))
        )
    else:
        with pytest.raises(ValueError, match="not numbered"):
            read_migrations("any")

# SPDX-License-Identifier: Apache-2.0
"""Is a step outside of a transaction told as a bug of ours?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import InternalError
from penstock.stores.group_commit import GroupCommit
from penstock.stores.postgres.open import open_postgres
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.sqlite.store import SqliteStore


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore | PostgresStore]:
    if request.param == "sqlite":
        with closing(SqliteStore.open(tmp_path / "s.db", durability="normal")) as embedded:
            yield embedded
        return
    with closing(open_postgres(request.getfixturevalue("postgres_url"))) as served:
        assert isinstance(served, PostgresStore)
        yield served


def test_a_savepoint_without_a_transaction_is_our_bug(store: SqliteStore | PostgresStore) -> None:
    writer = store._writer
    assert isinstance(writer, GroupCommit)

    with pytest.raises(InternalError, match=r"No transaction is open\. This is a bug"):
        writer._session.savepoint()

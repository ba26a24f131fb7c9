# SPDX-License-Identifier: Apache-2.0
"""Are keys of a server found by their beginning, without opening its store?"""

from __future__ import annotations

import pytest

from penstock.errors import StoreError
from penstock.model.job import NewJob
from penstock.stores.postgres.open import keys_with_prefix, open_postgres

pytestmark = pytest.mark.integration


def test_keys_are_found_by_their_beginning(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    keys = ["doi:1", "doi:2", "doi:é", "Doi", "e", "%", "_"]
    jobs = [NewJob(key=key, task="t", payload="{}", group="t") for key in keys]
    store.enqueue(jobs).result()
    store.close()

    assert keys_with_prefix(postgres_url, "doi:", 10) == ["doi:1", "doi:2", "doi:é"]
    assert keys_with_prefix(postgres_url, "d", 2) == ["doi:1", "doi:2"]
    assert keys_with_prefix(postgres_url, "%", 10) == ["%"]
    assert keys_with_prefix(postgres_url, "zz", 10) == []


def test_a_database_without_a_store_is_left_as_it_is(postgres_url: str) -> None:
    for _ in range(2):
        with pytest.raises(StoreError):
            keys_with_prefix(postgres_url, "", 1)

# SPDX-License-Identifier: Apache-2.0
"""Renaming an app of a store."""

from __future__ import annotations

import pytest

from penstock import Penstock
from penstock.errors import UsageError
from penstock.model.job import JobId
from penstock.operate.apps import rename
from tests.contract.world import StoreWorld

FIRST = JobId(0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "A name of an app has 1 to 256 characters; got 0."),
        ("a" * 257, "got 257"),
        ("shop/eu", "The app name 'shop/eu' must be usable as a file name."),
        (".shop", "must be usable as a file name"),
        ("shop\n", "A name of an app cannot hold control characters"),
    ],
)
def test_an_app_gets_no_name_that_no_code_can_declare(
    world: StoreWorld, name: str, said: str
) -> None:
    world.store.sign_on("shop", None, FIRST).result()

    with pytest.raises(UsageError, match=said):
        rename(world.store, "shop", name)
    with pytest.raises(UsageError, match=said):
        Penstock(name)
    assert [one.name for one in world.store.apps().result()] == ["", "shop"]

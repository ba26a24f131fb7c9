# SPDX-License-Identifier: Apache-2.0
"""Keyed limits that are changed while workers run, and the pause of the queue."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.operate.limits import (
    LimitChange,
    LimitView,
    check_limit_key,
    format_cap,
    limits,
    parse_override,
    set_limit,
    set_paused,
    used_dimensions,
)
from tests.contract.world import StoreWorld

CONFIGURED = {"host:*": 4}


def test_a_limit_is_overridden_and_then_as_configured_again(world: StoreWorld) -> None:
    changed = set_limit(world.store, CONFIGURED, "host:h", 0)
    shown = limits(world.store, CONFIGURED, "host:h")
    back = set_limit(world.store, CONFIGURED, "host:h", None)

    assert changed == LimitChange(before=4, cap=0)
    assert shown == {"host:h": LimitView(configured=4, override=0, cap=0, holders=0)}
    assert back == LimitChange(before=0, cap=4)
    assert world.store.caps().result() == {}


def test_all_limits_are_those_configured_overridden_or_held(world: StoreWorld) -> None:
    world.add(world.job("u", limit_keys=["user:u"]))
    world.take_all(world.new_worker())
    set_limit(world.store, CONFIGURED, "page:p", 2)

    assert list(limits(world.store, CONFIGURED)) == ["host:*", "page:p", "user:u"]
    assert used_dimensions(world.store, CONFIGURED) == {"host", "user"}


@pytest.mark.parametrize(("text", "cap"), [("0", 0), ("007", 7), ("Default", None), ("none", None)])
def test_a_limit_is_a_number_or_as_configured(text: str, cap: int | None) -> None:
    assert parse_override(text) == cap


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "1000001", "9" * 20, "٣"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="A limit is a whole number from 0 to 1,000,000"):
        parse_override(text)


@pytest.mark.parametrize("key", ["host", "host:", ":h", f"host:{'h' * 1_000}"])
def test_what_is_no_limit_key_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="limit key"):
        check_limit_key(key)


def test_no_limit_is_said_in_words() -> None:
    assert [format_cap(None), format_cap(0), format_cap(1_000)] == ["no limit", "0", "1,000"]


def test_a_pause_stops_leases_and_may_be_said_twice(world: StoreWorld) -> None:
    changed = [set_paused(world.store, paused) for paused in (True, True)]
    taken = world.take_all(world.new_worker())
    changed += [set_paused(world.store, paused) for paused in (False, False)]

    assert changed == [True, False, True, False]
    assert taken == {}
    assert "next" in world.take_all(world.new_worker())

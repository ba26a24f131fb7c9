# SPDX-License-Identifier: Apache-2.0
"""Does the limiter's core decide as a naive model would, and forget what nobody uses?"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.errors import InternalError, UsageError
from penstock.keyed_limiter import KeyCount, KeyedSlots

KEYS = st.sampled_from("ab")


class AgainstAModel(RuleBasedStateMachine):
    """The model: one list of waiters for all keys, walked from the start every time."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: KeyedSlots[int] = KeyedSlots(1, {"b": 2})
        self.limits = {"a": 1, "b": 2}
        self.holders: list[tuple[str, int]] = []
        self.line: list[tuple[str, int]] = []
        self.next = 0

    def held(self, key: str) -> int:
        return sum(of == key for of, _ in self.holders)

    def serve(self) -> list[int]:
        served = []
        for key, waiter in list(self.line):
            if self.held(key) < self.limits[key]:
                self.line.remove((key, waiter))
                self.holders.append((key, waiter))
                served.append(waiter)
        return served

    @rule(key=KEYS)
    def arrive(self, key: str) -> None:
        self.next += 1
        room = self.held(key) < self.limits[key] and not any(of == key for of, _ in self.line)
        assert self.turns.try_acquire(key) == room
        if room:
            self.holders.append((key, self.next))
        else:
            self.turns.wait(key, self.next)
            self.line.append((key, self.next))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.holders:
            key, holder = data.draw(st.sampled_from(self.holders))
            self.holders.remove((key, holder))
            assert self.turns.release(key) == self.serve()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Out of the line, or after it was served and before it knew."""
        if self.line or self.holders:
            key, waiter = data.draw(st.sampled_from(self.line + self.holders))
            if (key, waiter) in self.line:
                self.line.remove((key, waiter))
                assert self.turns.leave(key, waiter) == []
            else:
                self.holders.remove((key, waiter))
                assert self.turns.leave(key, waiter) == self.serve()

    @rule(key=KEYS, limit=st.one_of(st.none(), st.integers(0, 4)))
    def set_limit(self, key: str, limit: int | None) -> None:
        self.limits[key] = 1 if limit is None else limit
        assert self.turns.set_limit(key, limit) == self.serve()

    @rule(key=KEYS)
    def release_too_often(self, key: str) -> None:
        if not self.held(key):
            with pytest.raises(UsageError, match="released although nobody holds it"):
                self.turns.release(key)

    @invariant()
    def counts_agree(self) -> None:
        expected = {
            key: KeyCount(self.limits[key], self.held(key), sum(of == key for of, _ in self.line))
            for key in "ab"
        }
        assert {key: self.turns.count(key) for key in "ab"} == expected
        assert self.turns.snapshot() == {
            key: count for key, count in expected.items() if count.held or count.waiting
        }


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_keys_that_nobody_uses_are_forgotten() -> None:
    turns: KeyedSlots[int] = KeyedSlots(1)
    for number in range(1_000):
        key = f"host-{number}"
        assert turns.try_acquire(key)
        turns.wait(key, number)
        turns.leave(key, number)
        turns.release(key)

    assert turns.snapshot() == {}
    assert not turns._lines
    assert not turns._limits


def test_a_waiter_in_the_midst_of_a_long_line_may_leave_and_the_order_stays() -> None:
    turns: KeyedSlots[int] = KeyedSlots(1)
    turns.try_acquire("a")
    for waiter in range(1_000):
        turns.wait("a", waiter)
    for waiter in range(0, 1_000, 2):
        turns.leave("a", waiter)

    assert [turns.release("a")[0] for _ in range(500)] == list(range(1, 1_000, 2))
    assert turns.release("a") == []


def test_a_limit_of_zero_lets_nobody_in_until_it_is_raised() -> None:
    turns: KeyedSlots[str] = KeyedSlots(0)

    assert not turns.try_acquire("a")
    turns.wait("a", "first")
    assert turns.set_limit("a", 2) == ["first"]


def test_to_wait_where_there_is_room_is_our_bug() -> None:
    turns: KeyedSlots[str] = KeyedSlots(1)

    with pytest.raises(InternalError, match="although there is room"):
        turns.wait("a", "w")


@pytest.mark.parametrize("limit", [-1, 1.5, "2", True, None, 10**7])
def test_what_is_no_limit_is_refused(limit: object) -> None:
    with pytest.raises(
        UsageError, match=r"^default_limit (is a whole|lies between 0 and 1,000,000)"
    ):
        KeyedSlots(limit)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^the limit of 'a' (is a whole|lies between)"):
        KeyedSlots(1, {"a": limit})  # type: ignore[dict-item]
    if limit is not None:
        with pytest.raises(UsageError, match=r"^the limit of 'a' (is a whole|lies between)"):
            KeyedSlots(1).set_limit("a", limit)  # type: ignore[arg-type]

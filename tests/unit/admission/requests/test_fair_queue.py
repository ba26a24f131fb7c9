# SPDX-License-Identifier: Apache-2.0
"""Whose request is next?"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.admission.requests.fair_queue import RequestFairQueue, RequestWaiter
from penstock.errors import InternalError
from tests.requests import CHAT, EMBEDDING, item


def waiter(group: str = "g", weight: int = 1, *, refusals: int = 0) -> RequestWaiter:
    return RequestWaiter(item(CHAT, group, weight, refusals=refusals), 0.0, None)


def filled(*waiters: RequestWaiter) -> RequestFairQueue:
    queue = RequestFairQueue()
    for one in waiters:
        queue.enqueue(one)
    return queue


def next_of(queue: RequestFairQueue) -> RequestWaiter:
    found = queue.select_next()
    assert found is not None
    queue.commit(found)
    return found


def test_selecting_changes_nothing() -> None:
    first = waiter()
    queue = filled(first, waiter())

    assert queue.select_next() is queue.select_next() is first
    assert len(queue) == 2


def test_equals_are_served_oldest_first() -> None:
    waiters = [waiter(group) for group in "abcabc"]
    queue = filled(*waiters)

    assert [next_of(queue) for _ in waiters] == waiters


@pytest.mark.parametrize("weights", [{"a": 3, "b": 1}, {"a": 1, "b": 2, "c": 5}])
def test_groups_get_turns_by_their_weights(weights: dict[str, int]) -> None:
    queue = RequestFairQueue()
    for _ in range(600):
        for group, weight in weights.items():
            queue.enqueue(waiter(group, weight))

    rounds = 60
    served = Counter(next_of(queue).item.group.key for _ in range(rounds * sum(weights.values())))

    assert served == {group: rounds * weight for group, weight in weights.items()}


def test_a_group_that_was_away_has_no_claim_on_what_others_got() -> None:
    queue = filled(*(waiter("busy") for _ in range(100)))
    for _ in range(50):
        next_of(queue)
    for _ in range(50):
        queue.enqueue(waiter("new"))

    served = Counter(next_of(queue).item.group.key for _ in range(20))

    assert served == {"busy": 10, "new": 10}


def test_a_group_whose_domain_was_closed_has_no_claim_on_what_others_got() -> None:
    queue = filled(*(waiter("chat") for _ in range(100)))
    for _ in range(50):
        queue.enqueue(RequestWaiter(item(EMBEDDING, "embedding"), 0.0, None))
    for _ in range(50):
        found = queue.select_next(lambda one: one.item.resource == CHAT)
        assert found is not None
        queue.commit(found)

    served = Counter(next_of(queue).item.group.key for _ in range(20))

    assert abs(served["chat"] - served["embedding"]) <= 2


def test_who_was_refused_once_goes_ahead_of_its_group_in_the_order_of_refusals() -> None:
    old, first, second = waiter(), waiter(refusals=1), waiter(refusals=1)
    queue = filled(old, first, second)

    assert [next_of(queue) for _ in range(3)] == [first, second, old]


def test_who_was_refused_again_goes_to_the_tail() -> None:
    waiters = [waiter(), waiter(), waiter(refusals=2)]
    queue = filled(*waiters)

    assert [next_of(queue) for _ in range(3)] == waiters


def test_a_resend_uses_its_own_groups_turns_only() -> None:
    queue = RequestFairQueue()
    for _ in range(100):
        queue.enqueue(waiter("a"))
        queue.enqueue(waiter("b", refusals=1))

    served = Counter(next_of(queue).item.group.key for _ in range(100))

    assert served == {"a": 50, "b": 50}


def test_one_that_gives_up_leaves_no_trace() -> None:
    first, second, third = waiter("a"), waiter("a"), waiter("b")
    queue = filled(first, second, third)

    assert queue.remove(first)
    assert not queue.remove(first)
    assert [next_of(queue) for _ in range(2)] == [second, third]
    assert queue.select_next() is None
    assert queue._waiting_by_group == {}


def test_waiting_twice_at_once_is_our_bug() -> None:
    one = waiter()
    queue = filled(one)

    with pytest.raises(InternalError):
        queue.enqueue(one)


def test_the_queue_counts_by_group_and_domain() -> None:
    queue = filled(waiter("a"), waiter("a"), waiter("b"))
    queue.enqueue(RequestWaiter(item(EMBEDDING, "b"), 0.0, None))

    assert (len(queue), queue.waiting("chat"), queue.waiting("image")) == (4, 3, 0)
    assert queue.waiting("embedding") == 1
    assert queue._waiting_by_group == {"a": 2, "b": 2}


def test_what_comes_and_goes_without_being_served_leaves_nothing_behind() -> None:
    queue = filled(waiter("stays"))
    order = random.Random(1)
    here: list[RequestWaiter] = []
    for number in range(20_000):
        here.append(waiter(f"group-{number}", refusals=order.choice([0, 1])))
        queue.enqueue(here[-1])
        if len(here) > 50:
            queue.remove(here.pop(order.randrange(len(here))))

    domain = queue._domains["chat"]
    assert len(domain.lines) == 51
    assert len(domain.heap) < 300
    assert len(queue._tags) < 2_000


def test_a_selection_among_many_groups_looks_at_few_of_them() -> None:
    """10,000 groups wait; turns are counted by what is compared, not by a clock."""

    looks = 0

    class Looked(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return str.__hash__(self)

    queue = RequestFairQueue()
    for number in range(10_000):
        queue.enqueue(waiter(Looked(f"group-{number}")))
    looks = 0
    for _ in range(1_000):
        next_of(queue)

    assert looks / 1_000 < 40

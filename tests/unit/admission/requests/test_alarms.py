# SPDX-License-Identifier: Apache-2.0
"""Is what is due next given in order, if most of it is called off?"""

from __future__ import annotations

import random

from penstock.admission.requests.alarms import AlarmHeap


def test_things_are_taken_in_the_order_of_their_times_and_of_their_coming() -> None:
    heap: AlarmHeap[str] = AlarmHeap()
    heap.add(2.0, "later")
    heap.add(1.0, "first")
    heap.add(1.0, "second")

    assert heap.next_due() == 1.0
    assert [heap.take(1.0), heap.take(1.0), heap.take(1.0)] == ["first", "second", None]
    assert heap.take(2.0) == "later"
    assert heap.next_due() is None


def test_what_is_called_off_is_not_given_and_not_due() -> None:
    heap: AlarmHeap[str] = AlarmHeap()
    gone = heap.add(1.0, "gone")
    heap.add(2.0, "here")
    heap.cancel(gone)
    heap.cancel(gone)

    assert (len(heap), heap.next_due(), heap.take(5.0)) == (1, 2.0, "here")


def test_calling_off_what_was_taken_changes_nothing() -> None:
    heap: AlarmHeap[str] = AlarmHeap()
    entry = heap.add(1.0, "taken")
    assert heap.take(1.0) == "taken"
    heap.cancel(entry)

    assert len(heap) == 0


def test_it_agrees_with_a_sorted_list_and_stays_as_small() -> None:
    order, heap = random.Random(3), AlarmHeap[int]()
    entries = {}
    for number in range(20_000):
        entries[number] = heap.add(order.random(), number)
        if len(entries) > 100:
            gone = order.choice(list(entries))
            heap.cancel(entries.pop(gone))

    assert len(heap) == len(entries)
    assert len(heap._heap) < 400
    expected = sorted(entries, key=lambda number: (entries[number][0], number))
    assert [heap.take(2.0) for _ in expected] == expected

# SPDX-License-Identifier: Apache-2.0
"""What jobs have returned, page by page, and what a job was enqueued after."""

from __future__ import annotations

from itertools import pairwise

from penstock.model.job import Edge, JobState, finished
from penstock.model.views import FIRST_END, EndMark, ResultRow, UpstreamRow
from penstock.stores.protocol import RESULT_PAGE_BYTES
from tests.contract.world import StoreWorld


def _end(world: StoreWorld, key: str, result: str | None, task: str = "work") -> None:
    """End a job with a result, a second after whatever was before."""
    world.clock.advance(1.0)
    worker = world.new_worker((task,))
    taken = world.take_all(worker)
    job = taken.pop(key)
    world.give_back(worker, taken.values())
    world.ack(worker, job, result=result)


def _results(
    world: StoreWorld, task: str = "work", limit: int = 100, after: EndMark = FIRST_END
) -> list[ResultRow]:
    rows: list[ResultRow] = []
    more = True
    while more:
        page = world.store.results(task, after, limit).result()
        assert len(page.rows) <= limit
        rows, after, more = [*rows, *page.rows], page.last, page.more
    return rows


def test_results_come_in_the_order_of_ends_whatever_the_size_of_a_page(
    store_world: StoreWorld,
) -> None:
    store_world.add(*"abcde")
    for key in "dbeca":
        _end(store_world, key, f'"{key}"')

    expected = [ResultRow(key, f'"{key}"') for key in "dbeca"]

    assert [_results(store_world, limit=limit) for limit in (1, 2, 3, 100)] == [expected] * 4


def test_only_done_jobs_of_the_task_have_results(store_world: StoreWorld) -> None:
    store_world.add("a", "failed", "open", store_world.job("b", task="other"))
    store_world.add("nothing")
    _end(store_world, "a", "1")
    _end(store_world, "b", "2", "other")
    _end(store_world, "nothing", None)
    worker = store_world.new_worker()
    store_world.run(worker, "failed", JobState.ERROR)

    assert _results(store_world) == [ResultRow("a", "1"), ResultRow("nothing", None)]
    assert _results(store_world, "other") == [ResultRow("b", "2")]
    assert _results(store_world, "nobody's") == []


def test_results_go_on_after_the_end_that_was_seen_last(store_world: StoreWorld) -> None:
    store_world.add(*"abc")
    _end(store_world, "a", "1")
    seen = store_world.store.results("work", FIRST_END, 10).result().last
    _end(store_world, "c", "3")
    _end(store_world, "b", "2")

    assert _results(store_world, after=seen) == [ResultRow("c", "3"), ResultRow("b", "2")]


def test_a_page_is_bounded_in_bytes(store_world: StoreWorld) -> None:
    large = '"' + "ä" * (RESULT_PAGE_BYTES // 8) + '"'
    keys = [f"{number}" for number in range(9)]
    store_world.add(*keys)
    for key in keys:
        _end(store_world, key, large)

    first = store_world.store.results("work", FIRST_END, 100).result()

    assert [row.key for row in _results(store_world)] == keys
    assert first.more
    assert sum(len((row.result or "").encode()) for row in first.rows) <= RESULT_PAGE_BYTES * 1.5


def test_a_page_ends_where_many_others_have_ended(store_world: StoreWorld) -> None:
    store_world.add("first", *(store_world.job(f"o{n}", task="other") for n in range(30)), "last")
    _end(store_world, "first", "1")
    worker = store_world.new_worker(("other",))
    for job in store_world.take_all(worker).values():
        store_world.ack(worker, job)
    _end(store_world, "last", "2")

    pages = [FIRST_END]
    while (page := store_world.store.results("work", pages[-1], 5).result()).more:
        pages.append(page.last)

    assert [row.key for row in _results(store_world, limit=5)] == ["first", "last"]
    assert all(one < other for one, other in pairwise(pages))


def test_upstream_is_what_a_job_was_enqueued_after_in_that_order(store_world: StoreWorld) -> None:
    store_world.add(*"abc", store_world.job("failed", task="other"))
    _end(store_world, "c", '"C"')
    after = [Edge("c"), finished("failed"), Edge("a"), Edge("b"), Edge("a")]
    store_world.add(store_world.job("child", after=after))
    _end(store_world, "b", '"B"')
    _end(store_world, "a", '"A"')
    worker = store_world.new_worker(("other",))
    store_world.run(worker, "failed", JobState.ERROR)
    child = store_world.store.job("child").result()
    assert child is not None

    assert store_world.store.upstream(child.id).result() == [
        UpstreamRow("c", "work", JobState.DONE, '"C"'),
        UpstreamRow("failed", "other", JobState.ERROR, None),
        UpstreamRow("a", "work", JobState.DONE, '"A"'),
        UpstreamRow("b", "work", JobState.DONE, '"B"'),
    ]


def test_what_was_purged_is_upstream_of_nothing(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("child", after=[Edge("a")]))
    _end(store_world, "a", "1")
    border = store_world.clock.now_micros + 1
    _end(store_world, "child", "2")
    store_world.purge(border)
    child = store_world.store.job("child").result()
    assert child is not None

    assert store_world.store.job("a").result() is None
    assert store_world.store.upstream(child.id).result() == []

# SPDX-License-Identifier: Apache-2.0
"""Results in Python: by key, of all jobs of a task, of what a job was enqueued after."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Context, Penstock, Skip, finished
from penstock.errors import (
    JobCancelled,
    JobFailed,
    JobNotEnded,
    JobSkipped,
    PayloadError,
    UnknownJob,
    UsageError,
)
from penstock.model.job import Edge, JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing import Harness, harness


@dataclass
class Page:
    """What a body returns."""

    url: str
    length: int


app = Penstock("results")


@app.task(key="page:{url}", max_attempts=1)
async def fetch(ctx: Context, url: str) -> Page:
    if url == "bad":
        raise ValueError("no such page")
    if url == "gone":
        raise Skip("it is gone")
    return Page(url, len(url))


@app.task()
def index(ctx: Context, words: int = 0) -> dict[str, Any]:
    pages = ctx.upstream(fetch)
    return {"urls": [page.url for page in pages], "all": ctx.upstream()}


@app.task(executor="process")
def count(ctx: Context) -> int:
    return sum(page.length for page in ctx.upstream(fetch))


@app.task()
async def wait(ctx: Context) -> list[str]:
    return [*(await ctx.upstream_async())]


@app.task(max_attempts=1)
async def forgets(ctx: Context) -> Any:
    return wait.function(ctx)  # without await


@app.task()
async def nothing(ctx: Context) -> None: ...


@pytest.fixture
def t() -> Iterator[Harness]:
    with harness(app) as opened:
        yield opened


def test_a_result_is_what_the_task_returned_as_its_type(t: Harness) -> None:
    app.enqueue(fetch.job("abc"))
    t.drain()

    assert fetch.result("page:abc") == Page("abc", 3)


def test_a_task_makes_the_keys_of_its_jobs(t: Harness) -> None:
    first = app.enqueue(fetch.job(url="abc"))
    again = app.enqueue(fetch.job("abc"))
    named = app.enqueue(fetch.job("abc"), key="mine")

    assert (first.key, first.created) == ("page:abc", True)
    assert (again.key, again.created) == ("page:abc", False)
    assert (named.key, named.created) == ("mine", True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("all", "key='all' names no argument, so all its jobs would have one key"),
        ("{doi}", "key='{doi}' names 'doi', which is no argument; there are: 'url'"),
        ("{url", "key='{url' is a text such as 'doi:{doi}': expected '}'"),
        ("{}", "names '', which is no argument"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused_at_definition(template: str, message: str) -> None:
    async def fetch(ctx: Context, url: str) -> None: ...

    with pytest.raises(UsageError) as refused:
        Penstock("other").task(key=template)(fetch)

    assert message in str(refused.value)


def test_a_key_whose_argument_has_no_such_part_is_refused_at_the_job() -> None:
    other = Penstock("other")

    @other.task(key="{page.name}")
    async def store(ctx: Context, page: Page) -> None: ...

    with pytest.raises(PayloadError, match="cannot be made: AttributeError: 'Page' object has no"):
        store.job(Page("u", 1))


def test_a_job_that_has_not_ended_has_no_result_yet(t: Harness) -> None:
    app.enqueue(fetch.job("abc"))

    with pytest.raises(JobNotEnded) as refused:
        fetch.result("page:abc")

    assert refused.value.state == "queued"
    assert str(refused.value).startswith("Job 'page:abc' of task 'fetch' has not ended: it is")


def test_other_ends_say_why_there_is_no_result(t: Harness) -> None:
    for url in ("bad", "gone", "abc"):
        app.enqueue(fetch.job(url))
    app.enqueue(index.job(), key="index", after=["page:bad"])
    t.store.cancel(["page:abc"]).result()
    t.drain()

    with pytest.raises(JobFailed, match="'page:bad' of task 'fetch' has failed: ValueError") as bad:
        fetch.result("page:bad")
    with pytest.raises(JobSkipped, match="was skipped: it is gone"):
        fetch.result("page:gone")
    with pytest.raises(JobSkipped, match="was skipped: upstream failed: page:bad"):
        index.result("index")
    with pytest.raises(JobCancelled, match="'page:abc' of task 'fetch' was cancelled"):
        fetch.result("page:abc")
    assert (bad.value.reason, bad.value.attempts) == ("ValueError: no such page", 1)


@pytest.mark.filterwarnings("ignore:coroutine 'wait' was never awaited")
def test_a_result_that_was_not_awaited_is_told_as_that(t: Harness) -> None:
    app.enqueue(forgets.job(), key="f")
    t.drain()

    with pytest.raises(JobFailed) as told:
        forgets.result("f")

    assert told.value.reason.startswith("result is not JSON: $: a value of type coroutine")
    assert told.value.reason.endswith("did you forget 'await'?")


def test_an_unknown_key_and_a_key_of_another_task_are_told_apart(t: Harness) -> None:
    app.enqueue(nothing.job(), key="n")

    with pytest.raises(UnknownJob, match=r"There is no job 'x' in the store .*never enqueued"):
        fetch.result("x")
    with pytest.raises(UsageError, match="Job 'n' is one of task 'nothing', not of 'fetch'"):
        fetch.result("n")


def test_all_results_come_by_end_and_from_a_moment_on(t: Harness) -> None:
    app.enqueue(fetch.job("a"))
    app.enqueue(fetch.job("bad"))
    t.drain()
    ended = app.job("page:a").finished_at
    assert ended is not None
    app.enqueue(fetch.job("bb"), delay=60)
    t.drain()

    assert [*fetch.results()] == [("page:a", Page("a", 1)), ("page:bb", Page("bb", 2))]
    assert [key for key, _ in fetch.results(since=ended)] == ["page:a", "page:bb"]
    assert [key for key, _ in fetch.results(since=ended + timedelta(seconds=1))] == ["page:bb"]
    assert [*index.results()] == []
    with pytest.raises(UsageError, match="since= is a datetime with a time zone"):
        next(fetch.results(since=datetime(2026, 1, 1)))


def test_a_task_that_returns_nothing_has_the_result_none(t: Harness) -> None:
    app.enqueue(nothing.job(), key="n")
    t.drain()

    assert [*nothing.results()] == [("n", None)]
    assert app.job("n").result is None


def test_a_fan_in_reads_what_it_was_enqueued_after(t: Harness) -> None:
    for url in ("ccc", "a", "bad", "bb"):
        app.enqueue(fetch.job(url))
    app.enqueue(nothing.job(), key="n")
    after: list[str | Edge] = ["page:bb", finished("page:bad"), "n", "page:a", "page:ccc"]
    app.enqueue(index.job(), key="index", after=after)
    app.enqueue(count.job(), key="count", after=after)
    app.enqueue(wait.job(), key="wait", after=after)
    app.enqueue(index.job(), key="alone")
    t.drain()

    found = index.result("index")
    assert found["urls"] == ["bb", "a", "ccc"]
    assert [*found["all"]] == ["page:bb", "n", "page:a", "page:ccc"]
    assert found["all"]["page:a"] == {"url": "a", "length": 1}
    assert count.result("count") == 6
    assert wait.result("wait") == ["page:bb", "n", "page:a", "page:ccc"]
    assert index.result("alone") == {"urls": [], "all": {}}


def test_a_view_of_a_job_says_how_it_stands(t: Harness) -> None:
    app.enqueue(fetch.job("bad"), priority=3)
    before = app.job("page:bad")
    t.drain()
    after = app.job("page:bad")

    assert (before.state, before.ended, before.finished_at) == ("queued", False, None)
    assert (after.state, after.ended, after.attempts) == ("error", True, 1)
    assert (after.error, after.result, after.priority) == ("ValueError: no such page", None, 3)
    assert after.finished_at is not None
    assert after.finished_at.tzinfo is UTC
    with pytest.raises(UnknownJob):
        app.job("x")


def test_a_result_of_an_earlier_version_of_a_task_is_told(t: Harness) -> None:
    app.enqueue(nothing.job(), key="n")
    t.drain()

    with pytest.raises(PayloadError, match=r"result of job 'n' is not the Page .* 'fetch' is"):
        fetch.read_result("n", "null")


def test_schedules_and_preflights_have_no_upstream() -> None:
    other = Penstock("other")
    seen: list[str] = []

    @other.every(timedelta(seconds=10))
    async def tick(ctx: Context) -> None:
        try:
            ctx.upstream()
        except UsageError as error:
            seen.append(str(error))

    with harness(other) as t:
        t.advance(30)

    assert seen[0].startswith("'schedule:tick' has no upstream: only the jobs of a task are")


def test_the_same_on_an_event_loop(tmp_path: Any) -> None:
    own = Penstock("loop", store=f"sqlite:///{tmp_path}/jobs.db")

    @own.task()
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    async def use() -> tuple[int, list[tuple[str, int]], str]:
        await own.enqueue_async(double.job(4), key="four")
        waiting = asyncio.create_task(double.result_async("four", timeout=30))
        run = asyncio.create_task(own.run_async(drain=True))
        result = await waiting
        await run
        every = [one async for one in double.results_async()]
        return result, every, (await own.job_async("four")).state

    try:
        assert asyncio.run(use()) == (8, [("four", 8)], "done")
        assert double.result("four", timeout=1) == 8
    finally:
        own.close()


def test_waiting_for_a_result_ends_when_time_is_up(tmp_path: Any) -> None:
    own = Penstock("late", store=f"sqlite:///{tmp_path}/jobs.db")

    @own.task()
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    try:
        own.enqueue(double.job(4), key="four")
        with pytest.raises(JobNotEnded):
            double.result("four", timeout=0.05)
    finally:
        own.close()


def test_results_are_streamed_with_flat_memory(tmp_path: Path) -> None:
    """Twenty pages of results of 2 KB, of which no more than a few are in memory at a time."""
    store = SqliteStore.open(tmp_path / "results.db", durability="normal")
    worker, many, words = WorkerId("w"), 20_000, "x" * 2_000
    store.register(
        WorkerInfo(id=worker, run_id="r", host="h", pid=1, tasks=("wait",)), 1_000.0
    ).result()
    for start in range(0, many, 1_000):
        jobs = [NewJob(key=f"{n}", task="wait", payload="{}", group="g") for n in range(1_000)]
        store.enqueue([replace(job, key=f"{start}-{job.key}") for job in jobs]).result()
        request = LeaseRequest(worker=worker, tasks=("wait",), limit=1_000, caps=ConfiguredCaps())
        leased = store.lease(request).result().jobs
        ends = [JobEnd(job, JobState.DONE, 1, 2, f'["{words}"]') for job in leased]
        store.ack(worker, ends).result()
    app.use_store(store)

    tracemalloc.start()
    try:
        count = sum(len(result) for _, result in wait.results())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        app.close()

    assert count == many
    assert peak < 8 * 1024 * 1024  # all of them would be 40 MB

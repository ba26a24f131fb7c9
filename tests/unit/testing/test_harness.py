# SPDX-License-Identifier: Apache-2.0
"""Does the harness run an app truly, at once, and the same way twice?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock import Context, Penstock, Skip, finished
from penstock.errors import ConfigError, UsageError
from penstock.events.kinds import SchedulerEventKind
from penstock.model.job import ErrorCategory, JobState
from penstock.testing import Harness, RecordingSink, SimulatedProvider, harness, run_virtual


def make_app() -> Penstock:
    app = Penstock("tested")

    @app.task()
    async def double(ctx: Context, number: int) -> int:
        await asyncio.sleep(60)
        return number * 2

    @app.task()
    def blocking(ctx: Context, text: str) -> dict[str, str]:
        return {"text": text, "key": ctx.job.key}

    @app.task(max_attempts=3)
    async def failing(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.job.attempt}")

    @app.task()
    async def skipping(ctx: Context) -> None:
        raise Skip("not today")

    @app.task()
    async def spreading(ctx: Context, count: int) -> None:
        for number in range(count):
            ctx.enqueue(app.registry.find_task("double").job(number=number), key=f"spread:{number}")

    @app.task(timeout=None)
    async def endless(ctx: Context) -> None:
        await asyncio.Event().wait()

    @app.task(limits={"host": lambda host: host})
    async def visiting(ctx: Context, host: str) -> None:
        await asyncio.sleep(1)

    return app


def test_results_states_and_errors_are_there_by_key() -> None:
    app = make_app()
    with harness(app) as t:
        t.enqueue(app.tasks["double"].job(number=21), key="d")
        t.enqueue(app.tasks["blocking"].job(text="x"), key="b")
        t.enqueue(app.tasks["failing"].job(), key="f")
        t.enqueue(app.tasks["skipping"].job(), key="s")

        t.drain()

        assert t.results["d"] == 42
        assert t.results["b"] == {"text": "x", "key": "b"}
        assert t.states == {"d": "done", "b": "done", "f": "error", "s": "skipped"}
        assert t.states["f"] is JobState.ERROR
        assert t.errors["f"].message == "attempt 3"
        assert t.errors["f"].category is ErrorCategory.OWN
        assert [attempt.outcome for attempt in t.attempts("f")] == ["retry", "retry", "error"]
        assert set(t.results) == {"d", "b"}


def test_hours_of_waiting_take_no_time() -> None:
    app = make_app()
    began = time.process_time()
    with harness(app) as t:
        t.enqueue(app.tasks["double"].job(number=1), key="late", delay=3600)
        before = t.clock.now()

        t.drain()

        assert t.results["late"] == 2
        assert t.clock.now() - before >= 3660
    assert time.process_time() - began < 60  # of CPU: the machine may be busy


def test_jobs_may_wait_for_others_and_make_others() -> None:
    app = make_app()
    with harness(app) as t:
        t.enqueue(app.tasks["failing"].job(), key="first")
        t.enqueue(app.tasks["double"].job(number=1), key="needs", after=["first"])
        t.enqueue(app.tasks["spreading"].job(count=3), key="anyway", after=[finished("first")])

        t.drain()

        assert t.states["needs"] == "skipped"
        assert t.states["anyway"] == "done"
        assert [t.results[f"spread:{n}"] for n in range(3)] == [0, 2, 4]


def test_what_is_enqueued_by_the_app_reaches_the_harness_and_not_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    with harness(app) as t:
        assert app.enqueue(app.tasks["double"].job(number=2), key="k").created
        assert t.enqueue_many([app.tasks["double"].job(number=3)]).created == 1

        t.drain()
        t.drain()  # nothing is left: it ends at once

        assert t.results["k"] == 4

    assert list(tmp_path.iterdir()) == []


def test_a_missing_result_says_what_the_job_is_instead() -> None:
    app = make_app()
    with harness(app) as t:
        t.enqueue(app.tasks["skipping"].job(), key="s")
        t.drain()

        with pytest.raises(KeyError, match="no result, it is skipped: Skip: not today"):
            t.results["s"]
        with pytest.raises(KeyError, match="no error, it is skipped"):
            t.errors["s"]
        with pytest.raises(KeyError, match="no job has the key 'other'"):
            t.states["other"]
        with pytest.raises(KeyError, match="no job has the key 'other'"):
            t.job("other")


def test_the_same_seed_gives_the_same_run() -> None:
    def record(seed: int) -> list[tuple[str, float, str | None]]:
        app = make_app()
        with harness(app, seed=seed) as t:
            for n in range(20):
                t.enqueue(app.tasks["double"].job(number=n), key=str(n))
                t.enqueue(app.tasks["failing"].job(), key=f"f{n}")
            t.drain()
            return [
                (event.event_kind, event.captured_at_monotonic, event.correlation.task_execution_id)
                for event in t.events
            ]

    assert record(7) == record(7)
    assert record(7) != record(8)


def test_settings_are_those_of_a_file() -> None:
    app = make_app()
    with harness(app, settings={"limits": {"host": {"*": 1}}}) as t:
        began = t.clock.monotonic()
        for n in range(5):
            t.enqueue(app.tasks["visiting"].job(host="example.org"), key=str(n))

        t.drain()

        assert t.clock.monotonic() - began >= 5  # one second each, one at a time
    with pytest.raises(ConfigError, match="limits"), harness(app, settings={"limits": 3}):
        pass


def test_drain_names_work_that_nobody_can_do() -> None:
    app = make_app()
    other = Penstock("other")

    @other.task()
    async def elsewhere(ctx: Context) -> None: ...

    with harness(app) as t:
        t.enqueue(elsewhere.job(), key="lost")

        with pytest.raises(UsageError, match=r"'lost' of task 'elsewhere', queued.*not define"):
            t.drain()


def test_drain_says_that_nothing_may_start() -> None:
    app = make_app()
    with harness(app) as t:
        t.store.set_cap("host:example.org", 0)
        t.enqueue(app.tasks["visiting"].job(host="example.org"), key="held")

        with pytest.raises(UsageError, match=r"cannot end: 1 job.*paused"):
            t.drain()


def test_drain_ends_although_a_task_does_not() -> None:
    app = make_app()
    with harness(app) as t:
        t.enqueue(app.tasks["endless"].job(), key="forever")

        with pytest.raises(UsageError, match="did not end within 120 virtual seconds: 1 job"):
            t.drain(within=120)

        assert t.states["forever"] == "queued"  # released, not charged


def test_a_running_loop_is_refused() -> None:
    app = make_app()

    async def inside() -> None:
        with harness(app):
            pass

    with pytest.raises(UsageError, match="plain `def` test"):
        run_virtual(inside())


def test_events_are_recorded_and_can_be_waited_for() -> None:
    app = make_app()
    with harness(app) as t:
        assert isinstance(t, Harness)
        t.enqueue(app.tasks["double"].job(number=1), key="k")
        t.drain()

        kinds = [event.event_kind for event in t.events]
        assert kinds[0] is SchedulerEventKind.SCHEDULER_JOB_STARTED
        assert kinds[-1] is SchedulerEventKind.SCHEDULER_JOB_COMPLETED
        assert len(t.sink.of(SchedulerEventKind.TASK_COMPLETED)) == 1
        sequence = [event.sequence for event in t.events]
        assert sequence == list(range(1, len(sequence) + 1))
        assert "1 jobs" in repr(t)


def test_wait_for_gives_each_event_once_and_then_waits() -> None:
    from penstock.events.kinds import Correlation, SchedulerEvent

    kind = SchedulerEventKind.QUEUE_EMPTY

    async def main() -> None:
        sink = RecordingSink()
        loop = asyncio.get_running_loop()

        def say(number: int) -> None:
            sink(SchedulerEvent(kind, loop.time(), number, Correlation("run")))

        say(1)
        loop.call_later(5, say, 2)

        assert (await sink.wait_for(kind)).sequence == 1
        assert (await sink.wait_for(kind)).sequence == 2
        assert loop.time() == 5
        with pytest.raises(TimeoutError, match=r"within 10 s; there was: 2 queue_empty"):
            await sink.wait_for(kind)
        assert "0 waited for" in repr(sink)

    run_virtual(main())


Library = Literal["httpx2", "httpx", "aiohttp"]


def archive_app(base_url: str) -> tuple[Penstock, Any]:
    app = Penstock("documents")
    archive = app.provider("archive", base_url=base_url)

    @app.task(max_attempts=1)
    async def fetch(ctx: Context, library: Library | None) -> int:
        if library is None:
            async with ctx.admit(archive):
                return 0
        client = archive.http if library == "httpx2" else archive.http_client(library)
        return int((await client.get(f"{base_url}/")).status_code)

    return app, fetch


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
def test_a_provider_that_is_not_simulated_sends_nothing_and_the_drain_says_so(
    library: Library,
) -> None:
    with SimulatedProvider() as server:
        app, fetch = archive_app(server.url)

        with harness(app) as t:
            t.enqueue(fetch.job(library=library))
            with pytest.raises(
                UsageError, match=r"'archive' has no simulation in this test"
            ) as said:
                t.drain()

        assert "harness(app, providers={'archive': SimulatedProvider()})" in str(said.value)
        assert server.counts.calls == 0


@pytest.mark.parametrize("simulated", [False, True])
def test_a_session_of_aiohttp_is_refused_since_no_simulation_answers_it(simulated: bool) -> None:
    with SimulatedProvider() as server:
        app, fetch = archive_app(server.url)

        with harness(app, providers={"archive": SimulatedProvider()} if simulated else {}) as t:
            t.enqueue(fetch.job(library="aiohttp"), key="a")
            t.drain()
            assert "A session of aiohttp is not answered by a simulation" in t.errors["a"].message

        assert server.counts.calls == 0


def test_a_permit_needs_no_simulation() -> None:
    app, fetch = archive_app("http://nowhere.invalid")

    with harness(app) as t:
        t.enqueue(fetch.job(library=None), key="a")
        t.drain()
        assert t.results["a"] == 0

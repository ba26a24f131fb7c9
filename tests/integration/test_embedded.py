# SPDX-License-Identifier: Apache-2.0
"""Does a run inside somebody's program work, end, and leave nothing behind?"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Context, Penstock, RunProgress
from penstock.errors import UsageError
from penstock.model.job import JobState
from tests.forked import Forked
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

NOT_SOON_SECONDS = 60.0  # nothing that is told to stop takes this long, however busy the machine


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text(
        'durability = "normal"\n[runtime]\nlease_ttl_seconds = 4.0\nbeat_seconds = 0.25\n'
        "grace_seconds = 1.0\nasync_slots = 8\nthread_slots = 4\n"
    )
    app = Penstock("inside")
    yield app
    app.close()


def test_a_drain_does_everything_and_leaves_no_thread_and_no_descriptor(app: Penstock) -> None:
    @app.task()
    def threaded(ctx: Context, n: int) -> int:
        time.sleep(0.001)
        return n

    @app.task()
    async def looped(ctx: Context, n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    def rounds(number: int) -> None:
        app.enqueue_many(
            [(threaded if n % 2 else looped).job(n=100 * number + n) for n in range(40)]
        )
        report = app.run(drain=True)
        assert (report.done, report.errors, report.stopped) == (40, 0, False)

    rounds(0)  # opens what stays open
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for number in range(1, 4):
        rounds(number)

    assert app.store.stats().result().states[JobState.DONE] == 160
    assert app.store.workers().result() == []
    wait_until(lambda: threading.active_count() <= threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_progress_is_told_on_the_loop_and_its_mistake_ends_the_telling_only(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[RunProgress, threading.Thread]] = []
    enough = asyncio.Event()

    @app.task()
    async def waits(ctx: Context) -> None:
        await enough.wait()

    def tell(progress: RunProgress) -> None:
        told.append((progress, threading.current_thread()))
        if len(told) == 2:
            enough.set()

    def breaks(progress: RunProgress) -> None:
        enough.set()
        told.append((progress, threading.current_thread()))
        raise ValueError("mine")

    async def later(progress: RunProgress) -> None: ...

    app.enqueue(waits.job(), key="first")
    report = app.run(drain=True, on_progress=tell)
    *before, (last, _) = told

    assert {thread for _, thread in told} == {threading.main_thread()}
    assert all((one.ended, one.left, one.is_last) == (0, 1, False) for one, _ in before)
    assert (last.run_id, last.done, last.left, last.is_last) == (report.run_id, 1, 0, True)

    told.clear()
    enough.clear()
    app.enqueue(waits.job(), key="second")
    assert app.run(drain=True, on_progress=breaks).done == 1
    assert len(told) == 1
    assert caplog.text.count("on_progress= has failed and is not called again") == 1

    with pytest.raises(UsageError, match="on_progress= is a plain function of one RunProgress"):
        app.run(drain=True, on_progress=later)


def test_a_blocked_loop_keeps_its_lease_by_the_beat_thread(app: Penstock) -> None:
    starts: list[str] = []

    @app.task()
    async def blocks(ctx: Context) -> None:
        starts.append(ctx.job.key)
        time.sleep(5.0)  # noqa: ASYNC251 (that is the point)

    app.enqueue(blocks.job(), key="k")

    assert app.run(drain=True).done == 1
    assert starts == ["k"]
    assert [a.outcome for a in app.store.attempts("k").result()] == ["done"]


@pytest.mark.parametrize(
    ("bounds", "most"), [({"slots": 2}, 2), ({"slots": 8, "thread_slots": 1}, 8)]
)
def test_slots_bound_tasks_of_all_kinds_together(
    app: Penstock, bounds: dict[str, int], most: int
) -> None:
    lock, running, in_threads = threading.Lock(), [0], [0]
    seen: list[tuple[int, int]] = []

    def began(thread: int) -> None:
        with lock:
            running[0] += 1
            in_threads[0] += thread
            seen.append((running[0], in_threads[0]))

    def ended(thread: int) -> None:
        with lock:
            running[0] -= 1
            in_threads[0] -= thread

    @app.task()
    def threaded(ctx: Context, n: int) -> None:
        began(1)
        time.sleep(0.01)
        ended(1)

    @app.task()
    async def looped(ctx: Context, n: int) -> None:
        began(0)
        await asyncio.sleep(0.01)
        ended(0)

    app.enqueue_many([task.job(n=n) for n in range(20) for task in (threaded, looped)])

    assert app.run(drain=True, **bounds).done == 40  # type: ignore[arg-type]

    assert max(both for both, _ in seen) == most
    assert max(threads for _, threads in seen) <= bounds.get("thread_slots", most)


def test_the_argument_of_older_tools_is_answered_with_ours(app: Penstock) -> None:
    with pytest.raises(UsageError, match=r"write thread_slots=N"):
        app.run(max_workers=4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"write thread_slots=N"):
        app.build(start="2024-01-01", end="2024-01-02", max_workers=4)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="has no workers=; here it is slots="):
        app.run(workers=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'wings'"):
        app.run(wings=4)  # type: ignore[arg-type]


def test_a_cancelled_run_stops_gracefully_and_gives_everything_back(app: Penstock) -> None:
    started: list[str] = []

    @app.task()
    async def sleeps(ctx: Context, n: int) -> None:
        started.append(ctx.job.key)
        await asyncio.sleep(NOT_SOON_SECONDS)

    app.enqueue_many([sleeps.job(n=n) for n in range(20)])

    async def main() -> None:
        running = asyncio.create_task(app.run_async())
        while len(started) < 8:  # noqa: ASYNC110 (a list is enough)
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    began = time.monotonic()
    asyncio.run(main())

    assert time.monotonic() - began < NOT_SOON_SECONDS
    assert app.store.stats().result().states[JobState.QUEUED] == 20


def test_a_run_that_is_cancelled_twice_stops_at_once(app: Penstock) -> None:
    Path("penstock.toml").write_text(
        f'durability = "normal"\n[runtime]\ngrace_seconds = {2 * NOT_SOON_SECONDS}\n'
    )
    started = asyncio.Event()

    @app.task()
    async def sleeps(ctx: Context) -> None:
        started.set()
        await asyncio.sleep(NOT_SOON_SECONDS)

    app.enqueue(sleeps.job(), key="k")

    async def main() -> None:
        running = asyncio.create_task(app.run_async())
        await asyncio.wait_for(started.wait(), NOT_SOON_SECONDS)
        running.cancel()
        await asyncio.sleep(0)  # it has been told
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    began = time.monotonic()
    asyncio.run(main())

    assert time.monotonic() - began < NOT_SOON_SECONDS
    assert app.store.stats().result().states[JobState.QUEUED] == 1


def test_a_run_on_a_running_loop_is_refused_with_what_to_write_instead(app: Penstock) -> None:
    async def main() -> None:
        app.run(drain=True)

    with pytest.raises(UsageError, match=r"await app\.run_async\(\)"):
        asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_task_that_forks_and_enqueues_in_the_child_harms_nobody(app: Penstock) -> None:
    """The child must not use its parent's connection: it opens the store anew, or is refused."""

    @app.task()
    async def forks(ctx: Context) -> str:
        store = app.store
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover (another process)
            try:
                store.set_paused(True).result(30)
                os.write(writing, b"accepted")
            except BaseException as error:
                os.write(writing, type(error).__name__.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222 (that is the point)
        os.close(writing)
        with os.fdopen(reading) as said:
            return said.read()

    app.enqueue(forks.job(), key="k")

    app.run(drain=True)

    job = app.store.job("k").result()
    assert job is not None
    assert job.result == '"StoreForked"'
    assert app.store.check().result() == []


PROGRAM = """
import asyncio, sys, time
from penstock import Context, Penstock

app = Penstock("inside")

@app.task()
async def sleeps(ctx: Context) -> None:
    print("started", flush=True)
    await asyncio.sleep(600)

@app.task()
async def deaf(ctx: Context) -> None:
    print("started", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue

app.enqueue(app.tasks[sys.argv[1]].job(), key="k")
report = app.run()
print("stopped", report.stopped, flush=True)
"""


@pytest.mark.parametrize("task", ["sleeps", "deaf"])
def test_a_program_ends_within_the_grace_when_it_is_told_to(
    task: str, app: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = Forked(
        [sys.executable, "program.py", task],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        program.send_signal(signal.SIGTERM)

        out, err = program.communicate(timeout=NOT_SOON_SECONDS)

        assert out == "stopped True\n"
        assert program.returncode == 0
        assert "Traceback" not in err
    finally:
        program.kill()
        program.communicate()
    job = app.store.job("k").result()
    assert job is not None
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)

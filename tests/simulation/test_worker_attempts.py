# SPDX-License-Identifier: Apache-2.0
"""Does each end of a body become the outcome that docs/guide/queue.md says?"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Callable, Coroutine
from socket import gaierror
from typing import Any

import pytest

from penstock import Context, Penstock, Skip
from penstock.events.kinds import SchedulerEventKind
from penstock.model.job import ERROR_BYTES_MAX, ErrorCategory, JobState, NewJob
from penstock.worker.executor import DETACH_SECONDS
from penstock.worker.parts import Stopping
from penstock.worker.thread_executor import Done
from penstock.worker.worker import TICK_SECONDS
from tests.unit.worker.worker_world import World, simulate

EPSILON = 1e-6


def returning(value: Any) -> Penstock:
    app = Penstock("attempts")

    @app.task()
    async def work(ctx: Context) -> Any:
        return value() if callable(value) else value

    return app


def raising(make: Callable[[], BaseException], **options: Any) -> Penstock:
    """An app whose `work` raises, as a coroutine and (`threaded`) as a plain function."""
    app = Penstock("attempts")

    @app.task(**options)
    async def work(ctx: Context) -> None:
        raise make()

    @app.task(**options)
    def threaded(ctx: Context) -> None:
        raise make()

    @app.task()
    async def fine(ctx: Context) -> str:
        return "fine"

    return app


@pytest.mark.parametrize(
    ("value", "kept"),
    [(None, None), (7, "7"), ({"a": [1, "é"]}, '{"a":[1,"é"]}'), ("", '""'), (False, "false")],
)
def test_a_returned_value_is_kept_and_the_job_is_done(value: Any, kept: str | None) -> None:
    async def main(world: World) -> None:
        world.enqueue("work", "k")

        worker = await world.drain()

        job = world.job("k")
        assert (job.state, job.result, job.attempts) == (JobState.DONE, kept, 0)
        assert world.outcomes("k") == ["done"]
        assert worker.totals.ended == 1

    simulate(returning(value), main)


class _Model:
    """Looks like a pydantic model that cannot be dumped."""

    def model_dump(self, mode: str) -> dict[str, str]:
        raise KeyError("mode")


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(65):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "value",
    [
        object,
        float("nan"),
        {1: 2},
        b"bytes",
        "\ud800",
        "nul \x00",
        2**70,
        _circle,
        _deep,
        "x" * (1024 * 1024 + 1),
        _Model,
    ],
    ids=lambda value: getattr(value, "__name__", str(type(value).__name__)),
)
def test_a_result_that_is_not_json_ends_the_job_in_error_at_once(value: Any) -> None:
    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        job = world.job("k")
        assert job.state is JobState.ERROR
        assert job.last_error is not None
        assert job.last_error.category is ErrorCategory.OWN
        assert job.last_error.message.startswith(("result is not JSON: ", "result is too large: "))
        assert world.outcomes("k") == ["error"]  # trying again cannot help

    simulate(returning(value), main)


class _OwnSkip(Skip):
    def __init__(self) -> None:  # does not call its parent, as user code may forget to
        self.other = 1


@pytest.mark.parametrize(
    ("skip", "reason"),
    [
        (lambda: Skip("not today"), "not today"),
        (lambda: Skip(), ""),
        (lambda: Skip(ValueError("no text")), "no text"),  # type: ignore[arg-type]
        (_OwnSkip, ""),
        (lambda: Skip("x" * 50_000), "x"),
    ],
    ids=["reason", "empty", "not-text", "own-class", "long"],
)
@pytest.mark.parametrize("task", ["work", "threaded"])
def test_skip_ends_the_job_as_skipped_with_its_reason(
    skip: Callable[[], Skip], reason: str, task: str
) -> None:
    async def main(world: World) -> None:
        world.enqueue(task, "k")

        await world.drain()

        job = world.job("k")
        assert job.state is JobState.SKIPPED
        assert job.last_error is not None
        assert job.last_error.message.startswith(reason)
        assert len(job.last_error.message.encode()) <= ERROR_BYTES_MAX
        assert job.attempts == 0

    simulate(raising(skip), main)


def test_a_node_error_puts_the_job_back_later_and_uncharged() -> None:
    app = Penstock("attempts")
    failures = [ConnectionResetError("gone"), ConnectionRefusedError("no"), gaierror("DNS")] * 4

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> int:
        assert ctx.job.attempt == 1  # nothing was charged
        if failures:
            raise failures.pop()
        return 1

    async def main(world: World) -> None:
        world.enqueue("work", "k")

        worker = world.worker()
        running = world.start(worker)
        await world.sink.wait_for(SchedulerEventKind.RETRY_DEFERRED)
        await asyncio.sleep(0.001)
        job = world.job("k")
        assert job.state is JobState.QUEUED
        assert job.attempts == 0
        assert job.deferred_since is not None
        assert job.last_error is not None
        assert job.last_error.category is ErrorCategory.NODE
        await running

        job = world.job("k")
        assert (job.state, job.attempts, job.deferred_since) == (JobState.DONE, 0, None)
        assert world.outcomes("k") == ["retry"] * 12 + ["done"]

    simulate(app, main)


async def _limits_itself() -> None:
    async with asyncio.timeout(1):
        await asyncio.Event().wait()


async def _reads_a_broken_file() -> None:
    gzip.decompress(gzip.compress(b"whole")[:-8])


@pytest.mark.parametrize("body", [_limits_itself, _reads_a_broken_file])
def test_a_time_limit_or_file_of_the_tasks_own_is_charged_and_the_drain_ends(
    body: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    app = Penstock("attempts")

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        await body()

    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        error = world.job("k").last_error
        assert error is not None
        assert error.category is ErrorCategory.OWN
        assert world.outcomes("k") == ["error"]
        assert world.clock.monotonic() < 10

    simulate(app, main)


def test_a_group_of_node_errors_is_a_node_error_and_a_mixed_one_is_charged() -> None:
    groups: list[BaseException] = [
        ExceptionGroup("all node", [ConnectionResetError(), gaierror("DNS")]),
        ExceptionGroup("mixed", [ConnectionResetError(), ValueError("mine")]),
        BaseExceptionGroup("worse", [KeyboardInterrupt(), ConnectionResetError()]),
    ]
    app = Penstock("attempts")

    @app.task(max_attempts=3)
    async def work(ctx: Context) -> None:
        if groups:
            raise groups.pop(0)

    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        assert world.job("k").state is JobState.DONE
        kinds = [(a.error.category, a.error.kind) for a in world.attempts("k") if a.error]
        assert kinds == [
            ("node", "ExceptionGroup"),
            ("own", "ExceptionGroup"),
            ("own", "BaseExceptionGroup"),
        ]
        assert world.job("k").attempts == 2

    simulate(app, main)


def test_a_wait_that_the_service_asks_for_is_obeyed_exactly() -> None:
    app = Penstock("attempts")
    starts: list[float] = []

    class Busy(Exception):
        retry_after = 77

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        starts.append(asyncio.get_running_loop().time())
        if len(starts) == 1:
            raise Busy("please")

    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        assert starts[1] - starts[0] == pytest.approx(77, abs=0.01)

    simulate(app, main)


def test_an_ill_provider_is_given_up_after_the_configured_time() -> None:
    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        job = world.job("k")
        assert job.state is JobState.ERROR
        assert job.attempts == 0
        ends = world.attempts("k")
        assert (ends[-1].ended_at - ends[0].ended_at) / 1e6 >= 600

    simulate(raising(lambda: ConnectionError("ill")), main, tasks={"give_up_after": 600})


@pytest.mark.parametrize("task", ["work", "threaded"])
def test_an_own_error_is_charged_and_ends_the_job_when_attempts_are_used_up(task: str) -> None:
    async def main(world: World) -> None:
        world.enqueue(task, "k")

        await world.drain()

        job = world.job("k")
        assert (job.state, job.attempts) == (JobState.ERROR, 4)
        assert job.last_error is not None
        assert (job.last_error.kind, job.last_error.message) == ("ValueError", "mine")
        assert world.outcomes("k") == ["retry", "retry", "retry", "error"]

    simulate(raising(lambda: ValueError("mine"), max_attempts=4), main)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SystemExit(0),
        lambda: SystemExit("bye"),
        lambda: KeyboardInterrupt(),
        lambda: BaseException("base"),
        lambda: GeneratorExit(),
        lambda: asyncio.CancelledError("own doing"),
        lambda: RecursionError("deep"),
        lambda: StopIteration(1),
        lambda: StopAsyncIteration(),
        lambda: MemoryError(),
    ],
    ids=lambda make: type(make()).__name__,
)
@pytest.mark.parametrize("task", ["work", "threaded"])
def test_whatever_a_body_raises_is_charged_and_the_worker_goes_on(
    make: Callable[[], BaseException], task: str
) -> None:
    async def main(world: World) -> None:
        world.enqueue(task, "bad")
        for n in range(3):
            world.enqueue("fine", f"fine-{n}", delay=n)

        worker = await world.drain()

        bad = world.job("bad")
        assert (bad.state, bad.attempts) == (JobState.ERROR, 2)
        assert bad.last_error is not None
        assert bad.last_error.category is ErrorCategory.OWN
        assert [world.job(f"fine-{n}").state for n in range(3)] == [JobState.DONE] * 3
        assert worker.totals.ended == 5

    simulate(raising(make, max_attempts=2), main)


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class _Stubborn(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class _NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class _Hostile(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name in ("retry_after", "response", "status_code", "__cause__", "headers"):
            raise SystemError(name)
        return super().__getattribute__(name)


class _Worst(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt(name)


@pytest.mark.parametrize(
    "make",
    [
        _Mute,
        _Stubborn,
        _NotText,
        _Hostile,
        _Worst,
        lambda: ValueError("x" * (50 * 1024 * 1024)),
        lambda: ValueError("é" * ERROR_BYTES_MAX),
        lambda: ValueError("\ud800 and \x00"),
        lambda: type("N" * 40_000, (Exception,), {})("long name"),
        lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(5_000)]),
    ],
    ids=[
        "mute",
        "stubborn",
        "not-text",
        "hostile",
        "worst",
        "50-MiB",
        "wide",
        "surrogate",
        "long-name",
        "large-group",
    ],
)
@pytest.mark.parametrize("task", ["work", "threaded"])
def test_an_error_that_cannot_be_shown_is_kept_as_bounded_safe_text(
    make: Callable[[], BaseException], task: str
) -> None:
    async def main(world: World) -> None:
        world.enqueue(task, "k")
        world.enqueue("fine", "fine")

        await world.drain()

        job = world.job("k")
        assert job.state is JobState.ERROR
        assert job.last_error is not None
        for text in (job.last_error.kind, job.last_error.message):
            assert len(text.encode()) <= ERROR_BYTES_MAX
            assert "\x00" not in text
        assert world.job("fine").state is JobState.DONE

    simulate(raising(make, max_attempts=1), main)


def test_a_payload_that_no_longer_fits_the_task_ends_in_error_at_once() -> None:
    async def main(world: World) -> None:
        world.put(NewJob(key="k", task="work", payload='{"gone": 1}', group="g"))
        world.put(NewJob(key="t", task="threaded", payload='{"gone": 1}', group="g"))

        await world.drain()

        for key in ("k", "t"):
            job = world.job(key)
            assert (job.state, world.outcomes(key)) == (JobState.ERROR, ["error"])
            assert job.last_error is not None
            assert job.last_error.kind == "payload"
            assert "gone" in job.last_error.message

    simulate(raising(lambda: ValueError("unused")), main)


def test_an_attempt_past_its_time_limit_is_cancelled_and_charged() -> None:
    app = Penstock("attempts")
    seen: list[str] = []

    @app.task(timeout=10, max_attempts=2)
    async def work(ctx: Context) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            seen.append(f"cancelled {ctx.cancelled}")
            raise

    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        job = world.job("k")
        assert (job.state, job.attempts) == (JobState.ERROR, 2)
        assert job.last_error is not None
        assert job.last_error.category is ErrorCategory.TIMEOUT
        assert job.last_error.message == "ran past its time limit of 10 s"
        assert seen == ["cancelled True"] * 2
        for attempt in world.attempts("k"):
            assert attempt.started_at is not None
            seconds = (attempt.ended_at - attempt.started_at) / 1e6
            assert 10 <= seconds <= 10 + TICK_SECONDS

    simulate(app, main)


def test_a_cancelled_attempt_that_ends_within_patience_frees_its_slot_after_its_clean_up() -> None:
    app = Penstock("attempts")
    cleaned: list[float] = []

    @app.task(timeout=10, max_attempts=1)
    async def work(ctx: Context) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(DETACH_SECONDS - 1)
            cleaned.append(asyncio.get_running_loop().time())

    async def main(world: World) -> None:
        world.enqueue("work", "k")

        await world.drain()

        assert len(cleaned) == 1
        assert world.job("k").state is JobState.ERROR
        assert world.outcomes("k") == ["error"]

    simulate(app, main)


def test_a_swallowed_cancellation_is_detached_and_keeps_its_slot_until_the_body_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Penstock("attempts")
    starts: dict[str, float] = {}

    @app.task(timeout=10, max_attempts=1)
    async def deaf(ctx: Context) -> str:
        until = asyncio.get_running_loop().time() + 100
        while (left := until - asyncio.get_running_loop().time()) > EPSILON:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return "nobody hears this"

    @app.task()
    async def after(ctx: Context) -> None:
        starts[ctx.job.key] = asyncio.get_running_loop().time()

    async def main(world: World) -> None:
        world.enqueue("deaf", "deaf")
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)
        world.enqueue("after", "after")

        await asyncio.sleep(10 + DETACH_SECONDS)
        assert world.job("deaf").state is JobState.ERROR  # 15 s after its start it is detached
        assert worker.running == 0
        assert len(world.table.snapshot().running) == 1  # but its body still sits in the slot
        await asyncio.sleep(100)

        assert starts["after"] == pytest.approx(100, abs=0.1)  # the only slot was taken
        assert world.job("deaf").result is None
        assert world.outcomes("deaf") == ["error"]
        assert worker.totals.refused == 0
        assert world.table.snapshot().running == ()
        worker.stop(Stopping.GRACEFUL)
        await running

    with caplog.at_level(logging.ERROR, "penstock.worker"):
        simulate(app, main, runtime={"async_slots": 1})
    assert "Job 'deaf' of task 'deaf' runs past its time limit" in caplog.text


class SlowThreads:
    """Threads whose bodies take a minute of virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, body: Callable[[], Any], done: Done) -> None:
        self._loop.call_later(60, lambda: done(body(), None))

    def close(self) -> None:
        """There is nothing to end."""


def test_a_thread_past_its_time_limit_is_detached_at_once_and_its_late_end_is_not_heard() -> None:
    app = Penstock("attempts")
    heard: list[bool] = []

    @app.task(timeout=10, max_attempts=1)
    def slow(ctx: Context) -> str:
        heard.append(ctx.cancelled)
        return "late"

    async def main(world: World) -> None:
        world.enqueue("slow", "slow")
        worker = world.worker(drain=False, threads=SlowThreads)
        running = world.start(worker)

        await asyncio.sleep(10 + TICK_SECONDS)
        assert world.job("slow").state is JobState.ERROR
        assert len(world.table.snapshot().running) == 1
        await asyncio.sleep(60)

        assert heard == [True]
        assert world.outcomes("slow") == ["error"]
        assert world.table.snapshot().running == ()
        worker.stop(Stopping.GRACEFUL)
        await running

    simulate(app, main, runtime={"thread_slots": 1})


def test_tasks_have_no_time_limit_when_their_author_says_so() -> None:
    app = Penstock("attempts")

    @app.task(timeout=None)
    async def patient(ctx: Context) -> None:
        await asyncio.sleep(1_000)

    async def main(world: World) -> None:
        world.enqueue("patient", "k")

        await world.drain()

        assert world.job("k").state is JobState.DONE

    simulate(app, main, tasks={"timeout": 5})


def test_what_a_body_enqueues_is_there_exactly_when_it_ends_well() -> None:
    app = Penstock("attempts")

    @app.task()
    async def child(ctx: Context, n: int) -> int:
        return n

    @app.task(max_attempts=2)
    async def parent(ctx: Context, fails: int) -> None:
        ctx.enqueue(child.job(n=ctx.job.attempt), key=f"{ctx.job.key}/{ctx.job.attempt}")
        if ctx.job.attempt <= fails:
            raise ValueError("after it had enqueued")

    @app.task()
    async def skips(ctx: Context) -> None:
        ctx.enqueue(child.job(n=0), key="of-skip")
        raise Skip("nothing to do")

    async def main(world: World) -> None:
        world.enqueue("parent", "good", fails=0)
        world.enqueue("parent", "second", fails=1)
        world.enqueue("parent", "never", fails=2)
        world.enqueue("skips", "skips")

        await world.drain()

        assert world.states() == {
            "good": "done",
            "good/1": "done",
            "second": "done",
            "second/2": "done",
            "never": "error",
            "skips": "skipped",
        }

    simulate(app, main)


def test_refused_effects_end_the_job_in_error_and_hurt_no_neighbour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Penstock("attempts")

    @app.task()
    async def child(ctx: Context, n: int) -> int:
        return n

    @app.task()
    async def bad(ctx: Context) -> None:
        ctx.enqueue(child.job(n=1), key="fine-one")
        ctx.enqueue(child.job(n=2), key="orphan", after=["no-such-key"])

    @app.task()
    async def good(ctx: Context) -> None:
        ctx.enqueue(child.job(n=3), key=f"{ctx.job.key}/child", after=[ctx.job.key])

    async def main(world: World) -> None:
        for n in range(5):
            world.enqueue("good", f"good-{n}")
            world.enqueue("bad", f"bad-{n}")

        await world.drain()

        states = world.states()
        assert "orphan" not in states
        assert "fine-one" not in states  # all or nothing
        for n in range(5):
            assert states[f"good-{n}"] == states[f"good-{n}/child"] == "done"
            job = world.job(f"bad-{n}")
            assert job.state is JobState.ERROR
            assert job.last_error is not None
            assert job.last_error.kind == "enqueue"
            assert "no-such-key" in job.last_error.message

    with caplog.at_level(logging.ERROR, "penstock.worker"):
        simulate(app, main)
    assert "'bad-0'" in caplog.text  # a job that ends in error is never silent


def test_a_body_that_enqueues_an_edge_to_its_own_failure_is_not_stuck() -> None:
    """An end that is refused twice would never leave; the second end carries no effects."""
    app = Penstock("attempts")

    @app.task()
    async def selfish(ctx: Context) -> None:
        ctx.enqueue(selfish.job(), key=ctx.job.key, after=[ctx.job.key])

    async def main(world: World) -> None:
        world.enqueue("selfish", "k")

        await world.drain()

        assert world.job("k").state in (JobState.DONE, JobState.ERROR)

    simulate(app, main)

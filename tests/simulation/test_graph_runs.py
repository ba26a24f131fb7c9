# SPDX-License-Identifier: Apache-2.0
"""Graphs in memory on one scheduler: what follows errors, several at once, growth and fairness."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    ProviderAwareTaskAdmissionPolicy,
    TaskAdmissionPolicy,
)
from penstock.errors import (
    AccountClosed,
    ProviderThrottled,
    ProviderUnavailable,
    TooManyFailures,
    UsageError,
)
from penstock.events.kinds import Correlation
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.events.sink import SchedulerEvents
from penstock.model.request import PressureSnapshot
from penstock.model.task import (
    SUBMISSION,
    SchedulableTask,
    SchedulerResourceRequest,
    TaskGroupSpec,
)
from penstock.planning.completion import CompletionSnapshot, CompletionTracker, Finished
from penstock.retry.policy import RetryPolicy
from penstock.testing import RecordingSink, VirtualClock, run_virtual
from penstock.worker import bottleneck
from penstock.worker.graph_run import (
    Accepted,
    Again,
    EarlyStop,
    Ends,
    Failed,
    GraphRun,
    Judge,
    RetryJudge,
    Tries,
    Verdict,
)
from penstock.worker.scheduler import AsyncTaskScheduler, Attachment
from tests.depth import SOAK
from tests.simulation.scheduler_world import assert_accounted

Body = Callable[[SchedulableTask], Coroutine[Any, Any, None]]
Nodes = Mapping[Any, Collection[Hashable]]
ASYNC = SchedulerResourceRequest({"async": 1})


class Desk:
    """One scheduler and its turns, for as many graphs as a test wants."""

    def __init__(
        self, slots: int = 4, submissions: int = 1_000, policy: TaskAdmissionPolicy | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.sink = RecordingSink()
        self.controller = TaskAdmissionController(
            TaskAdmissionConfig(submissions, {"async": slots}),
            policy,
            monotonic=self.clock.monotonic,
        )
        self.runs: list[GraphRun] = []
        self.scheduler = AsyncTaskScheduler(
            self.controller,
            SchedulerEvents(self.clock, [self.sink]),
            Correlation("run-1"),
            self.clock.monotonic,
            self.wake,
        )

    def wake(self) -> None:
        for run in self.runs:
            run.wake()

    def graph(
        self,
        nodes: Nodes,
        body: Body,
        judge: Judge | None = None,
        group: str = "table:reviews",
        request: SchedulerResourceRequest = ASYNC,
        gates: Mapping[str, str] | None = None,
        **options: Any,
    ) -> GraphRun:
        """A graph whose nodes are `(…, column)`, or names of columns."""
        spec = TaskGroupSpec(group)

        def make(node: Any) -> SchedulableTask:
            part = node[-1] if isinstance(node, tuple) else node
            gate = (gates or {}).get(part)
            return SchedulableTask(node, None, spec, request, gate, part=part)

        tracker = CompletionTracker(nodes, make)
        judge = judge or self.by_policy()
        run = GraphRun(tracker, body, judge, self.scheduler, "run-1", **options)
        self.runs.append(run)
        return run

    def by_policy(self, attempts_max: int = 3) -> RetryJudge:
        return RetryJudge(RetryPolicy(), attempts_max, self.clock.now, lambda: 0.5)

    async def go(self, run: GraphRun) -> CompletionSnapshot:
        return await run.run(self.scheduler.turn)

    def spawn(self, run: GraphRun) -> asyncio.Task[CompletionSnapshot]:
        return asyncio.get_running_loop().create_task(self.go(run))

    def assert_sound(self) -> None:
        assert self.controller.leases == 0, self.controller
        assert not len(self.scheduler.queue)
        assert not self.scheduler._owners
        assert self.controller.limit(SUBMISSION) == 1_000
        assert_accounted(self.sink.events)
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert all(timer.cancelled() for timer in timers)


def node_of(task: SchedulableTask) -> Any:
    return task.task_id


class Bodies:
    """Notes when each task began, and lets it end as it is told to."""

    def __init__(self, desk: Desk, seconds: float = 1.0) -> None:
        self._clock = desk.clock
        self._seconds = seconds
        self.begun: list[tuple[float, Any]] = []
        self.ended: list[tuple[float, Any]] = []
        self.errors: dict[Any, list[BaseException]] = {}  # of its first starts

    async def __call__(self, task: SchedulableTask) -> None:
        node = task.task_id
        self.begun.append((self._clock.monotonic(), node))
        await self._clock.sleep(self._seconds)
        if self.errors.get(node):
            raise self.errors[node].pop(0)
        self.ended.append((self._clock.monotonic(), node))

    def starts(self, node: Any) -> list[float]:
        return [at for at, one in self.begun if one == node]


def cells(rows: int, *columns: str, group: int = 0) -> dict[tuple[int, int, str], list[Hashable]]:
    """Rows whose columns need each other in turn."""
    return {
        (group, row, column): [(group, row, columns[n - 1])] if n else []
        for row in range(rows)
        for n, column in enumerate(columns)
    }


def refused(seconds: float) -> ProviderThrottled:
    return ProviderThrottled("The provider refuses.", 429, retry_after=seconds)


# ── What follows an error ─────────────────────────────────────────────────────────────────────


def test_a_refusal_is_waited_out_exactly_and_costs_no_attempt_while_others_go_on() -> None:
    async def main() -> None:
        desk = Desk(slots=1)
        bodies = Bodies(desk)
        bodies.errors[0, 0, "review"] = [refused(7.0), refused(3.0), refused(60.0)]
        run = desk.graph(cells(4, "review"), bodies, desk.by_policy(attempts_max=1))

        snapshot = await desk.go(run)

        assert snapshot.complete == 4
        assert bodies.starts((0, 0, "review")) == [0.0, 8.0, 12.0, 73.0]
        assert [at for at, (_, row, _) in bodies.begun if row] == [1.0, 2.0, 3.0]
        deferred = desk.sink.of(Kind.RETRY_DEFERRED)
        assert [event.numbers for event in deferred] == [
            {"after_seconds": 7.0},
            {"after_seconds": 3.0},
            {"after_seconds": 60.0},
        ]
        assert len(desk.sink.of(Kind.SALVAGE_REDISPATCHED)) == 3
        desk.assert_sound()

    run_virtual(main())


def test_a_failing_service_is_tried_again_ever_later_and_costs_no_attempt() -> None:
    async def main() -> None:
        desk = Desk()
        bodies = Bodies(desk, seconds=0.0)
        bodies.errors["review"] = [ProviderUnavailable("It is unhealthy.", 503) for _ in range(4)]

        snapshot = await desk.go(desk.graph({"review": []}, bodies, desk.by_policy(1)))

        assert snapshot.complete == 1
        starts = bodies.starts("review")
        waits = [then - now for now, then in pairwise(starts)]
        assert waits == sorted(waits)
        assert waits[0] >= 1.0
        desk.assert_sound()

    run_virtual(main())


@pytest.mark.parametrize("error", [KeyError("title"), TypeError("no"), AttributeError("x")])
def test_a_mistake_in_code_is_never_tried_again(error: Exception) -> None:
    async def main() -> None:
        desk = Desk()
        calls = 0

        async def body(task: SchedulableTask) -> None:
            nonlocal calls
            calls += 1
            raise error

        snapshot = await desk.go(desk.graph(cells(1_000, "title", "review"), body))

        assert (calls, snapshot.failed, snapshot.dropped) == (1_000, 1_000, 1_000)
        desk.assert_sound()

    run_virtual(main())


def test_a_lookup_that_a_lost_connection_has_caused_is_tried_again() -> None:
    async def main() -> None:
        desk = Desk()
        bodies = Bodies(desk)
        error = KeyError("reply")
        error.__cause__ = ConnectionResetError(104, "reset")
        bodies.errors["review"] = [error]

        assert (await desk.go(desk.graph({"review": []}, bodies))).complete == 1

    run_virtual(main())


def test_a_fault_of_its_own_is_charged_and_the_last_attempt_is_the_end() -> None:
    async def main() -> None:
        desk = Desk()
        bodies = Bodies(desk, seconds=0.0)
        bodies.errors["review"] = [refused(1.0), ValueError("1"), refused(1.0), ValueError("2")]

        snapshot = await desk.go(desk.graph({"review": []}, bodies, desk.by_policy(2)))

        assert (len(bodies.begun), snapshot.failed) == (4, 1)
        desk.assert_sound()

    run_virtual(main())


def test_a_judge_is_told_of_the_earlier_ends() -> None:
    async def main() -> None:
        desk = Desk()
        bodies = Bodies(desk, seconds=1.0)
        bodies.errors["review"] = [refused(2.0), refused(3.0), ValueError("x"), refused(4.0)]
        seen: list[Tries] = []

        def judge(task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
            seen.append(tries)
            if isinstance(error, ProviderThrottled):
                return Again(error.retry_after or 0.0, charged=False)
            return Again()

        await desk.go(desk.graph({"review": []}, bodies, judge))

        assert seen == [
            Tries(),
            Tries(charged=0, deferred=1, since_seconds=3.0),  # 2.0 and its own second
            Tries(charged=0, deferred=2, since_seconds=7.0),
            Tries(charged=1, deferred=0, since_seconds=None),
        ]

    run_virtual(main())


@pytest.mark.parametrize(
    "error", [AccountClosed("The account is empty.", 402), RuntimeError("no verdict")]
)
def test_a_fatal_error_ends_the_run_with_its_cause_and_what_runs_may_end(error: Exception) -> None:
    async def main() -> None:
        desk = Desk(slots=3)
        bodies = Bodies(desk)
        bodies.errors[0, 1, "review"] = [error]
        bodies.errors[0, 2, "review"] = [refused(5.0)]

        def judge(task: SchedulableTask, raised: Exception, tries: Tries) -> Verdict:
            if isinstance(raised, RuntimeError):
                raise raised  # the judge itself is broken
            return by_policy(task, raised, tries)

        by_policy = desk.by_policy()
        run = desk.graph(cells(100, "review"), bodies, judge)

        with pytest.raises(type(error)) as caught:
            await desk.go(run)

        assert caught.value is error
        assert len(bodies.begun) == 3
        assert bodies.ended == [(1.0, (0, 0, "review"))]
        assert desk.clock.monotonic() == 1.0
        desk.assert_sound()

    run_virtual(main())


def test_a_failure_that_is_accepted_lets_what_needs_it_run() -> None:
    async def main() -> None:
        desk = Desk()
        bodies = Bodies(desk)
        bodies.errors["review"] = [ValueError("prose")]
        nodes = {"review": [], "score": ["review"]}

        snapshot = await desk.go(desk.graph(nodes, bodies, lambda *_: Accepted()))

        assert (snapshot.complete, snapshot.failed) == (2, 0)
        assert bodies.starts("score") == [1.0]
        desk.assert_sound()

    run_virtual(main())


def test_a_failure_may_drop_what_runs_waits_and_is_put_off_of_its_row() -> None:
    async def main() -> None:
        desk = Desk(slots=4)
        bodies = Bodies(desk)
        row = ["bad", "runs", "later", "after", "done"]
        bodies.errors[0, "bad"] = [ValueError("1"), ValueError("2")]
        bodies.errors[0, "later"] = [refused(50.0)]
        nodes: dict[Any, list[Hashable]] = {(n, name): [] for n in (0, 1) for name in row}
        for n in (0, 1):
            nodes[n, "after"] = [(n, "runs"), (n, "done")]

        async def body(task: SchedulableTask) -> None:
            if task.task_id == (0, "runs"):
                try:
                    await desk.clock.sleep(100.0)
                except asyncio.CancelledError:
                    raise RuntimeError("nobody asks what became of it") from None
            await bodies(task)

        def judge(task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
            if tries.charged or not isinstance(error, ValueError):
                return Failed([(0, name) for name in row])
            return Again(after_seconds=3.0)

        def first(task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
            judged.append(type(error))
            if isinstance(error, ProviderThrottled):
                return Again(50.0, charged=False)
            return judge(task, error, tries)

        judged: list[type[Exception]] = []

        snapshot = await desk.go(desk.graph(nodes, body, first))

        # bad failed; runs was cancelled, later put off, after waiting: dropped; done had ended
        assert (snapshot.failed, snapshot.dropped, snapshot.complete) == (1, 3, 6)
        assert desk.clock.monotonic() < 20.0
        assert sorted(one.__name__ for one in judged) == [
            "ProviderThrottled",
            "ValueError",
            "ValueError",
        ]
        assert len(desk.sink.of(Kind.NON_RETRYABLE_DROPPED)) == 1
        desk.assert_sound()

    run_virtual(main())


# ── Early stop ────────────────────────────────────────────────────────────────────────────────


def test_early_stop_says_its_arithmetic_and_keeps_what_has_ended() -> None:
    async def main() -> None:
        desk = Desk(slots=4)
        calls = Counter[str]()

        async def body(task: SchedulableTask) -> None:
            _, row, column = node_of(task)
            calls[column] += 1
            await desk.clock.sleep(1.0)
            if column == "review" and row >= 20:
                raise KeyError(f"row {row}")

        def describe(error: BaseException) -> str:
            return f"{type(error).__name__} of {error}"

        run = desk.graph(
            cells(1_000, "title", "review"), body, early_stop=EarlyStop(50, 0.5, describe)
        )
        with pytest.raises(TooManyFailures) as caught:
            await desk.go(run)

        # 20 good ones, then 30 bad ones: 30 > 0.5 × 50
        assert str(caught.value) == (
            "30 of the last 50 cells of column 'review' failed for good, which is more than 50% "
            "of them, so nothing more is started; the first cause was KeyError of 'row 20'."
        )
        assert isinstance(caught.value.__cause__, KeyError)
        assert calls["review"] <= 50 + 4
        desk.assert_sound()

    run_virtual(main())


@pytest.mark.parametrize(
    ("fates", "stops_at"),
    [
        ("x" * 9, None),  # too few of them
        ("x" * 30, 10),
        (".x" * 30, None),  # half is not more than half
        ("....." + "x" * 30, 11),  # 6 of the last 10
        ("x" * 5 + "." * 30 + "x" * 30, 41),  # those of long ago count no more
    ],
)
def test_early_stop_needs_volume_and_looks_at_the_last_ones(
    fates: str, stops_at: int | None
) -> None:
    stop = EarlyStop(window=10, share=0.5)
    error = ValueError("prose")

    found = None
    for n, fate in enumerate(fates, 1):
        assert stop.ended("another", None) is None
        if stop.ended("judge", error if fate == "x" else None) is not None:
            found = n
            break

    assert found == stops_at


def test_early_stop_does_not_quote_the_first_cause_unless_it_is_told_to() -> None:
    stop = EarlyStop(window=1)

    stopped = stop.ended("review", ValueError("the answer was: 42"))

    assert "was ValueError." in str(stopped)
    assert "42" not in str(stopped)


def test_early_stop_counts_over_the_graphs_that_share_it() -> None:
    async def main() -> None:
        desk = Desk()
        stop = EarlyStop(window=50)
        failing = {(group, row, "review") for group in range(9) for row in range(30)}

        async def body(task: SchedulableTask) -> None:
            if task.task_id in failing:
                raise KeyError("no")

        await desk.go(desk.graph(cells(30, "review", group=0), body, early_stop=stop))
        with pytest.raises(TooManyFailures, match="50 of the last 50"):
            await desk.go(desk.graph(cells(30, "review", group=1), body, early_stop=stop))

    run_virtual(main())


@pytest.mark.parametrize(("window", "share"), [(0, 0.5), (10, 1.0), (10, -0.1)])
def test_an_early_stop_that_stops_nothing_or_everything_is_refused(
    window: int, share: float
) -> None:
    with pytest.raises(UsageError, match="Early stop needs a window of at least 1"):
        EarlyStop(window, share)


# ── Many graphs on one scheduler ──────────────────────────────────────────────────────────────


def test_a_scheduler_serves_graphs_one_after_the_other_and_at_once() -> None:
    async def main() -> None:
        desk = Desk(slots=4)
        bodies = Bodies(desk)
        first = await desk.go(desk.graph(cells(4, "review"), bodies))
        assert (first.complete, desk.clock.monotonic()) == (4, 1.0)

        runs = [desk.graph(cells(8, "review", group=n), bodies, group=f"t{n}") for n in (1, 2)]
        running = [desk.spawn(run) for run in runs]
        await asyncio.sleep(1.5)
        began = Counter(group for _, (group, _, _) in bodies.begun)
        assert (began[1], began[2]) == (6, 2)  # it was alone at first, then they share
        snapshots = [await one for one in running]

        assert [snapshot.complete for snapshot in snapshots] == [8, 8]
        assert desk.clock.monotonic() == 5.0  # 4 + 16 tasks of a second, 4 at a time
        desk.assert_sound()

    run_virtual(main())


def test_the_end_of_one_graph_whatever_it_is_leaves_the_others_alone() -> None:
    async def main() -> None:
        desk = Desk(slots=6)
        bodies = Bodies(desk)
        bodies.errors[1, 1, "review"] = [AccountClosed("The key is dead.", 401)]
        graphs = [desk.graph(cells(20, "review", group=n), bodies, group=f"t{n}") for n in range(4)]
        running = [desk.spawn(run) for run in graphs]
        await asyncio.sleep(1.5)
        graphs[2].stop()
        running[3].cancel()

        ends = await asyncio.gather(*running, return_exceptions=True)

        assert isinstance(ends[0], CompletionSnapshot)
        assert ends[0].complete == 20
        assert isinstance(ends[1], AccountClosed)
        assert isinstance(ends[2], CompletionSnapshot)
        assert ends[2].complete < 20
        assert isinstance(ends[3], asyncio.CancelledError)
        desk.assert_sound()

    run_virtual(main())


def test_a_task_with_the_id_of_another_graphs_is_refused_and_told_to_its_own() -> None:
    async def main() -> None:
        desk = Desk(slots=1)
        bodies = Bodies(desk)
        ours, theirs = (
            desk.graph(cells(3, "review"), bodies),
            desk.graph(cells(3, "review"), bodies),
        )
        refusals: list[str] = []

        def judge(task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
            refusals.append(str(error))
            return Ends(error)

        theirs = desk.graph(cells(3, "review"), bodies, judge)
        running = [desk.spawn(ours), desk.spawn(theirs)]
        ends = await asyncio.gather(*running, return_exceptions=True)

        assert isinstance(ends[0], CompletionSnapshot)
        assert ends[0].complete == 3
        assert isinstance(ends[1], UsageError)
        assert refusals[0].startswith("Two tasks that are to run at once have the id (0, 1,")
        desk.assert_sound()

    run_virtual(main())


def test_a_task_with_the_id_of_another_graphs_may_be_put_off() -> None:
    async def main() -> None:
        desk = Desk(slots=1)
        bodies = Bodies(desk)
        running = [desk.spawn(desk.graph(cells(3, "review"), bodies))]
        nodes: Nodes = {**cells(3, "review"), (1, 0, "written"): [Finished((0, 0, "review"))]}
        later = desk.graph(nodes, bodies, lambda *_: Again(10.0))
        running.append(desk.spawn(later))
        snapshots = [await one for one in running]

        assert [snapshot.complete for snapshot in snapshots] == [3, 4]
        assert len(desk.sink.of(Kind.RETRY_DEFERRED)) == 2
        assert desk.controller.leases == 0

    run_virtual(main())


def test_a_graph_that_waits_for_the_slots_of_another_costs_nothing() -> None:
    async def main() -> None:
        desk = Desk(slots=1)
        bodies = Bodies(desk)
        looks = 0
        queued = desk.scheduler.queued

        def counted(attachment: Attachment) -> list[SchedulableTask]:
            nonlocal looks
            looks += 1
            return queued(attachment)

        desk.scheduler.queued = counted  # type: ignore[method-assign]
        graphs = [desk.graph(cells(50, "review", group=n), bodies) for n in range(2)]
        await asyncio.gather(*map(desk.go, graphs))

        assert len(bodies.ended) == 100
        assert looks <= len(graphs)  # when they are detached

    run_virtual(main())


def test_graphs_leave_nothing_behind_on_a_scheduler_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bottleneck, "HELD_MAX", 8)

    async def main() -> None:
        desk = Desk(slots=8)

        async def body(task: SchedulableTask) -> None: ...

        async def serve(first: int) -> int:
            for group in range(first, first + 150):
                nodes = cells(4, "title", "review", group=group)
                request = SchedulerResourceRequest({"async": 1})  # of each its own
                desk.runs = [desk.graph(nodes, body, request=request)]
                await desk.go(desk.runs[0])
                desk.sink.events.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            grown = -await serve(0) + await serve(150)
        finally:
            tracemalloc.stop()
        assert grown < 30_000  # bytes, over 150 graphs of 8 nodes
        assert desk.scheduler.bottleneck.used(()).keys() == {SUBMISSION, "async"}

    run_virtual(main())


def test_what_an_attached_graph_lends_is_there_until_it_ends() -> None:
    async def main() -> None:
        desk = Desk(slots=9, submissions=2)
        bodies = Bodies(desk)
        run = desk.graph(cells(6, "review"), bodies, lends={SUBMISSION: 1})
        running = desk.spawn(run)
        await asyncio.sleep(0.5)
        assert len(bodies.begun) == 3
        desk.scheduler.set_limit(SUBMISSION, 1)  # and one is lent
        await running

        assert [at for at, _ in bodies.begun] == [0.0] * 3 + [1.0] * 2 + [2.0]
        assert desk.controller.limit(SUBMISSION) == 1

    run_virtual(main())


def test_a_body_runs_in_the_context_of_the_run() -> None:
    who: ContextVar[str] = ContextVar("who")

    async def main() -> None:
        desk = Desk()
        seen: list[str] = []

        async def body(task: SchedulableTask) -> None:
            seen.append(who.get())
            who.set("a body")  # and nobody else hears of it

        async def attempt(name: str, run: GraphRun) -> None:
            who.set(name)
            await desk.go(run)

        one, two = (desk.graph(cells(2, "review", group=n), body) for n in (1, 2))
        await asyncio.gather(attempt("one", one), attempt("two", two))

        assert sorted(seen) == ["one", "one", "two", "two"]

    run_virtual(main())


# ── Columns beside each other ─────────────────────────────────────────────────────────────────


def test_the_first_answers_are_judged_while_others_are_still_written() -> None:
    async def main() -> None:
        desk = Desk(slots=4)
        bodies = Bodies(desk)

        await desk.go(desk.graph(cells(40, "review", "judge"), bodies))

        columns = [column for _, (_, _, column) in bodies.ended]
        assert columns.index("judge") <= 8  # of 80
        for n in range(8, 80, 8):
            assert abs(columns[:n].count("review") - columns[:n].count("judge")) <= 8
        assert desk.clock.monotonic() == 20.0  # 80 seconds of work in 4 slots: nothing was idle
        desk.assert_sound()

    run_virtual(main())


class CoolDown:
    """One of two providers cools down until a moment."""

    def __init__(self, until: float) -> None:
        self._clock = VirtualClock()
        self._until = until

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        rest = max(0.0, self._until - self._clock.monotonic()) if key == "tired" else 0.0
        return PressureSnapshot(limit=9, cooldown_seconds=rest)


def test_a_column_whose_provider_cools_down_holds_no_slot_of_the_others() -> None:
    async def main() -> None:
        inner = BoundedBorrowTaskAdmissionPolicy()
        desk = Desk(4, policy=ProviderAwareTaskAdmissionPolicy(inner, CoolDown(until=20.0)))
        bodies = Bodies(desk)
        gates = {"summary": "tired", "review": "lively"}
        nodes = {**cells(40, "summary"), **cells(40, "review")}

        await desk.go(desk.graph(nodes, bodies, gates=gates))

        ended = {column: [at for at, one in bodies.ended if one[2] == column] for column in gates}
        assert max(ended["review"]) == 10.0  # 40 seconds of work in 4 slots, as if it were alone
        assert (min(ended["summary"]), max(ended["summary"])) == (21.0, 30.0)
        desk.assert_sound()

    run_virtual(main())


# ── Graphs that grow ──────────────────────────────────────────────────────────────────────────


def test_row_groups_join_a_running_graph_and_ended_ones_are_let_go() -> None:
    async def main() -> None:
        desk = Desk(slots=8)
        runs: list[GraphRun] = []
        kept: list[int] = []
        groups = 60

        async def body(task: SchedulableTask) -> None:
            await desk.clock.sleep(0.1)
            if task.part == "written":
                group = node_of(task)[0]
                if group + 2 < groups:
                    runs[0].add(row_group(group + 2))
                kept.append(len(runs[0]._tracker))

        def row_group(group: int) -> Nodes:
            nodes: dict[Any, Collection[Hashable]] = {**cells(4, "title", "review", group=group)}
            nodes[group, "written"] = [Finished((group, row, "review")) for row in range(4)]
            return nodes

        run = desk.graph({**row_group(0), **row_group(1)}, body)
        runs.append(run)
        snapshot = await desk.go(run)

        assert snapshot.complete == groups * 9
        assert max(kept) <= 4 * 9  # of 540
        desk.assert_sound()

    run_virtual(main())


# ── Against a slow model ──────────────────────────────────────────────────────────────────────

FATES = ["good", "good", "good", "again", "put off", "bad", "accepted", "unknown"]


class Plan:
    """What each node is to do, in the order in which batches join."""

    def __init__(self, batches: list[dict[int, list[Hashable]]], fates: list[str]) -> None:
        self.batches = batches
        self.nodes = {node: needs for batch in batches for node, needs in batch.items()}
        self.fates = dict(zip(self.nodes, fates, strict=True))
        self.grows = min(self.nodes) - 1  # a node that lets the later batches join

    def shifted(self, by: int) -> Plan:
        """The same with other ids."""

        def moved(need: Any) -> Hashable:
            return Finished(moved(need.node)) if isinstance(need, Finished) else need + by

        batches = [
            {node + by: [moved(need) for need in needs] for node, needs in batch.items()}
            for batch in self.batches
        ]
        return Plan(batches, [*self.fates.values()])

    def ends(self) -> dict[int, str]:
        """How every node must end, by looking at all of it."""
        ends: dict[int, str] = {}
        for node in sorted(self.nodes):  # needs have lower numbers
            needs = self.nodes[node]
            if any(not isinstance(one, Finished) and ends[one] != "complete" for one in needs):  # type: ignore[index]
                ends[node] = "dropped"
            else:
                ends[node] = "failed" if self.fates[node] in ("bad", "unknown") else "complete"
        return ends


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    batches: list[dict[int, list[Hashable]]] = []
    count = 0
    for _ in range(draw(st.integers(1, 3))):
        batch: dict[int, list[Hashable]] = {}
        first = count
        for _ in range(draw(st.integers(1, 10))):
            needs = (
                draw(st.sets(st.integers(first, count - 1), max_size=3)) if count > first else ()
            )
            batch[count] = [Finished(one) if draw(st.booleans()) else one for one in sorted(needs)]
            count += 1
        batches.append({node: batch[node] for node in draw(st.permutations([*batch]))})
    fates = draw(st.lists(st.sampled_from(FATES), min_size=count, max_size=count))
    return Plan(batches, fates)


class Played:
    """A plan on a scheduler: who began and ended, how often, in which order."""

    def __init__(self, desk: Desk, plan: Plan, seconds: list[float]) -> None:
        self.desk, self.plan, self._seconds = desk, plan, seconds
        self.starts = Counter[int]()
        self.settled: list[int] = []  # in the order of their ends for good
        self.running: set[int] = set()
        nodes = {plan.grows: [], **plan.batches[0]}
        self.run = desk.graph(nodes, self.body, self.judge, early_stop=EarlyStop(999))

    async def body(self, task: SchedulableTask) -> None:
        node: int = node_of(task)
        if node == self.plan.grows:
            await self.grow()
            return
        assert node not in self.running
        self.starts[node] += 1
        self.running.add(node)
        try:
            await self.desk.clock.sleep(self._seconds[node % len(self._seconds)])
        finally:
            self.running.discard(node)
        fate = self.plan.fates[node]
        if fate == "put off" and self.starts[node] < 3:
            raise refused(2.5)
        if fate == "again" and self.starts[node] < 2:
            raise ValueError("once")
        if fate in ("bad", "accepted"):
            raise KeyError(node)
        if fate == "unknown":
            raise asyncio.CancelledError
        self.settled.append(node)

    def judge(self, task: SchedulableTask, error: Exception, tries: Tries) -> Verdict:
        node: int = node_of(task)
        fate = self.plan.fates[node]
        assert tries.charged + tries.deferred == self.starts[node] - 1
        if fate == "put off":
            assert (tries.since_seconds is None) == (not tries.deferred)
            return Again(2.5, charged=False)
        if fate == "again":
            return Again()
        self.settled.append(node)
        return Accepted() if fate == "accepted" else Failed()

    async def grow(self) -> None:
        for batch in self.plan.batches[1:]:
            await self.desk.clock.sleep(0.7)
            self.run.add(batch)

    def assert_sound(self) -> None:
        assert not self.running
        assert max(Counter(self.settled).values(), default=1) == 1, "a node has ended twice"


HARD = settings(
    max_examples=1_500 if SOAK else 120,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=[HealthCheck.too_slow],
)
SECONDS = st.lists(st.sampled_from([0.0, 0.3, 1.0, 4.0]), min_size=1, max_size=7)


@HARD
@given(plan=plans(), seconds=SECONDS, slots=st.integers(1, 5), seed=st.none() | st.integers(0, 9))
def test_every_node_ends_once_as_a_slow_look_at_the_whole_graph_says(
    plan: Plan, seconds: list[float], slots: int, seed: int | None
) -> None:
    async def main() -> None:
        desk = Desk(slots)
        played = Played(desk, plan, seconds)
        snapshot = await desk.go(played.run)
        expected = plan.ends()

        ends = Counter(expected.values())
        assert snapshot == CompletionSnapshot(
            waiting=0,
            ready=0,
            enqueued=0,
            complete=ends["complete"] + 1,  # with the one that grows
            failed=ends["failed"],
            dropped=ends["dropped"],
        )
        for node, end in expected.items():
            tries = {"put off": 3, "again": 2}.get(plan.fates[node], 1)
            assert played.starts[node] == (0 if end == "dropped" else tries), node
        order = {node: n for n, node in enumerate(played.settled)}
        for node, needs in plan.nodes.items():
            for need in needs:
                needed = need.node if isinstance(need, Finished) else need
                if node in order and needed in order:
                    assert order[needed] < order[node]
        played.assert_sound()
        desk.assert_sound()

    run_virtual(main(), seed)


@HARD
@given(
    plan=plans(),
    other=plans(),
    seconds=SECONDS,
    at=st.floats(0.0, 12.0),
    stops=st.booleans(),
)
def test_a_run_that_is_cut_short_leaves_nothing_and_the_other_one_whole(
    plan: Plan, other: Plan, seconds: list[float], at: float, stops: bool
) -> None:
    async def main() -> None:
        desk = Desk(2)
        cut, whole = Played(desk, plan, seconds), Played(desk, other.shifted(1_000), seconds)
        running = [desk.spawn(cut.run), desk.spawn(whole.run)]
        await asyncio.sleep(at)
        if stops:
            cut.run.stop()
        else:
            running[0].cancel()
        ends = await asyncio.gather(*running, return_exceptions=True)

        assert isinstance(ends[0], asyncio.CancelledError | CompletionSnapshot)
        assert isinstance(ends[1], CompletionSnapshot)
        assert ends[1].complete == 1 + [*other.ends().values()].count("complete")
        cut.assert_sound()
        whole.assert_sound()
        desk.assert_sound()

    run_virtual(main())

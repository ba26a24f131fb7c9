# SPDX-License-Identifier: Apache-2.0
"""Is exactly that ready whose needs have ended, whatever is repeated, retried, dropped or added?"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import UsageError
from penstock.model.task import (
    ReadinessSource,
    SchedulableTask,
    SchedulerResourceRequest,
    TaskGroupSpec,
)
from penstock.planning.completion import CompletionSnapshot, CompletionTracker, Finished

GROUP = TaskGroupSpec("g")
REQUEST = SchedulerResourceRequest()
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def make(node: Hashable) -> SchedulableTask:
    return SchedulableTask(node, f"payload of {node}", GROUP, REQUEST)


def track(nodes: Mapping[Any, list[Any]]) -> CompletionTracker:
    return CompletionTracker(nodes, make)


def ready(tracker: CompletionTracker) -> list[Hashable]:
    return [task.task_id for task in tracker.ready_frontier()]


def end(tracker: CompletionTracker, *nodes: Hashable) -> None:
    for node in nodes:
        tracker.mark_enqueued([node])
        tracker.mark_complete(make(node))


def test_it_is_a_readiness_source() -> None:
    source: ReadinessSource = track(DIAMOND)

    assert len(source.ready_frontier()) == 1


def test_what_needs_nothing_is_ready_at_once_in_the_order_of_the_graph() -> None:
    assert ready(track({"b": [], "a": [], "c": ["a"]})) == ["b", "a"]


def test_the_frontier_shows_a_task_until_it_is_acknowledged() -> None:
    tracker = track(DIAMOND)

    assert ready(tracker) == ready(tracker) == ["a"]
    tracker.mark_enqueued(["a"])
    assert ready(tracker) == []


def test_only_what_was_accepted_leaves_the_frontier() -> None:
    tracker = track({"a": [], "b": [], "c": []})

    tracker.mark_enqueued(["b"])

    assert ready(tracker) == ["a", "c"]


def test_a_node_is_ready_when_the_last_of_its_needs_has_ended() -> None:
    tracker = track(DIAMOND)

    end(tracker, "a")
    assert ready(tracker) == ["b", "c"]
    end(tracker, "c")
    assert ready(tracker) == ["b"]
    end(tracker, "b")
    assert ready(tracker) == ["d"]
    end(tracker, "d")
    assert tracker.is_finished


def test_a_need_may_be_named_twice() -> None:
    tracker = track({"a": [], "b": ["a", "a"]})

    end(tracker, "a")

    assert ready(tracker) == ["b"]


def test_every_verb_may_be_repeated() -> None:
    tracker = track(DIAMOND)

    for _ in range(3):
        tracker.mark_enqueued(["a", "a"])
        tracker.mark_complete(make("a"))
    tracker.mark_retry(make("a"))
    tracker.mark_failed(make("a"))

    assert ready(tracker) == ["b", "c"]
    assert tracker.snapshot() == CompletionSnapshot(1, 2, 0, 1, 0, 0)


def test_a_task_may_end_before_anybody_took_it_in() -> None:
    tracker = track(DIAMOND)

    tracker.mark_complete(make("a"))
    tracker.mark_complete(make("d"))
    end(tracker, "b", "c")

    assert ready(tracker) == []
    assert tracker.is_finished


def test_a_retry_is_visible_again_behind_what_is_there() -> None:
    tracker = track({"a": [], "b": [], "c": ["a"]})
    tracker.mark_enqueued(["a"])
    again = SchedulableTask("a", "second try", GROUP, REQUEST)

    tracker.mark_retry(again)
    tracker.mark_retry(again)

    assert ready(tracker) == ["b", "a"]
    assert tracker.ready_frontier()[1] is again
    end(tracker, "a")
    assert ready(tracker) == ["b", "c"]


def test_a_retry_of_what_was_never_taken_in_changes_nothing() -> None:
    tracker = track(DIAMOND)

    tracker.mark_retry(make("a"))
    tracker.mark_retry(make("d"))

    assert ready(tracker) == ["a"]


def test_what_needs_a_failed_task_is_dropped_with_all_that_needs_it() -> None:
    tracker = track({**DIAMOND, "e": ["d"], "f": []})
    end(tracker, "a")

    assert set(tracker.mark_failed(make("b"))) == {"d", "e"}
    assert tracker.mark_failed(make("b")) == ()
    end(tracker, "c", "f")

    assert tracker.snapshot() == CompletionSnapshot(0, 0, 0, 3, 1, 2)
    assert tracker.is_finished


def test_a_row_can_be_dropped_while_some_of_it_runs() -> None:
    tracker = track(DIAMOND)
    end(tracker, "a")
    tracker.mark_enqueued(["b"])

    assert set(tracker.drop(["a", "b", "c"])) == {"b", "c", "d"}  # "a" has ended
    tracker.mark_complete(make("b"))
    tracker.mark_retry(make("b"))

    assert ready(tracker) == []
    assert tracker.snapshot() == CompletionSnapshot(0, 0, 0, 1, 0, 3)


# ── Edges that wait for an end only ───────────────────────────────────────────────────────────


def test_a_node_that_waits_for_ends_is_ready_after_the_last_of_them_whatever_it_was() -> None:
    tracker = track({"a": [], "b": [], "c": ["b"], "all": [Finished("a"), Finished("c")]})
    end(tracker, "a")

    assert tracker.mark_failed(make("b")) == ("c",)  # and not what only waits for its end

    assert ready(tracker) == ["all"]


def test_one_failed_cell_does_not_drop_a_column_of_all_rows_nor_what_follows_in_other_rows() -> (
    None
):
    rows = range(4)
    tracker = track(
        {
            **{("made", row): [] for row in rows},
            "scored": [Finished(("made", row)) for row in rows],
            **{("judged", row): [("made", row), "scored"] for row in rows},
        }
    )
    tracker.mark_failed(make(("made", 2)))
    end(tracker, *(("made", row) for row in (0, 1, 3)))

    assert ready(tracker) == ["scored"]
    end(tracker, "scored")

    assert ready(tracker) == [("judged", row) for row in (0, 1, 3)]
    assert tracker.snapshot().dropped == 1


def test_a_node_may_need_the_success_of_one_that_it_waits_for_anyway() -> None:
    tracker = track({"a": [], "b": ["a", Finished("a")], "c": [], "d": ["c", Finished("c")]})

    tracker.mark_failed(make("a"))
    end(tracker, "c")

    assert ready(tracker) == ["d"]
    assert tracker.snapshot().dropped == 1


# ── Graphs that grow ──────────────────────────────────────────────────────────────────────────


def test_nodes_join_a_running_graph_behind_what_is_ready() -> None:
    tracker = track({"a": [], "b": ["a"]})
    end(tracker, "a")

    tracker.add({"c": [], "d": ["c", "b"], "e": [Finished("b")]})

    assert ready(tracker) == ["b", "c"]
    end(tracker, "b", "c")
    assert ready(tracker) == ["e", "d"]


def test_what_joins_finds_the_ends_of_what_it_needs() -> None:
    tracker = track({"a": [], "b": [], "c": ["a"], "open": []})
    end(tracker, "b")
    tracker.mark_failed(make("a"))

    added: dict[str, list[Any]] = {
        "w": ["b"],
        "x": ["a"],
        "y": ["x"],
        "z": [Finished("a"), Finished("c")],
    }

    assert set(tracker.add(added)) == {"x", "y"}
    assert ready(tracker) == ["open", "w", "z"]
    assert tracker.snapshot() == CompletionSnapshot(0, 3, 0, 1, 1, 3)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"c": [], "a": []}, "'a' is in the graph already"),
        ({"c": ["d"]}, "'c' needs 'd', which is not in the graph of 3 nodes"),
        ({"c": ["d"], "d": ["b", "c"]}, "in a circle: c → d → c"),
        ({"c": [Finished("d")], "d": ["c"]}, "in a circle: c → d → c"),
    ],
)
def test_what_cannot_join_is_refused_and_nothing_changes(
    more: dict[str, list[Any]], refusal: str
) -> None:
    tracker = track({"a": [], "b": ["a"]})

    with pytest.raises(UsageError, match=refusal):
        tracker.add(more)

    end(tracker, "a", "b")
    assert tracker.is_finished
    assert tracker.snapshot().complete == 2


def test_what_was_added_together_is_let_go_when_more_is_added_after_its_end() -> None:
    tracker = track({})
    for group in range(1_000):
        tracker.add({(group, 0): [], (group, 1): [(group, 0)]})
        if group % 2:  # two are open at a time
            for one in (group - 1, group):
                end(tracker, (one, 0), (one, 1))

    assert tracker.is_finished
    assert tracker.snapshot().complete == 2_000
    assert len(tracker) == 4  # the last two; the others are forgotten
    with pytest.raises(UsageError, match="no node of this graph"):
        tracker.mark_complete(make((0, 0)))


def test_tasks_are_made_once_and_when_they_are_ready() -> None:
    made = []

    def factory(node: str) -> SchedulableTask:
        made.append(node)
        return make(node)

    tracker = CompletionTracker(DIAMOND, factory)

    assert made == []
    first = tracker.ready_frontier()
    assert tracker.ready_frontier()[0] is first[0]
    assert made == ["a"]


def test_a_task_of_another_name_is_refused() -> None:
    tracker = CompletionTracker({"a": []}, lambda node: make("b"))

    with pytest.raises(UsageError, match="for node 'a' has the id 'b'"):
        tracker.ready_frontier()


@pytest.mark.parametrize(
    "call",
    [
        lambda tracker: tracker.mark_enqueued(["z"]),
        lambda tracker: tracker.mark_complete(make("z")),
        lambda tracker: tracker.mark_failed(make("z")),
        lambda tracker: tracker.mark_retry(make("z")),
        lambda tracker: tracker.drop(["a", "z"]),
    ],
)
def test_a_foreign_node_is_refused_and_nothing_changes(call: Any) -> None:
    tracker = track(DIAMOND)

    with pytest.raises(UsageError, match="'z' is no node of this graph"):
        call(tracker)

    assert ready(tracker) == ["a"]


def test_an_unknown_need_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as caught:
        track({"a": [], "b": ["a", "x"]})

    assert str(caught.value) == (
        "'b' needs 'x', which is not in the graph of 2 nodes. Add it, or remove the dependency."
    )


@pytest.mark.parametrize(
    ("nodes", "circle"),
    [
        ({"a": ["a"]}, "a → a"),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, "a → b → c → a"),
        ({"x": ["a"], "r": [], "a": ["r", "b"], "b": ["a"]}, "a → b → a"),
    ],
)
def test_a_circle_is_refused_by_its_members(nodes: dict[str, list[str]], circle: str) -> None:
    with pytest.raises(UsageError) as caught:
        track(nodes)

    assert str(caught.value) == (
        f"Tasks need each other in a circle: {circle}. Remove one of these needs."
    )


def test_a_long_circle_is_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        track({n: [(n + 1) % 100_000] for n in range(100_000)})

    assert "0 → 1 → 2 → 3 → 4 → … 99,991 more … → 99996 → 99997 → 99998 → 99999 → 0." in str(
        caught.value
    )


@pytest.mark.slow
def test_a_large_graph_of_long_chains_ends_in_order() -> None:
    """No recursion, and no end that looks at more than its own dependants."""
    count = 200_000
    nodes = {n: [n - 1] if n % 1_000 else [] for n in range(count)}
    tracker = track(nodes)
    ended = 0

    while not tracker.is_finished:
        frontier = tracker.ready_frontier()
        tracker.mark_enqueued(task.task_id for task in frontier)
        for task in frontier:
            tracker.mark_complete(task)
        ended += len(frontier)

    assert ended == count
    assert len(tracker.drop(range(10))) == 0


def test_a_failure_at_the_root_of_a_long_chain_drops_all_of_it() -> None:
    tracker = track({n: [n - 1] if n else [] for n in range(50_000)})

    assert len(tracker.mark_failed(make(0))) == 49_999


def test_it_tells_how_it_stands() -> None:
    tracker = track(DIAMOND)
    end(tracker, "a")

    assert repr(tracker) == "<CompletionTracker 1 of 4 ended, 2 ready>"


Needs = set[int | Finished]


class NaiveTracker:
    """The same by looking at everything, every time."""

    def __init__(self, nodes: Mapping[int, Needs]) -> None:
        self.nodes = dict(nodes)
        self.enqueued: set[int] = set()
        self.ends: dict[int, str] = {}

    def ready(self) -> set[int]:
        return {
            node
            for node, needs in self.nodes.items()
            if node not in self.ends
            and node not in self.enqueued
            and all(
                need.node in self.ends
                if isinstance(need, Finished)
                else self.ends.get(need) == "complete"
                for need in needs
            )
        }

    def drop_the_hopeless(self) -> set[int]:
        dropped: set[int] = set()
        while found := {
            node
            for node, needs in self.nodes.items()
            if node not in self.ends
            and any(
                not isinstance(need, Finished) and self.ends.get(need) in ("failed", "dropped")
                for need in needs
            )
        }:
            self.ends.update(dict.fromkeys(found, "dropped"))
            dropped |= found
        self.enqueued -= self.ends.keys()
        return dropped


@st.composite
def graphs(draw: st.DrawFn, first: int = 0, known: Collection[int] = ()) -> dict[int, Needs]:
    """Nodes from `first` on, which need some of each other and of those that are known."""
    there = [*known]
    nodes: dict[int, Needs] = {}
    for node in range(first, first + draw(st.integers(1, 8))):
        needs = draw(st.sets(st.sampled_from(there), max_size=3)) if there else set()
        nodes[node] = {Finished(one) if draw(st.booleans()) else one for one in needs}
        there.append(node)
    return {node: nodes[node] for node in draw(st.permutations([*nodes]))}


class TrackerAgainstTheNaiveOne(RuleBasedStateMachine):
    @initialize(nodes=graphs())
    def begin(self, nodes: dict[int, Needs]) -> None:
        self.tracker = CompletionTracker(nodes, make)
        self.naive = NaiveTracker(nodes)
        self.kept = [{*nodes}]

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        naive = self.naive
        self.kept = [together for together in self.kept if together - naive.ends.keys()]
        nodes = data.draw(graphs(len(naive.nodes), set().union(*self.kept)))
        self.kept.append({*nodes})
        naive.nodes.update(nodes)
        assert set(self.tracker.add(nodes)) == naive.drop_the_hopeless()
        assert len(self.tracker) == sum(map(len, self.kept))

    def pick(self, number: int) -> int:
        kept = sorted(set().union(*self.kept))
        return kept[number % len(kept)]

    @rule(numbers=st.lists(st.integers(0, 15), max_size=4))
    def enqueue(self, numbers: list[int]) -> None:
        nodes = [self.pick(number) for number in numbers]
        self.tracker.mark_enqueued(nodes)
        self.naive.enqueued |= self.naive.ready() & set(nodes)

    @rule(number=st.integers(0, 15))
    def complete(self, number: int) -> None:
        node = self.pick(number)
        self.tracker.mark_complete(make(node))
        self.naive.ends.setdefault(node, "complete")
        self.naive.enqueued.discard(node)

    @rule(number=st.integers(0, 15))
    def retry(self, number: int) -> None:
        node = self.pick(number)
        self.tracker.mark_retry(make(node))
        self.naive.enqueued.discard(node)

    @rule(number=st.integers(0, 15))
    def fail(self, number: int) -> None:
        node = self.pick(number)
        dropped = self.tracker.mark_failed(make(node))
        self.naive.ends.setdefault(node, "failed")
        assert set(dropped) == self.naive.drop_the_hopeless()
        assert len(set(dropped)) == len(dropped)

    @rule(numbers=st.lists(st.integers(0, 15), max_size=2))
    def drop(self, numbers: list[int]) -> None:
        nodes = {self.pick(number) for number in numbers}
        dropped = self.tracker.drop(sorted(nodes))
        expected = nodes - self.naive.ends.keys()
        self.naive.ends.update(dict.fromkeys(expected, "dropped"))
        assert set(dropped) == expected | self.naive.drop_the_hopeless()
        assert len(set(dropped)) == len(dropped)

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "naive"):
            return
        naive = self.naive
        on_frontier = naive.ready()
        ends = list(naive.ends.values())
        frontier = ready(self.tracker)
        assert set(frontier) == on_frontier
        assert len(frontier) == len(on_frontier)
        assert self.tracker.snapshot() == CompletionSnapshot(
            waiting=len(naive.nodes) - len(ends) - len(on_frontier) - len(naive.enqueued),
            ready=len(on_frontier),
            enqueued=len(naive.enqueued),
            complete=ends.count("complete"),
            failed=ends.count("failed"),
            dropped=ends.count("dropped"),
        )
        assert self.tracker.is_finished == (len(ends) == len(naive.nodes))


TestTrackerAgainstTheNaiveOne = TrackerAgainstTheNaiveOne.TestCase
TestTrackerAgainstTheNaiveOne.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None
)

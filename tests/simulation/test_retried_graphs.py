# SPDX-License-Identifier: Apache-2.0
"""Retries over random graphs: slices of any size put back what the model puts back at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.model.job import Edge, EdgeKind, JobState, finished
from penstock.stores.protocol import Store
from penstock.stores.sql import dependants
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing.clocks import ManualClock
from tests.contract.world import TROUBLE, StoreWorld
from tests.depth import SOAK
from tests.model.memory import MemoryStore

Graph = list[tuple[str, list[tuple[int, EdgeKind]]]]  # [task, edges to earlier ones]
EXAMPLES = {"in_process": 2_000 if SOAK else 40, "postgres": 300 if SOAK else 4}
TASKS = "xy"

links = st.tuples(st.integers(0, 20), st.sampled_from(EdgeKind))
tasks = st.sampled_from("xxxy")
roots: st.SearchStrategy[Graph] = st.lists(st.tuples(tasks, st.just([])), min_size=2, max_size=4)
followers = st.lists(st.tuples(tasks, st.lists(links, min_size=1, max_size=3)), max_size=8)
graphs = st.builds(lambda first, later: [*first, *later], roots, followers)
ends = st.lists(
    st.sampled_from([False, False, True]), min_size=12, max_size=12
)  # of a job that runs: is it well?
Rounds = list[tuple[str, list[bool]]]
rounds = st.lists(st.tuples(tasks, ends), min_size=1, max_size=2)


class Pair:
    """Owns a store and its model, in which the same graph lives. Compares them."""

    def __init__(self, world: StoreWorld, graph: Graph, n: int) -> None:
        self.worlds = [world, StoreWorld(MemoryStore(world.clock), world.clock)]
        self._tasks = {task: f"{task}-{n}" for task in TASKS}  # nothing of other examples
        self._keys: list[str] = []
        jobs = []
        for task, linked in graph:
            after = {self._keys[i % len(self._keys)]: kind for i, kind in linked if self._keys}
            key = f"k{n}-{len(self._keys)}"
            edges = [Edge(parent, kind) for parent, kind in after.items()]
            jobs.append(self.worlds[0].job(key, task=self._tasks[task], after=edges))
            self._keys.append(key)
        for world in self.worlds:
            world.add(*jobs)
        self._workers = [world.new_worker(list(self._tasks.values())) for world in self.worlds]

    def run(self, well: Sequence[bool]) -> None:
        """Let everything that may run end, wave by wave, well or in error."""
        fate = dict(zip(self._keys, well, strict=False))
        for world, worker in zip(self.worlds, self._workers, strict=True):
            while taken := world.take_all(worker):
                for key, job in sorted(taken.items()):
                    state = JobState.DONE if fate[key] else JobState.ERROR
                    world.ack(worker, job, state, error=None if fate[key] else TROUBLE)
            world.settle()
        self.compare()

    def retry(self, task: str) -> None:
        back = [world.retry_failed(self._tasks[task]) for world in self.worlds]
        assert back[0] == back[1]
        self.compare()

    def forget(self) -> None:
        """Leave nothing to the next example: walks pass by all that has failed."""
        world = self.worlds[0]
        world.cancel(*self._keys)
        world.settle()
        world.clock.advance(1.0)
        world.purge(world.clock.now_micros)

    def compare(self) -> None:
        ours, model = ([self._seen(world, key) for key in self._keys] for world in self.worlds)
        assert ours == model

    @staticmethod
    def _seen(world: StoreWorld, key: str) -> tuple[JobState, int]:
        view = world.view(key)
        return view.state, view.pending


@pytest.fixture(params=["in_process", "postgres"])
def sliced_world(request: pytest.FixtureRequest) -> Iterator[StoreWorld]:
    clock = ManualClock()
    if request.param == "in_process":
        store: Store = InProcessStore(clock)
    else:
        from penstock.stores.postgres.open import open_postgres

        url = request.getfixturevalue("empty_store")()
        store = open_postgres(url, durability="normal", server_time=lambda: clock.now_micros)
    yield StoreWorld(store, clock)
    store.close()


def test_retries_in_slices_put_back_what_one_slice_would(
    sliced_world: StoreWorld, request: pytest.FixtureRequest
) -> None:
    """Goal: the size of a slice decides nothing. Method: random graphs with both kinds of edges,
    ends and retries, in slices of one to four rows, beside the model, which knows no slices.
    """
    numbers = count()

    @settings(
        max_examples=EXAMPLES[request.node.callspec.params["sliced_world"]],
        derandomize=not SOAK,
        deadline=None,
        phases=list(Phase) if SOAK else [Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs, ends, rounds, st.integers(1, 4), st.integers(1, 12))
    def compare(graph: Graph, well: list[bool], later: Rounds, size: int, told: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dependants, "CHORE_SLICE", size)
            patch.setattr(dependants, "SETTLE_SLICE", told)
            pair = Pair(sliced_world, graph, next(numbers))
            pair.run(well)
            for task, well_now in later:
                pair.retry(task)
                pair.run(well_now)
        pair.forget()

    compare()


def test_a_dependant_waits_for_the_second_end_of_a_job_of_a_later_slice(
    sliced_world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`last` hangs on the first failure, and on the end of `side`, which the last one skipped. The
    caller dies after the first slice, and leases go on.
    """
    monkeypatch.setattr(dependants, "CHORE_SLICE", 1)
    world = sliced_world
    failing = [f"bad-{n}" for n in range(5)]
    world.add(*failing, world.job("side", after=[Edge(failing[-1])]))
    world.add(world.job("last", after=[Edge(failing[0]), finished("side")]))
    worker = world.new_worker()
    for key in failing:
        world.run(worker, key, JobState.ERROR)
    world.settle()

    monkeypatch.setattr(dependants, "SETTLE_SLICE", 1)
    begun = world.store.retry_failed(None, None).result()
    half = world.states(*failing)
    monkeypatch.setattr(dependants, "SETTLE_SLICE", 500)
    taken = world.take_all(worker)

    assert begun.more
    assert half == [JobState.QUEUED] + [JobState.ERROR] * 4
    assert set(taken) == set(failing)
    assert world.states("side", "last") == [JobState.WAITING] * 2
    assert world.view("last").pending == 2

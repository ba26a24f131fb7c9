# SPDX-License-Identifier: Apache-2.0
"""What may happen to plans, locks and slices while two stores are compared?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.model.job import START, JobId, JobKind, JobState, NewJob
from penstock.model.lease import CommitLevel, StageManifest
from penstock.model.plan import PlanRow
from penstock.stores.protocol import SliceRange, Store
from penstock.stores.store_future import Reply

T = TypeVar("T")

PLANS = ("p", "q")
RUNS = ("run-1", "run-2")
LOCKS = ("a", "b", "c")
ALWAYS = (0, 2**62)

plans = st.sampled_from(PLANS)
runs = st.sampled_from(RUNS)
slices = st.builds(
    StageManifest,
    dataset=st.sampled_from(["d", "e"]),
    at=st.integers(1, 3),
    version=st.sampled_from(["1", "2"]),
    basis=st.just(0),
    document=st.sampled_from(["1", "2"]),
    plan_id=plans,
    level=st.integers(0, 1),
    commit=st.booleans(),
)
levels = st.builds(CommitLevel, plans, st.integers(0, 1))


class DatasetRules(RuleBasedStateMachine):
    """Owns no state: plans and locks are known by their names."""

    def both(self, call: Callable[[Store], Reply[T]]) -> T | None:
        raise NotImplementedError

    @rule(
        names=st.lists(st.sampled_from(LOCKS), min_size=1, max_size=3),
        run=runs,
        gone=st.booleans(),
    )
    def take_locks(self, names: list[str], run: str, gone: bool) -> None:
        marks = [f"mark of {other}" for other in RUNS if gone]
        self.both(lambda store: store.take_locks(names, run, f"mark of {run}", 20.0, marks))

    @rule(run=runs, names=st.lists(st.sampled_from(LOCKS), max_size=2), beats=st.booleans())
    def beat_or_release(self, run: str, names: list[str], beats: bool) -> None:
        if beats:
            self.both(lambda store: store.beat_locks(run, 20.0))
        else:
            self.both(lambda store: store.release_locks(run, names))

    @rule(plan=plans, run=runs)
    def build(self, plan: str, run: str) -> None:
        """Begin a plan as a build does, or adopt it."""
        if not self._locked(run):
            return
        row = PlanRow(
            id=plan,
            app="app",
            digest=plan,
            run_id=run,
            root="root",
            document="{}",
            levels=1,
            jobs=1,
        )
        self.both(lambda store: store.add_plan(row))
        start = NewJob(
            key=f"build:{plan}:start",
            task=START,
            kind=JobKind.STEP,
            payload="{}",
            group="g",
            plan_id=plan,
        )
        self.both(lambda store: store.enqueue([start]))
        self.both(lambda store: store.begin_plan(plan, run))
        self.both(lambda store: store.adopt_plan(plan, run))

    def _locked(self, run: str) -> bool:
        """A plan is only begun by a run that holds some lock."""
        names = [name for name in LOCKS if name != "c"]
        self.both(lambda store: store.take_locks(names, run, f"mark of {run}", 20.0, []))
        held = self.both(lambda store: store.locks()) or []
        return any(lock.run_id == run for lock in held)

    @rule(plan=plans, how=st.sampled_from(["end", "abandon", "cancel"]))
    def stop(self, plan: str, how: str) -> None:
        if how == "end":
            self.both(lambda store: store.end_plan(plan))
        elif how == "abandon":
            self.both(lambda store: store.abandon_plan(plan))
        else:
            self.both(lambda store: store.cancel_plan(plan))

    @rule(limit=st.sampled_from([1, 3, 100]))
    def tidy(self, limit: int) -> None:
        self.both(lambda store: store.tidy_manifests(limit))


def seen_of_datasets(store: Store) -> dict[str, object]:
    """What two stores must agree on, without what they name as they like."""
    ranges = [SliceRange("d", 1, 2), SliceRange("e", 2, 3), SliceRange("d", 2, 3)]
    pages = [
        store.manifests("d", *ALWAYS, 2).result(),
        store.manifests("e", 2, 3, 9).result(),
        store.slices(ranges).result(),
    ]
    rows = [row for page in pages for row in page.rows]
    rows += [row for plan in PLANS for row in store.staged(plan).result()]
    marks = store.slice_marks("d", *ALWAYS, "1").result()
    return {
        "slices": [
            (row.dataset, row.at, row.version, row.seq, row.plan_id, row.level, row.document)
            for row in rows
        ],
        "numbers": [page.seq for page in pages],
        "marks": (list(marks.ats), list(marks.seqs), list(marks.outdated), marks.seq),
        "datasets": store.datasets().result(),
        "locks": store.locks().result(),
        "plans": [store.plan(plan).result() for plan in PLANS],
        "open plans": [plan.id for plan in store.open_plans().result()],
        "plan states": [store.plan_states(plan).result() for plan in PLANS],
        "unhappy": [
            job.key
            for plan in PLANS
            for job in store.plan_jobs(
                plan, [JobState.ERROR, JobState.SKIPPED, JobState.CANCELLED], JobId(0), 100
            ).result()
        ],
    }

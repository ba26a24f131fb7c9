# SPDX-License-Identifier: Apache-2.0
"""F61: very many groups cost what they must, and a strange name is a group like any other.

How long a lease takes among 100,000 lanes is measured: `python -m benchmarks scheduling`.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.measuring import fresh
from benchmarks.queue.workload import enqueue
from benchmarks.scheduling import lanes
from penstock import Context, Penstock
from penstock.admission.tasks.queue import FairTaskQueue
from penstock.errors import UsageError
from penstock.model.job import NAME_LENGTH_MAX, JobState
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from penstock.stores.protocol import GROUPS_PER_LEASE

STRANGE = {
    "right to left": "\u202eevil\u202c",
    "Arabic": "مجموعة",
    "one character": "x",
    "as long as may be": "ü" * NAME_LENGTH_MAX,
    "looks like SQL": "'; drop table jobs; --",
    "spaces alone": "   ",
    "joined emoji": "👩\u200d👩\u200d👧",
    "composed": "é",
    "decomposed": "e\u0301",
}


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("", "1 to 256 characters; got 0"),
        ("x" * 10 * 1024, "1 to 256 characters; got 10240"),
        ("a\nb", "control characters"),
        ("a\x00", "control characters"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_f61_a_name_that_no_store_could_bear_is_refused(
    tmp_path: Path, group: str, message: str
) -> None:
    app = Penstock("names", store=f"sqlite:///{tmp_path / 'names.db'}")

    @app.task()
    async def work(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match=message):
        app.enqueue(work.job().with_options(group=group))
    assert app.store.stats().result().states[JobState.QUEUED] == 0
    app.close()


def test_f61_strange_names_are_groups_of_their_own(tmp_path: Path) -> None:
    app = Penstock("names", store=f"sqlite:///{tmp_path / 'names.db'}")
    seen: list[str] = []

    @app.task()
    async def work(ctx: Context, group: str) -> None:
        seen.append(group)
        await asyncio.sleep(0)

    for group in STRANGE.values():
        for number in range(3):
            app.enqueue(work.job(group).with_options(group=group, key=f"{group}-{number}"))
    app.run(drain=True)
    kept = {app.store.job(f"{group}-0").result().group for group in STRANGE.values()}  # type: ignore[union-attr]
    app.close()

    assert kept == set(STRANGE.values())
    assert sorted(seen) == sorted([*STRANGE.values()] * 3)


def queue_of(groups: int, per_group: int = 2) -> FairTaskQueue:
    queue = FairTaskQueue()
    request = SchedulerResourceRequest()
    queue.enqueue(
        SchedulableTask((group, number), None, TaskGroupSpec(f"g{group}"), request)
        for number in range(per_group)
        for group in range(groups)
    )
    return queue


def test_f61_five_thousand_ready_groups_take_turns_and_each_is_asked_once() -> None:
    groups = 5_000
    queue = queue_of(groups)
    asked = 0

    def yes(*_: object) -> bool:
        nonlocal asked
        asked += 1
        return True

    order = []
    while (selection := queue.select_next(yes)) is not None:
        task = queue.commit(selection)
        assert task is not None
        order.append(task.group.key)

    assert len(set(order[:groups])) == len(set(order[groups:])) == groups
    assert asked == 2 * groups
    assert len(queue) == 0


def test_f61_memory_grows_with_the_groups_and_goes_with_them() -> None:
    sizes = []
    for groups in (500, 5_000):
        tracemalloc.start()
        queue = queue_of(groups, per_group=1)
        full = tracemalloc.get_traced_memory()[0]
        queue.discard_where(lambda _: True)
        assert queue.select_next(lambda *_: True) is None
        empty = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        sizes.append(full)
        assert empty < full / 4

    assert sizes[1] < 20 * sizes[0]  # ten times the groups; hash tables grow in steps
    assert sizes[1] / 5_000 < 4_096  # bytes for each group with one task


def test_f61_leases_among_thousands_of_lanes_go_round(tmp_path: Path) -> None:
    count, leases = 3_000, 30
    fresh(enqueue, tmp_path, path="lanes.db", count=count, groups=count)

    answer = fresh(lanes.lease, tmp_path, path="lanes.db", count=leases)

    assert answer["lanes"] == (leases + lanes.WARM_UP) * GROUPS_PER_LEASE

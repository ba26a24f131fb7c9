# SPDX-License-Identifier: Apache-2.0
"""Do groups of heavier tasks get more, and do the others get theirs?"""

from __future__ import annotations

from collections import Counter

from tests.contract.world import StoreWorld


def test_the_limit_is_divided_by_weight_between_groups(store_world: StoreWorld) -> None:
    store_world.add(
        *(store_world.job(f"a{n}", group="a", task="heavy") for n in range(100)),
        *(store_world.job(f"b{n}", group="b", task="light") for n in range(100)),
    )
    worker = store_world.new_worker(tasks=["heavy", "light"])

    batch = store_world.lease(worker, 40, weights={"heavy": 3})

    assert Counter(job.group for job in batch.jobs) == {"a": 30, "b": 10}


def test_weights_hold_over_many_small_calls(store_world: StoreWorld) -> None:
    store_world.add(
        *(store_world.job(f"a{n}", group="a", task="heavy") for n in range(40)),
        *(store_world.job(f"{group}{n}", group=group) for group in "bc" for n in range(40)),
    )
    worker = store_world.new_worker(tasks=["heavy", "work"])

    order = [
        job.group
        for _ in range(20)
        for job in store_world.lease(worker, 1, weights={"heavy": 3}).jobs
    ]

    assert Counter(order) == {"a": 12, "b": 4, "c": 4}
    assert Counter(order[:10]) == {"a": 6, "b": 2, "c": 2}


def test_a_group_of_several_tasks_weighs_as_the_heaviest(store_world: StoreWorld) -> None:
    store_world.add(
        *(store_world.job(f"a{n}", group="a", task="light") for n in range(50)),
        *(store_world.job(f"b{n}", group="b", task="light") for n in range(50)),
        *(store_world.job(f"h{n}", group="b", task="heavy") for n in range(50)),
    )
    worker = store_world.new_worker(tasks=["heavy", "light"])

    batch = store_world.lease(worker, 40, weights={"heavy": 3})

    assert Counter(job.group for job in batch.jobs) == {"a": 10, "b": 30}


def test_with_weights_everything_is_handed_out_in_the_end(store_world: StoreWorld) -> None:
    """Groups that run dry, and one that waits for a full key, keep nothing from the others."""
    store_world.caps = {"host:x": 1}
    store_world.add(
        store_world.job("a", group="a", task="heavy"),
        *(store_world.job(f"k{n}", group="k", limit_keys=["host:x"]) for n in range(2)),
        *(store_world.job(f"{group}{n}", group=group) for group in "bcdefghij" for n in range(5)),
    )
    worker = store_world.new_worker(tasks=["heavy", "work"])

    taken: list[str] = []
    for _ in range(200):
        batch = store_world.lease(worker, 2, weights={"heavy": 1_000})
        taken += [job.key for job in batch.jobs]
        if not batch.jobs and not batch.more:
            break

    assert len(taken) == len(set(taken)) == 47  # all but the second of the full key

# SPDX-License-Identifier: Apache-2.0
"""When is a slice of a dataset visible, and to whom?"""

from __future__ import annotations

from array import array

import pytest

from penstock.errors import EnqueueRefused
from penstock.model.job import Edge, JobState
from penstock.model.lease import CommitLevel, Effect, EnqueueJobs, SetCursor, Verdict
from penstock.stores.protocol import SliceRange
from tests.contract.dataset_words import (
    ALWAYS,
    builder,
    commit,
    draft,
    leased,
    running,
    seq,
    stage,
    take_locks,
    tidy,
    visible,
    write,
)
from tests.contract.world import StoreWorld, refusal


def _ats(world: StoreWorld, dataset: str = "prices") -> list[int]:
    return [row.at for row in visible(world, dataset)]


def test_a_store_has_one_name_for_its_roots(store_world: StoreWorld) -> None:
    store = store_world.store

    names = [store.own_name(proposed).result() for proposed in ("store-a", "store-b")]

    assert names == ["store-a", "store-a"]


def test_a_staged_slice_is_invisible_until_its_level_is_committed(store_world: StoreWorld) -> None:
    running(store_world)
    worker = builder(store_world)
    job = leased(store_world, worker)
    store_world.ack(worker, job, effects=[stage(2), stage(1, '{"n":1}', basis=0)])

    hidden = visible(store_world)
    staged = store_world.store.staged("p").result()
    before = seq(store_world)
    write(store_world, CommitLevel("p", 0))

    assert (hidden, before) == ([], 0)
    assert [(row.at, row.seq) for row in staged] == [(1, None), (2, None)]
    (one, two) = visible(store_world)
    assert (one.at, one.seq, one.document, one.job_id) == (1, 1, '{"n":1}', job.id)
    assert (one.plan_id, one.level, one.version, one.basis, two.at) == ("p", 0, "1", 0, 2)
    assert store_world.store.staged("p").result() == []
    assert seq(store_world) == 1


def test_a_commit_takes_one_level_of_one_plan(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")
    write(store_world, stage(1), stage(2, level=1), stage(3, plan="q"), CommitLevel("p", 0))

    assert _ats(store_world) == [1]
    assert [row.at for row in store_world.store.staged("p").result()] == [2]
    assert [row.at for row in store_world.store.staged("q").result()] == [3]


def test_a_level_is_committed_once(store_world: StoreWorld) -> None:
    running(store_world)
    commit(store_world, 1)

    again = write(store_world, CommitLevel("p", 0))

    assert again is Verdict.ACCEPTED
    assert seq(store_world) == 1
    assert [row.seq for row in visible(store_world)] == [1]


def test_an_empty_level_is_committed_as_well(store_world: StoreWorld) -> None:
    running(store_world)

    write(store_world, CommitLevel("p", 0))

    assert seq(store_world) == 1


def test_what_is_staged_into_a_committed_level_has_a_number_of_its_own(
    store_world: StoreWorld,
) -> None:
    running(store_world)
    commit(store_world, 1)

    write(store_world, stage(1, '"again"', basis=1), stage(2, basis=1))

    assert [(row.at, row.seq) for row in visible(store_world)] == [(1, 2), (2, 2)]
    assert visible(store_world)[0].document == '"again"'
    tidy(store_world)
    assert [(row.at, row.seq) for row in visible(store_world)] == [(1, 2), (2, 2)]


@pytest.mark.parametrize("tidied", [False, True])
def test_the_newest_commit_of_a_slice_counts(store_world: StoreWorld, tidied: bool) -> None:
    running(store_world, "p", "q")
    commit(store_world, 1, 2)
    if tidied:
        tidy(store_world)

    commit(store_world, 2, 3, plan="q")

    assert [(row.at, row.seq, row.plan_id) for row in visible(store_world)] == [
        (1, 1, "p"),
        (2, 2, "q"),
        (3, 2, "q"),
    ]


def test_a_slice_staged_again_replaces_the_first(store_world: StoreWorld) -> None:
    running(store_world)
    write(store_world, stage(1, '"old"'), stage(1, '"new"'))
    write(store_world, stage(2, '"old"'))
    write(store_world, stage(2, '"new"'))

    staged = store_world.store.staged("p").result()

    assert [(row.at, row.document) for row in staged] == [(1, '"new"'), (2, '"new"')]


def test_a_slice_may_be_visible_at_once(store_world: StoreWorld) -> None:
    running(store_world)
    write(store_world, stage(1, '"old"', commit=True), stage(2, commit=True))
    write(store_world, stage(1, '"new"', basis=1, commit=True))

    assert [(row.at, row.seq) for row in visible(store_world)] == [(1, 2), (2, 1)]
    assert visible(store_world)[0].document == '"new"'
    assert len(store_world.store.named_paths("prices", 0, 10).result()) == 2
    assert seq(store_world) == 2


def test_the_last_word_of_one_end_counts(store_world: StoreWorld) -> None:
    running(store_world)

    write(store_world, stage(1, '"old"', commit=True), stage(1, '"new"', commit=True))

    (row,) = visible(store_world)
    assert (row.document, row.seq) == ('"new"', 1)


def test_slices_and_levels_of_one_call_have_numbers_in_their_order(
    store_world: StoreWorld,
) -> None:
    running(store_world)
    worker = builder(store_world)
    jobs = [leased(store_world, worker) for _ in range(3)]
    effects: list[list[Effect]] = [
        [stage(1, commit=True)],
        [stage(2), CommitLevel("p", 0)],
        [stage(3, level=1, commit=True)],
    ]
    ends = [store_world.end(job, effects=some) for job, some in zip(jobs, effects, strict=True)]

    store_world.store.ack(worker, ends).result()

    assert [(row.at, row.seq) for row in visible(store_world)] == [(1, 1), (2, 2), (3, 3)]


def test_manifests_outlive_the_job_that_made_them(store_world: StoreWorld) -> None:
    running(store_world)
    commit(store_world, 1)
    store_world.store.end_plan("p").result()
    store_world.clock.advance(1.0)

    store_world.purge(store_world.clock.now_micros)
    tidy(store_world)
    store_world.purge(store_world.clock.now_micros)

    assert [(row.at, row.seq) for row in visible(store_world)] == [(1, 1)]
    assert store_world.store.plan("p").result() is None


# The fence


@pytest.mark.parametrize("state", ["unknown", "draft", "left", "ended", "abandoned"])
@pytest.mark.parametrize("level", [False, True])
def test_a_plan_that_does_not_run_writes_nothing(
    store_world: StoreWorld, state: str, level: bool
) -> None:
    store = store_world.store
    take_locks(store_world)
    if state != "unknown":
        draft(store_world)
    if state not in ("unknown", "draft"):
        store.begin_plan("p", "run-1").result()
    if state == "left":
        take_locks(store_world, run="run-2", gone=["mark of run-1"])
    if state == "ended":
        store.end_plan("p").result()
    if state == "abandoned":
        store.abandon_plan("p").result()
    worker = builder(store_world)
    job, other = leased(store_world, worker), leased(store_world, worker)
    effect: Effect = CommitLevel("p", 0) if level else stage(1, commit=True)
    new = EnqueueJobs((store_world.job("new"),))
    ends = [
        store_world.end(job, effects=[SetCursor("mark", "1"), new, effect]),
        store_world.end(other, effects=[SetCursor("other", "1")]),
    ]

    verdicts = store.ack(worker, ends).result()

    assert verdicts == [Verdict.STALE, Verdict.ACCEPTED]
    assert (visible(store_world), seq(store_world)) == ([], 0)
    assert store.staged("p").result() == []
    assert store.cursors(["mark", "other"]).result() == {"other": "1"}
    assert store.job("new").result() is None
    assert store_world.states(job.key, other.key) == [JobState.IN_PROGRESS, JobState.DONE]


def test_one_plan_that_does_not_run_fences_the_whole_end(store_world: StoreWorld) -> None:
    running(store_world)

    assert write(store_world, stage(1), stage(2, plan="other")) is Verdict.STALE

    assert store_world.store.staged("p").result() == []


def test_the_same_end_again_is_a_duplicate_even_of_a_plan_that_is_over(
    store_world: StoreWorld,
) -> None:
    running(store_world)
    worker = builder(store_world)
    job = leased(store_world, worker)
    store_world.ack(worker, job, effects=[stage(1, commit=True)])
    store_world.store.abandon_plan("p").result()

    assert store_world.ack(worker, job, effects=[stage(1, commit=True)]) is Verdict.DUPLICATE
    assert seq(store_world) == 1


def test_a_stale_end_writes_no_slice(store_world: StoreWorld) -> None:
    running(store_world)
    worker = builder(store_world)
    job = leased(store_world, worker)
    store_world.give_back(worker, [job])

    verdict = store_world.ack(worker, job, effects=[stage(1, commit=True), CommitLevel("p", 0)])

    assert (verdict, visible(store_world), seq(store_world)) == (Verdict.STALE, [], 0)


def test_a_refused_call_writes_no_slice(store_world: StoreWorld) -> None:
    running(store_world)
    worker = builder(store_world)
    job = leased(store_world, worker)
    bad = EnqueueJobs((store_world.job("d", after=[Edge("nowhere")]),))
    effects: list[Effect] = [stage(1, commit=True), CommitLevel("p", 0), bad]

    refusal(store_world.store.ack(worker, [store_world.end(job, effects=effects)]), EnqueueRefused)

    assert (visible(store_world), seq(store_world)) == ([], 0)
    assert store_world.ack(worker, job, effects=[stage(1, commit=True)]) is Verdict.ACCEPTED
    assert seq(store_world) == 1


# Reading


def test_marks_are_numbers_in_order_of_time(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")
    commit(store_world, 5, 1, 3)
    staged = [stage(3, plan="q", basis=1, version="2"), stage(4, plan="q", basis=1)]
    write(store_world, *staged, CommitLevel("q", 0))
    write(store_world, stage(9, dataset="other", commit=True), stage(7, plan="q", level=1))

    for _ in range(2):
        marks = store_world.store.slice_marks("prices", 1, 6, "1").result()
        assert (list(marks.ats), list(marks.seqs)) == ([1, 4, 5], [1, 2, 1])
        assert (list(marks.bases), list(marks.outdated)) == ([0, 1, 0], [3])
        assert marks.seq == 3
        assert isinstance(marks.ats, array)
        assert marks.ats.typecode == "q"
        tidy(store_world)


def test_marks_are_of_a_range(store_world: StoreWorld) -> None:
    running(store_world)
    commit(store_world, 1, 2, 3)

    marks = store_world.store.slice_marks("prices", 2, 3, "1").result()
    none = store_world.store.slice_marks("nothing", *ALWAYS, "1").result()

    assert list(marks.ats) == [2]
    assert (list(none.ats), list(none.outdated), none.seq) == ([], [], 1)


def test_slices_are_read_page_by_page(store_world: StoreWorld) -> None:
    running(store_world)
    commit(store_world, 1, 2, 3)

    first = store_world.store.manifests("prices", 1, 9, 2).result()
    second = store_world.store.manifests("prices", 3, 9, 2).result()

    assert ([row.at for row in first.rows], first.seq) == ([1, 2], 1)
    assert [row.at for row in second.rows] == [3]


def test_slices_of_many_ranges_are_one_read(store_world: StoreWorld) -> None:
    running(store_world)
    other = [stage(at, dataset="other") for at in (1, 2)]
    write(store_world, *(stage(at) for at in (1, 2, 3, 4)), *other, CommitLevel("p", 0))
    ranges = [
        SliceRange("prices", 3, 4),
        SliceRange("other", 2, 2),
        SliceRange("prices", 4, 9),
        SliceRange("nothing", 0, 9),
        SliceRange("prices", 1, 1),
    ]

    page = store_world.store.slices(ranges).result()

    found = [(row.dataset, row.at) for row in page.rows]
    assert found == [("other", 2), ("prices", 1), ("prices", 3), ("prices", 4)]
    assert page.seq == 1
    assert store_world.store.slices([]).result().rows == []


def test_datasets_are_told_with_what_is_committed(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")
    commit(store_world, 1, 2)
    commit(store_world, 2, 7, plan="q")
    write(store_world, stage(1, dataset="news", commit=True), stage(5, dataset="staged", level=1))

    news, prices = store_world.store.datasets().result()

    assert (news.name, news.slices, news.seq) == ("news", 1, 3)
    assert (prices.name, prices.slices) == ("prices", 3)
    assert (prices.first_at, prices.last_at, prices.seq) == (1, 7, 2)


def test_every_row_names_its_file_until_it_is_forgotten(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")
    commit(store_world, 1)
    commit(store_world, 1, plan="q")
    write(store_world, stage(2, '"staged"', level=1), stage(1, dataset="other"))
    named = store_world.store.named_paths

    everything = named("prices", 0, 10).result()
    first, second = everything[:2]

    assert [document for _, document in everything] == ['"p 1"', '"q 1"', '"staged"']
    assert named("prices", first[0], 1).result() == [second]
    tidy(store_world)
    left = [document for _, document in named("prices", 0, 10).result()]
    assert sorted(left) == ['"q 1"', '"staged"']


# Tidying


def test_tidying_changes_nothing_that_readers_see(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")
    commit(store_world, 1, 2, 3)
    commit(store_world, 2, 3, plan="q")
    write(store_world, stage(3, '"last"', level=1, basis=2, commit=True))
    before = visible(store_world), store_world.store.datasets().result()

    visited = tidy(store_world)

    assert (visible(store_world), store_world.store.datasets().result()) == before
    assert visited == 5
    assert len(store_world.store.named_paths("prices", 0, 10).result()) == 3
    assert tidy(store_world) == 0


def test_tidying_keeps_what_an_open_plan_has_staged(store_world: StoreWorld) -> None:
    running(store_world)
    write(store_world, stage(1))
    take_locks(store_world, "lock of p", run="run-2", gone=["mark of run-1"])

    assert tidy(store_world) == 0
    assert [row.at for row in store_world.store.staged("p").result()] == [1]


@pytest.mark.parametrize("abandoned", [False, True])
def test_tidying_forgets_what_a_plan_that_is_over_has_staged(
    store_world: StoreWorld, abandoned: bool
) -> None:
    running(store_world)
    write(store_world, stage(1), CommitLevel("p", 0), stage(2, level=1))
    if abandoned:
        store_world.store.abandon_plan("p").result()
    else:
        store_world.store.end_plan("p").result()

    assert tidy(store_world) == 2

    assert store_world.store.staged("p").result() == []
    assert _ats(store_world) == [1]
    assert len(store_world.store.named_paths("prices", 0, 10).result()) == 1

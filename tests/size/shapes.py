# SPDX-License-Identifier: Apache-2.0
"""Which shapes must a queue bear at size, and what must be true afterwards?"""

from __future__ import annotations

from itertools import pairwise

from penstock.model.job import JobState
from tests.size.yard import Yard

SPREAD_MOST = 10_000  # jobs that one acknowledgement may bring


def chain(yard: Yard, length: int) -> None:
    """Each job waits for the one before; they run in that order."""
    keys = [f"link-{n:06}" for n in range(length)]
    with yard.phase("enqueue a chain", length):
        yard.enqueue(yard.job(key, [f"link-{n - 1:06}"] if n else []) for n, key in enumerate(keys))
    with yard.phase("run a chain", length):
        yard.drain()
    yard.audit_done(keys)
    assert [key for key, _ in yard.starts] == keys


def broken_chain(yard: Yard, length: int, *, run: bool) -> None:
    """The first job of a chain fails: all others are skipped, and a retry brings them back.

    Whoever tells them, and whoever puts them back, is killed on the way.
    """
    keys = [f"link-{n:06}" for n in range(length)]
    yard.enqueue(yard.job(key, [f"link-{n - 1:06}"] if n else []) for n, key in enumerate(keys))
    yard.broken_keys.add(keys[0])
    yard.fail_first()
    assert 0 < yard.states()[JobState.SKIPPED] < length - 1
    yard.killed("settle", "settle.in_tx", 100 + length // 5)
    with yard.phase("skip a chain", yard.states()[JobState.WAITING]):
        yard.settle()
    assert yard.states() == {JobState.ERROR: 1, JobState.SKIPPED: length - 1}
    for before, key in list(pairwise(keys))[:: max(length // 500, 1)]:
        job = yard.store.job(key).result()
        assert job is not None
        assert job.last_error is not None
        how = "failed" if before == keys[0] else "skipped"
        assert job.last_error.message == f"upstream {how}: {before}"
    foreseen = yard.store.would_retry(None, None).result()
    yard.killed("retry", "revive.in_tx", 100 + length // 5)
    half = yard.states()
    assert half[JobState.QUEUED] == 1
    assert half[JobState.WAITING] > 0
    assert half[JobState.SKIPPED] > 0
    with yard.phase("put a chain back", half[JobState.SKIPPED]):
        yard.settle()
    assert yard.states() == {JobState.QUEUED: 1, JobState.WAITING: length - 1}
    assert (foreseen.failed, foreseen.dependants) == (1, length - 1)
    assert yard.store.check().result() == []
    if run:
        yard.starts.clear()
        fixed, yard.broken_keys = yard.broken_keys, set()
        yard.drain()
        assert [key for key, _ in yard.starts] == keys
        yard.broken_keys = fixed
        yard.audit_history()


def fan_out(yard: Yard, leaves: int) -> None:
    """Jobs bring forth others with their acknowledgements, as many as these may carry."""
    firsts = range(0, leaves, SPREAD_MOST)
    roots = [f"root-{first}" for first in firsts]
    for first, root in zip(firsts, roots, strict=True):
        count = min(SPREAD_MOST, leaves - first)
        yard.app.enqueue(yard.spread.job(first=first, count=count), key=root)
    with yard.phase("fan out and run", leaves + len(roots)):
        yard.drain()
    yard.audit_done([*roots, *(f"leaf-{n}" for n in range(leaves))])
    assert {key for key, _ in yard.starts[: len(roots)]} == set(roots)


def diamond(yard: Yard, width: int) -> None:
    """One job, many that wait for it, and one that waits for all of them."""
    middle = [f"middle-{n}" for n in range(width)]
    with yard.phase("enqueue a diamond", width + 2):
        yard.enqueue([yard.job("top")])
        yard.enqueue(yard.job(key, ["top"]) for key in middle)
        yard.enqueue([yard.job("bottom", middle)])
    with yard.phase("run a diamond", width + 2):
        yard.drain()
    yard.audit_done(["top", *middle, "bottom"])
    assert (yard.starts[0][0], yard.starts[-1][0]) == ("top", "bottom")


def broken_fan(yard: Yard, width: int) -> None:
    """A job with many dependants fails and is retried, then all are forgotten."""
    yard.enqueue([yard.job("top")])
    yard.enqueue(yard.job(f"middle-{n}", ["top"]) for n in range(width))
    yard.fail_first()
    with yard.phase("skip a fan", width):
        yard.settle()
    assert yard.states() == {JobState.ERROR: 1, JobState.SKIPPED: width}
    with yard.phase("put a fan back", width):
        assert yard.retry() == 1
    assert yard.states() == {JobState.QUEUED: 1, JobState.WAITING: width}
    yard.drain()
    assert yard.states() == {JobState.DONE: width + 1}
    with yard.phase("forget a fan", width + 1):
        assert yard.purge() == width + 1
    assert yard.store.check().result() == []


def stillborn(yard: Yard, count: int) -> None:
    """Jobs that wait for one that has failed are skipped as they come, a whole batch of them."""
    yard.enqueue([yard.job("top")])
    yard.fail_first()
    batch = [yard.job(f"child-{n}", ["top"]) for n in range(count)]
    with yard.phase("accept jobs to be skipped", count):
        yard.store.enqueue(batch).result()
    assert yard.states() == {JobState.ERROR: 1, JobState.SKIPPED: count}
    assert yard.store.check().result() == []


def ordered(yard: Yard, count: int) -> None:
    """Inside a group higher priorities go first, then what was due first; nothing is early."""
    jobs = [
        yard.job(f"job-{n:06}", priority=n * 7919 % 5, group=f"group-{n % 3}", delay=n % 4 * 0.05)
        for n in range(count)
    ]
    yard.enqueue(jobs)
    yard.clock_past(0.3)  # all are due: now only the order decides
    with yard.phase("run in order", count):
        yard.drain(slots=1)
    yard.audit_done(job.key for job in jobs)
    known = {job.key: job for job in jobs}
    for group in range(3):
        keys = [key for key, _ in yard.starts if known[key].group == f"group-{group}"]
        assert keys == sorted(keys, key=lambda key: (-known[key].priority, yard.due_at(key)))


def delayed(yard: Yard, count: int) -> None:
    """No job starts before it is due, whatever the others do."""
    yard.enqueue(yard.job(f"job-{n}", delay=n * 7919 % 100 * 0.01) for n in range(count))
    with yard.phase("run delayed jobs", count):
        yard.drain()
    yard.audit_done(f"job-{n}" for n in range(count))
    early = [key for key, at in yard.starts if at < yard.due_at(key)]
    assert not early, early[:5]

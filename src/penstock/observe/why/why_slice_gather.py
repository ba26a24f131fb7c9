# SPDX-License-Identifier: Apache-2.0
"""Where do the facts about a slice come from?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from penstock.model.dataset import BUILD, SLICE, SliceOutput, task_name
from penstock.model.job import Job, JobId, JobState
from penstock.model.lock import PlanRow, PlanState
from penstock.model.plan import SlicePayload
from penstock.model.views import WorkerView
from penstock.observe.build_words import LockHolder, again_command, holder_of, plan_facts
from penstock.observe.why.facts import Facts
from penstock.observe.why.slice import OPEN, UNHAPPY, Committed, SliceFacts, Tried
from penstock.stores.datasets import SliceRange
from penstock.stores.protocol import JobFilter, Store

PAGE = 1_000  # jobs that are read at once
KEYS_LOOKED_AT = 10_000  # that begin like the job of a batch, at each length
FAILURES_LOOKED_AT = 100_000  # jobs of a dataset that did not end well

_output = msgspec.json.Decoder(SliceOutput).decode
_payload = msgspec.json.Decoder(SlicePayload).decode

Named = Callable[[str, int], str]  # (dataset, at) → prices@2024-01-05


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One slice, as its dataset defines it."""

    dataset: str
    at: int
    name: str
    version: str
    batch: int
    needed: tuple[SliceRange, ...]  # what it is built from
    first: tuple[str, ...] = ()  # what has to be built before it
    first_count: int = 0
    impossible: str | None = None
    command: str


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """How a store and its surroundings are asked."""

    job: Callable[[str], Facts | None]  # all facts about a job
    keys: Callable[[str, int], Sequence[str]]  # keys that begin so, at most so many, in order
    named: Named
    gone: Callable[[str], bool]  # is the process of this mark gone for certain?


def slice_facts(store: Store, wanted: Wanted, looks: Looks, now: int) -> SliceFacts:
    """All facts about one slice."""
    workers = store.workers().result()
    lock = _lock(store, wanted.dataset, workers, looks)
    committed = _committed(store, wanted, looks)
    tried = _in_open_plan(store, wanted, looks, lock)
    if tried is None:
        tried = _last_try(store, wanted, looks, committed)
    return SliceFacts(
        name=wanted.name,
        dataset=wanted.dataset,
        at=wanted.at,
        now=now,
        command=wanted.command,
        committed=committed,
        first=wanted.first,
        first_count=wanted.first_count,
        impossible=wanted.impossible,
        lock=lock,
        tried=tried,
    )


def _lock(
    store: Store, dataset: str, workers: Sequence[WorkerView], looks: Looks
) -> LockHolder | None:
    lock = next((one for one in store.locks().result() if one.name == dataset), None)
    return holder_of(lock, workers, gone=lock is not None and looks.gone(lock.mark))


def _committed(store: Store, wanted: Wanted, looks: Looks) -> Committed | None:
    own = SliceRange(wanted.dataset, wanted.at, wanted.at)
    rows = store.slices([own, *wanted.needed]).result().rows
    row = next((x for x in rows if (x.dataset, x.at) == (wanted.dataset, wanted.at)), None)
    if row is None:
        return None
    newer = [
        looks.named(one.dataset, one.at)
        for one in rows
        if one.seq is not None and one is not row and one.seq > row.basis
    ]
    page = store.jobs(JobFilter(), JobId(row.job_id - 1), 1).result()
    job = page[0] if page and page[0].id == row.job_id else None
    return Committed(
        row=row,
        output=_output(row.document),
        job=job,
        version=wanted.version,
        newer=tuple(newer[:PAGE]),
        newer_count=len(newer),
    )


def _in_open_plan(
    store: Store, wanted: Wanted, looks: Looks, lock: LockHolder | None
) -> Tried | None:
    for plan in store.open_plans().result():
        facts = plan_facts(plan)
        if facts is None or wanted.dataset not in facts.datasets:
            continue
        key = _key_in(store, plan, wanted, looks)
        if key is None:
            continue
        holder = lock if lock is not None and lock.lock.run_id == plan.run_id else None
        return _tried(store, plan, looks.job(key), holder, looks)
    return None


def _tried(
    store: Store, plan: PlanRow, around: Facts | None, holder: LockHolder | None, looks: Looks
) -> Tried:
    job = None if around is None else around.this.job
    is_built = job is not None and job.state is JobState.DONE and job.level is not None
    barrier = looks.job(f"{BUILD}{plan.id}:level:{job.level}") if job and is_built else None
    is_open = plan.state in OPEN
    return Tried(
        plan=plan,
        around=around,
        levels=tuple(store.plan_states(plan.id).result()) if is_open else (),
        barrier=barrier,
        holder=holder,
        again=again_command(plan),
    )


def _key_in(store: Store, plan: PlanRow, wanted: Wanted, looks: Looks) -> str | None:
    """The key of the job of a plan that builds a slice; of a batch, the one that holds it.

    A batch is called by its first and last slice, and names sort as their times do.
    """
    whole = f"{BUILD}{plan.id}:{wanted.name}"
    moment = wanted.name.partition("@")[2]
    if store.job(whole).result() is not None:
        return whole
    if wanted.batch == 1:
        return None
    for cut in range(len(moment) + 1):
        found = looks.keys(whole[: len(whole) - cut], KEYS_LOOKED_AT)
        for key in found:
            first, _, last = key.split(":", 2)[-1].partition("@")[2].partition("..")
            if first <= moment <= (last or first):
                return key
        if len(found) >= KEYS_LOOKED_AT:
            return None
    return None


def _last_try(
    store: Store, wanted: Wanted, looks: Looks, committed: Committed | None
) -> Tried | None:
    """The newest job of a plan that is over which was to build it, if it did not end well."""
    job = max(_unhappy(store, wanted), key=lambda job: job.id, default=None)
    if job is None or job.plan_id is None:
        return None
    if committed is not None and committed.row.job_id > job.id:
        return None  # a later one has built it
    plan = store.plan(job.plan_id).result()
    if plan is None or plan.state is not PlanState.ENDED:
        return None
    return _tried(store, plan, looks.job(job.key), None, looks)


def _unhappy(store: Store, wanted: Wanted) -> Iterator[Job]:
    counts = store.stats().result().tasks
    tasks = [task for task in counts if task_name(task) == f"{SLICE}{wanted.dataset}"]
    for task in tasks:
        for state in UNHAPPY:
            if not counts[task].get(state):
                continue
            seen, last = 0, JobId(0)
            wants = JobFilter(state=state, task=task)
            while seen < FAILURES_LOOKED_AT and (page := store.jobs(wants, last, PAGE).result()):
                seen, last = seen + len(page), page[-1].id
                yield from (job for job in page if wanted.at in _payload(job.payload).at)

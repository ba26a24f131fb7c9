# SPDX-License-Identifier: Apache-2.0
"""Explains whether a slice of a dataset is built and fresh, or what holds it up; gathers the facts.

A slice that an open plan builds is where its job is; only then does it matter what is committed,
what was tried before, and which run holds the lock of its dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from penstock.model.dataset import BUILD, SliceOutput, slice_of, task_name
from penstock.model.job import SLICE, Job, JobId, JobState
from penstock.model.plan import LevelStates, PlanRow, PlanState, SlicePayload, keeper_of
from penstock.model.schedule import UnitView
from penstock.model.views import WorkerView
from penstock.observe.phrases import (
    SAME_BUILD,
    LockHolder,
    at,
    ended_in,
    format_level,
    lock_holder,
    owner,
    plan_facts,
    rebuild_command,
    run_command,
    short,
    some,
    span,
)
from penstock.observe.why.facts import Explanation, Gate, JobFacts
from penstock.observe.why.job import explain
from penstock.sentences import command, counted
from penstock.stores.protocol import JobFilter, SliceRange, SliceRow, Store

UNSUCCESSFUL = (JobState.ERROR, JobState.SKIPPED, JobState.CANCELLED)
OPEN = (PlanState.DRAFT, PlanState.RUNNING, PlanState.LEFT)
PAGE = 1_000  # jobs that are read at once
KEYS_LOOKED_AT = 10_000  # that begin like the job of a batch, at each length
FAILURES_LOOKED_AT = 100_000  # jobs of a dataset that did not succeed


class WantedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One slice as its dataset defines it, and what a build of it would build first."""

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
    kept_by: str | None = None  # the unit of a schedule whose next plan has it


class CommittedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A committed slice, which readers see."""

    row: SliceRow
    output: SliceOutput
    job: Job | None = None  # that built it; None: purged
    version: str  # of the dataset now
    newer: tuple[str, ...] = ()  # inputs that were committed after it read them
    newer_count: int = 0


class SliceAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The job that builds a slice, or was to build it, and its plan."""

    plan: PlanRow
    around: JobFacts | None  # None: its job is not enqueued yet
    levels: tuple[LevelStates, ...] = ()
    barrier: JobFacts | None = None  # of its level, if the slice is built and waits for it
    holder: LockHolder | None = None  # of the dataset's lock, if that is its run
    again: str | None = None  # the command that builds the same

    @property
    def is_left(self) -> bool:
        """Whether no live run continues its plan; that of a schedule needs none while it runs."""
        if self.plan.state is PlanState.LEFT:
            return True
        if self.plan.state is PlanState.RUNNING and keeper_of(self.plan.run_id) is not None:
            return False
        return self.plan.state in OPEN and (self.holder is None or not self.holder.holds)


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that the explanation of a slice is derived from."""

    wanted: WantedSlice
    now: int
    committed: CommittedSlice | None = None
    lock: LockHolder | None = None
    tried: SliceAttempt | None = None  # of an open plan, or the last one that failed
    keeper: UnitView | None = None  # the unit whose next tick builds it, if there is one
    is_kept: bool = False  # a live daemon ticks that unit

    @property
    def name(self) -> str:
        return self.wanted.name


def explain_slice(facts: SliceFacts) -> Explanation:
    """Explain a slice: its open plan first, then what is committed, then the last attempt."""
    tried, committed = facts.tried, facts.committed
    if tried is not None and tried.plan.state in OPEN and not _is_by(committed, tried):
        return _on_its_way(facts, tried)
    found = _at_rest(facts, tried, committed)
    return found if facts.keeper is None or found.gate not in _KEPT else _kept(facts, found)


_KEPT = (Gate.FINISHED, Gate.STALE, Gate.NOT_BUILT, Gate.LOCKED)


def _kept(facts: SliceFacts, found: Explanation) -> Explanation:
    """Explain a slice that no plan builds now, and that a schedule keeps current."""
    unit = facts.keeper
    if unit is None or facts.wanted.impossible is not None:
        return found
    keeper = f"{unit.key!r}, which keeps {facts.wanted.dataset!r} current, ticks next"
    if not facts.is_kept:
        runs = f"a daemon runs, and {keeper}"
        return replace(found, unblocks=runs, when=None, command=run_command(unit.task))
    if unit.state is JobState.QUEUED and not unit.rests:
        keeper += f" (at {at(unit.available_at)})"
    return replace(found, unblocks=keeper, when=None, command=command("why", unit.key))


def _at_rest(
    facts: SliceFacts, tried: SliceAttempt | None, committed: CommittedSlice | None
) -> Explanation:
    """Explain a slice that no open plan builds."""
    if committed is not None and not _staleness(facts, committed):
        return _fresh(facts, committed)
    if facts.wanted.at > facts.now:
        return _future(facts)
    if tried is not None and tried.plan.state not in OPEN:
        return _failed(facts, tried)
    if facts.lock is not None and facts.lock.holds:
        return _locked(facts, facts.lock)
    return _absent(facts)


def no_slice(key: str, calendar: str, near: Sequence[str]) -> Explanation:
    """Explain a time that the calendar does not have."""
    closest = f"; the nearest are {some(near)}" if len(near) > 1 else ""
    if len(near) == 1:
        closest = f"; the nearest is {near[0]}"
    sentence = f"{key} is no slice: the calendar ({calendar}) has none there{closest}."
    return Explanation(key=key, state=None, gate=Gate.NO_SLICE, sentence=sentence)


def several_slices(key: str, names: Sequence[str], total: int) -> Explanation:
    """Explain a day that has more than one slice."""
    sentence = f"{key} is {counted(total, 'slice')}: ask for one of {some(names, total)}."
    return Explanation(key=key, state=None, gate=Gate.NO_SLICE, sentence=sentence)


def _why(facts: SliceFacts, gate: Gate, sentence: str, **more: object) -> Explanation:
    found = Explanation(key=facts.name, state=None, gate=gate, sentence=sentence)
    return replace(found, **more)


def _is_by(committed: CommittedSlice | None, tried: SliceAttempt) -> bool:
    """Whether the committed slice was built by this plan."""
    return committed is not None and committed.row.plan_id == tried.plan.id


# What is committed


def _staleness(facts: SliceFacts, committed: CommittedSlice) -> str:
    """Why a committed slice is stale; empty if it is fresh."""
    if committed.row.version != committed.version:
        return (
            f"it was built by version {committed.row.version!r} of the dataset, which is "
            f"{committed.version!r} now"
        )
    if committed.newer:
        was = "was" if committed.newer_count == 1 else "were"
        return f"{some(committed.newer, committed.newer_count)} {was} built anew after it"
    count = facts.wanted.first_count
    if count:
        needs = "needs to be" if count == 1 else "need to be"
        return f"{some(facts.wanted.first, count)}, which it needs, {needs} built anew"
    return ""


def _fresh(facts: SliceFacts, committed: CommittedSlice) -> Explanation:
    row, job = committed.row, committed.job
    built = _format_built(job, facts.now)
    return _why(
        facts,
        Gate.FRESH,
        f"{facts.name} is committed and up to date: built{built} by plan {row.plan_id}.",
        state=None if job is None else job.state,
        details=tuple(_file(committed)),
    )


def _format_built(job: Job | None, now: int) -> str:
    if job is None or job.finished_at is None:
        return ""
    return f" at {at(job.finished_at)}, {span(now - job.finished_at)} ago,"


def _file(committed: CommittedSlice) -> Iterator[str]:
    output = committed.output
    rows = "" if output.rows is None else f", {counted(output.rows, 'row')}"
    yield f"File: {output.path} ({output.bytes:,} bytes{rows})."


def _future(facts: SliceFacts) -> Explanation:
    return _why(
        facts,
        Gate.FUTURE,
        f"{facts.name} is in the future: its time is {at(facts.wanted.at)}, in "
        f"{span(facts.wanted.at - facts.now)}; until then builds leave it out.",
        unblocks="its time comes",
        when=facts.wanted.at,
        command=facts.wanted.command,
    )


def _absent(facts: SliceFacts) -> Explanation:
    """Explain a missing or stale slice that no open plan builds."""
    details = [] if facts.committed is None else list(_file(facts.committed))
    if facts.wanted.impossible is not None:
        return _why(
            facts,
            Gate.NOT_BUILT,
            f"{facts.name} cannot be built: {facts.wanted.impossible}",
            details=tuple(details),
        )
    if facts.committed is not None:
        reason = _staleness(facts, facts.committed)
        built = _format_built(facts.committed.job, facts.now)
        gate, sentence = (
            Gate.STALE,
            f"{facts.name} is committed{built} but stale: {reason}. No open plan builds it.",
        )
    else:
        gate, sentence = (
            Gate.NOT_BUILT,
            f"{facts.name} was not built, and no open plan builds it.",
        )
        if facts.wanted.first:
            first = some(facts.wanted.first, facts.wanted.first_count)
            details.append(
                f"It needs {first}, which {_is_not(facts.wanted.first_count)} up to date."
            )
    if facts.lock is not None:
        holder = facts.lock.describe(facts.now)
        details.append(
            f"The lock of {facts.wanted.dataset!r} is held by {holder}; the next build "
            "does not wait for it."
        )
    return _why(
        facts,
        gate,
        sentence,
        unblocks="a build of it is started",
        command=facts.wanted.command,
        details=tuple(details),
    )


def _is_not(count: int) -> str:
    return "is missing or not" if count == 1 else "are missing or not"


def _locked(facts: SliceFacts, lock: LockHolder) -> Explanation:
    """Explain a slice whose dataset is locked by a build that does not build it."""
    committed = facts.committed
    stands = "was not built"
    if committed is not None:
        stands = f"is committed but stale ({_staleness(facts, committed)})"
    return _why(
        facts,
        Gate.LOCKED,
        f"{facts.name} {stands}, and the dataset {facts.wanted.dataset!r} is locked by another "
        f"build, which does not build it: {lock.describe(facts.now)}.",
        unblocks="that build ends, and one of this slice is started (which waits for the lock)",
        command=facts.wanted.command,
        details=() if committed is None else tuple(_file(committed)),
    )


# What a plan does


def _on_its_way(facts: SliceFacts, tried: SliceAttempt) -> Explanation:
    if tried.is_left:
        found = _left(facts, tried)
    elif tried.plan.state is PlanState.DRAFT:
        found = _why(
            facts,
            Gate.PLANNING,
            f"{facts.name} is to be built by {owner(tried.plan.run_id)}, which is planning: "
            f"no job of plan {tried.plan.id} may run before all are enqueued.",
            unblocks="the plan is complete",
        )
    else:
        found = _running(facts, tried)
    return replace(found, key=facts.name, details=(*found.details, *_plan_line(facts, tried)))


def _plan_line(facts: SliceFacts, tried: SliceAttempt) -> Iterator[str]:
    job = None if tried.around is None else tried.around.this.job
    named = "" if job is None else f": job {job.key}"
    level = "" if job is None or job.level is None else f", level {job.level} of "
    levels = f"{level}{counted(tried.plan.levels, 'level')}" if level else ""
    yield f"Plan {tried.plan.id} of {owner(tried.plan.run_id)}{named}{levels}."
    if facts.committed is not None:
        yield f"Readers see an older one: {facts.committed.output.path}."


def _left(facts: SliceFacts, tried: SliceAttempt) -> Explanation:
    plan, holder = tried.plan, tried.holder
    done = sum(level.states.get(JobState.DONE, 0) for level in tried.levels)
    how = f" ({done:,} of {counted(plan.jobs, 'job')} are done)" if tried.levels else ""
    why = ""
    if holder is not None:
        why = ", whose process is gone" if holder.gone else ", which does not renew its locks"
    goes_on = "plans anew" if plan.state is PlanState.DRAFT else "continues the plan"
    return _why(
        facts,
        Gate.PLAN_LEFT,
        f"{facts.name} is in plan {plan.id}, which was abandoned by {owner(plan.run_id)}{why}"
        f"{how}; no run continues it.",
        state=None if tried.around is None else tried.around.this.job.state,
        unblocks=f"{SAME_BUILD} is started again, which {goes_on}"
        if keeper_of(plan.run_id) is None
        else f"the schedule ticks in a daemon, which {goes_on}",
        command=tried.again,
    )


def _running(facts: SliceFacts, tried: SliceAttempt) -> Explanation:
    around = tried.around
    if around is None:
        return _why(
            facts,
            Gate.PLANNING,
            f"{facts.name} is to be built by plan {tried.plan.id}, whose job cannot be found.",
        )
    job = around.this.job
    if job.state in UNSUCCESSFUL:
        return _failed(facts, tried)
    if job.state is JobState.DONE:
        return _uncommitted(facts, tried, job)
    below = _barrier_below(around, job)
    if below is not None:
        return _waits_for_level(facts, tried, explain(around), below)
    return explain(around)


def _level(tried: SliceAttempt, number: int | None) -> LevelStates | None:
    return next((level for level in tried.levels if level.level == number), None)


def _uncommitted(facts: SliceFacts, tried: SliceAttempt, job: Job) -> Explanation:
    """Explain a slice that is built and waits for the rest of its level."""
    level = _level(tried, job.level)
    words = "" if level is None else f": {format_level(level)}"
    found = _why(
        facts,
        Gate.LEVEL,
        f"{facts.name} is built, but its level is not committed yet{words}.",
        state=job.state,
    )
    left = 0 if level is None else sum(level.states.values()) - ended_in(level)
    if tried.barrier is None:
        return found
    behind = explain(tried.barrier)
    rest = f"the other {counted(left, 'job')} of its level end" if left else "its barrier runs"
    return replace(
        found,
        unblocks=f"{rest}, in any state",
        when=behind.when,
        command=behind.command,
        details=(f"What holds the level up: {behind.sentence}", *behind.details),
        chain=behind.chain,
        limits=behind.limits,
        worker=behind.worker,
        as_of=behind.as_of,
    )


def _barrier_below(around: JobFacts, job: Job) -> int | None:
    """The level whose barrier alone holds a job up; None: something else does, or nothing."""
    if job.state is not JobState.WAITING or not job.level or not around.chain:
        return None
    waits = [link.key for link in around.this.dependencies if link.open]
    barrier = f"{BUILD}{job.plan_id}:level:{job.level - 1}"
    return job.level - 1 if waits == [barrier] else None


def _waits_for_level(
    facts: SliceFacts, tried: SliceAttempt, found: Explanation, below: int
) -> Explanation:
    level = _level(tried, below)
    words = "" if level is None else f": {format_level(level)}"
    held = ""
    if tried.around is not None:
        end = replace(tried.around, this=tried.around.chain[-1], chain=())
        held = f" {explain(end).sentence}"
    return replace(
        found,
        gate=Gate.LEVEL,
        sentence=f"{facts.name} waits until level {below} is committed{words}.{held}",
        unblocks=f"level {below} is committed, and what it needs has been built",
    )


def _failed(facts: SliceFacts, tried: SliceAttempt) -> Explanation:
    """Explain a slice whose job failed, was skipped or cancelled, in an open or the last plan."""
    around = tried.around
    if around is None:
        return _absent(facts)
    job = around.this.job
    when = "" if job.finished_at is None else f" at {at(job.finished_at)}"
    error = job.last_error
    again = tried.again or facts.wanted.command
    goes_on, unit = tried.plan.state in OPEN, keeper_of(tried.plan.run_id)
    starts_again = f"{SAME_BUILD} is started again" if unit is None else f"{unit!r} ticks again"
    details = [f"Failed attempts: {job.attempts}, crashes: {job.crashes}."]
    if job.state is JobState.ERROR:
        said = "" if error is None else f": {error.format()}"
        sentence = f"{facts.name} failed in plan {tried.plan.id}{when}{said}."
    elif job.state is JobState.CANCELLED:
        sentence = f"{facts.name} was cancelled{when}, with plan {tried.plan.id} or by an operator."
        details = []
    else:
        sentence, details = _skipped(facts, tried, around, when)
    if facts.committed is not None:
        details.append(f"Readers see an older one: {facts.committed.output.path}.")
    return _why(
        facts,
        Gate.FINISHED,
        sentence,
        state=job.state,
        unblocks=(
            f"plan {tried.plan.id} ends, and {starts_again}"
            if goes_on
            else f"the cause is fixed, and {starts_again}"
        ),
        command=again,
        details=tuple(details),
        chain=(job.key, *(link.job.key for link in around.chain)),
    )


def _skipped(
    facts: SliceFacts, tried: SliceAttempt, around: JobFacts, when: str
) -> tuple[str, list[str]]:
    """The upstream failure that caused a skip, as a sentence and details."""
    job, root = around.this.job, around.chain[-1].job if around.chain else None
    lead = f"{facts.name} was skipped in plan {tried.plan.id}{when}"
    if root is None:
        error = job.last_error
        return f"{lead}{'' if error is None else f': {short(error.message)}'}.", []
    word = {JobState.ERROR: "failed", JobState.CANCELLED: "was cancelled"}
    said = "" if root.last_error is None else f": {root.last_error.format()}"
    ended = word.get(root.state, f"is {root.state.value}")
    between = [slice_of(link.job.key) for link in around.chain[:-1]]
    over = [f"Between them: {some(between)}."] if between else []
    return f"{lead}, because {slice_of(root.key)} {ended}{said}.", over


_output = msgspec.json.Decoder(SliceOutput).decode
_payload = msgspec.json.Decoder(SlicePayload).decode

Named = Callable[[str, int], str]  # (dataset, at) → prices@2024-01-05


class SliceLookups(msgspec.Struct, frozen=True, kw_only=True):
    """Lookups that need more than the store: of jobs, keys, names and processes."""

    job: Callable[[str], JobFacts | None]  # all facts about a job
    keys: Callable[[str, int], Sequence[str]]  # keys that begin so, at most so many, in order
    named: Named
    gone: Callable[[str], bool]  # whether the process with this mark is certainly gone


def slice_facts(store: Store, wanted: WantedSlice, looks: SliceLookups, now: int) -> SliceFacts:
    """All facts about one slice."""
    workers = store.workers().result()
    lock = _lock(store, wanted.dataset, workers, looks)
    committed = _committed(store, wanted, looks)
    tried = _in_open_plan(store, wanted, looks, lock)
    if tried is None:
        tried = _last_try(store, wanted, looks, committed)
    unit = None if wanted.kept_by is None else store.unit(wanted.kept_by).result()
    ticking = unit is not None and any(x.alive and unit.task in x.tasks for x in workers)
    return SliceFacts(
        wanted=wanted,
        now=now,
        committed=committed,
        lock=lock,
        tried=tried,
        keeper=unit,
        is_kept=ticking,
    )


def _lock(
    store: Store, dataset: str, workers: Sequence[WorkerView], looks: SliceLookups
) -> LockHolder | None:
    lock = next((one for one in store.locks().result() if one.name == dataset), None)
    return lock_holder(lock, workers, gone=lock is not None and looks.gone(lock.mark))


def _committed(store: Store, wanted: WantedSlice, looks: SliceLookups) -> CommittedSlice | None:
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
    return CommittedSlice(
        row=row,
        output=_output(row.document),
        job=job,
        version=wanted.version,
        newer=tuple(newer[:PAGE]),
        newer_count=len(newer),
    )


def _in_open_plan(
    store: Store, wanted: WantedSlice, looks: SliceLookups, lock: LockHolder | None
) -> SliceAttempt | None:
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
    store: Store,
    plan: PlanRow,
    around: JobFacts | None,
    holder: LockHolder | None,
    looks: SliceLookups,
) -> SliceAttempt:
    job = None if around is None else around.this.job
    is_built = job is not None and job.state is JobState.DONE and job.level is not None
    barrier = looks.job(f"{BUILD}{plan.id}:level:{job.level}") if job and is_built else None
    is_open = plan.state in OPEN
    return SliceAttempt(
        plan=plan,
        around=around,
        levels=tuple(store.plan_states(plan.id).result()) if is_open else (),
        barrier=barrier,
        holder=holder,
        again=rebuild_command(plan),
    )


def _key_in(store: Store, plan: PlanRow, wanted: WantedSlice, looks: SliceLookups) -> str | None:
    """The key of the job of a plan that builds a slice, alone or in a batch.

    A batch is named by its first and last slice, and names sort as their times do.
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
    store: Store, wanted: WantedSlice, looks: SliceLookups, committed: CommittedSlice | None
) -> SliceAttempt | None:
    """The newest unsuccessful job of an ended plan that was to build the slice."""
    job = max(_unsuccessful(store, wanted), key=lambda job: job.id, default=None)
    if job is None or job.plan_id is None:
        return None
    if committed is not None and committed.row.job_id > job.id:
        return None  # a later one has built it
    plan = store.plan(job.plan_id).result()
    if plan is None or plan.state is not PlanState.ENDED:
        return None
    return _tried(store, plan, looks.job(job.key), None, looks)


def _unsuccessful(store: Store, wanted: WantedSlice) -> Iterator[Job]:
    counts = store.stats().result().tasks
    tasks = [task for task in counts if task_name(task) == f"{SLICE}{wanted.dataset}"]
    for task in tasks:
        for state in UNSUCCESSFUL:
            if not counts[task].get(state):
                continue
            seen, last = 0, JobId(0)
            wants = JobFilter(state=state, task=task)
            while seen < FAILURES_LOOKED_AT and (page := store.jobs(wants, last, PAGE).result()):
                seen, last = seen + len(page), page[-1].id
                yield from (job for job in page if wanted.at in _payload(job.payload).at)

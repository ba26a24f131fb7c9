# SPDX-License-Identifier: Apache-2.0
"""Explains why a job does not run, or how it ended.

A pure function of facts. Of all closed gates the first is the answer, and the others are details,
so that an operator who opens one knows what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from msgspec.structs import replace

from penstock.model.dataset import task_name
from penstock.model.job import TERMINAL, Job, JobKind, JobState
from penstock.model.views import Dependency, JobContext
from penstock.observe.phrases import at, run_command, short, some, span
from penstock.observe.why.budget import without_worker
from penstock.observe.why.facts import Explanation, Gate, JobFacts, Limit
from penstock.observe.why.worker import explain_leased, explain_ready, on_worker
from penstock.sentences import command, counted

BUILT_AGAIN = "the same build is started again, which builds what is missing"


def explain(facts: JobFacts) -> Explanation:
    """Explain a job by the first gate that holds it up."""
    state = facts.this.job.state
    if facts.this.detached and state is not JobState.IN_PROGRESS:
        return _explain_detached(facts)
    if state in TERMINAL:
        return _finished(facts)
    if state is JobState.WAITING:
        return _waiting(facts)
    if state is JobState.IN_PROGRESS:
        return explain_leased(facts)
    first, *others = _closed(facts)
    behind = tuple(f"Behind that: {other.sentence}" for other in others)
    return replace(first, details=(*first.details, *behind))


def _why(facts: JobFacts, gate: Gate, sentence: str) -> Explanation:
    job = facts.this.job
    return Explanation(key=job.key, state=job.state, gate=gate, sentence=sentence)


def _closed(facts: JobFacts) -> Iterator[Explanation]:
    """Every gate that holds a queued job up, in order; there is always one."""
    gates = [
        gate
        for gate in (
            _not_due(facts),
            _paused(facts),
            without_worker(facts, _no_worker(facts)),
            _keyed_limit(facts),
            _in_quarantine(facts),
        )
        if gate is not None
    ]
    yield from gates
    if not gates:
        yield explain_ready(facts)


def _not_due(facts: JobFacts) -> Explanation | None:
    this = facts.this
    job = this.job
    if job.available_at <= this.now:
        return None
    moment = f"at {at(job.available_at)}, in {span(job.available_at - this.now)}"
    if job.last_error is None:
        sentence = f"{job.key!r} is delayed: it is due {moment}."
    else:
        again = "is tried again" if job.deferred_since is None else "is due again"
        sentence = f"{job.key!r} {again} {moment}: {job.last_error.format()}."
    found = _why(facts, Gate.NOT_DUE, sentence)
    return replace(found, unblocks="it is due", when=job.available_at, details=tuple(_tries(this)))


def _tries(this: JobContext) -> Iterator[str]:
    job = this.job
    if job.attempts:
        yield f"Failed attempts so far: {job.attempts}."
    if job.deferred_since is not None:
        yield (
            f"Deferred since {at(job.deferred_since)} and not charged: the fault is not its own."
        )


def _paused(facts: JobFacts) -> Explanation | None:
    if not facts.stats.paused:
        return None
    sentence = f"The queue is paused, so nobody takes {facts.this.job.key!r}."
    return replace(
        _why(facts, Gate.PAUSED, sentence),
        unblocks="an operator resumes the queue",
        command=command("queue", "resume"),
    )


def _no_worker(facts: JobFacts) -> Explanation | None:
    job, alive = facts.this.job, facts.alive
    task = task_name(job.task)
    if not alive:
        by_itself = "; a run restarts a worker that has died by itself" if job.suspect else ""
        return replace(
            _why(facts, Gate.NO_WORKER, f"No live worker could take {job.key!r}."),
            unblocks=f"a worker starts that knows the task {task!r}{by_itself}",
            command=facts.again or run_command(job.task),
        )
    if any(job.task in worker.tasks for worker in alive):
        return None
    known = {task_name(name) for worker in alive for name in worker.tasks}
    if job.kind.is_built and task in known:
        return _other_root(facts, task)
    near = get_close_matches(task, sorted(known), 3)
    closest = f"; closest: {some([repr(name) for name in near])}" if near else ""
    many = len(alive) > 1
    nobody = f"None of the {len(alive):,} live workers" if many else "The only live worker"
    sentence = (
        f"{nobody} {'knows' if many else 'does not know'} the task {task!r} of {job.key!r} "
        f"({'they know' if many else 'it knows'} {len(known)}{closest})."
    )
    return replace(
        _why(facts, Gate.NO_WORKER, sentence),
        unblocks=f"a worker starts whose app defines {task!r} (`name=` keeps an old name)",
        command=facts.again or run_command(job.task),
    )


def _other_root(facts: JobFacts, task: str) -> Explanation:
    """Explain a job whose workers write to another output root than its plan."""
    job = facts.this.job
    others = [one for one in facts.alive if task in map(task_name, one.tasks)]
    some_of = "The only live worker" if len(others) == 1 else f"The {len(others):,} live workers"
    keep = "keeps" if len(others) == 1 else "keep"
    sentence = (
        f"{some_of} that could take {job.key!r} {keep} slices in another output root than its "
        f"plan ({job.task.partition('#')[2]})."
    )
    return replace(
        _why(facts, Gate.NO_WORKER, sentence),
        unblocks="a worker starts whose datasets.root is the folder of the plan",
        command=facts.again,
    )


def _keyed_limit(facts: JobFacts) -> Explanation | None:
    this, statuses = facts.this, facts.statuses
    able = {worker.id for worker in facts.alive if this.job.task in worker.tasks}
    told = {
        worker: status.caps
        for worker, status in statuses.items()
        if worker in able and status.caps is not None
    }
    limits = tuple(facts.caps.of(held, told) for held in this.held)
    full = tuple(limit for limit in limits if limit.is_full)
    if not full:
        return None
    first = full[0]
    key, cap = first.held.limit_key, first.cap or 0
    if cap <= 0:
        sentence = (
            f"{this.job.key!r} waits for the limit {key!r}, which is 0 ({first.source}): no such "
            "job runs until it is raised."
        )
        unblocks = f"the limit {key!r} is raised"
    else:
        sentence = (
            f"{this.job.key!r} waits for the limit {key!r} of {cap:,} ({first.source}), held by "
            f"{_holders(first, this.now)}."
        )
        one = "its holder" if first.held.count == 1 else f"one of its {first.held.count:,} holders"
        unblocks = f"{one} ends, or the limit is raised"
    details = [_holder_line(limit, this.now) for limit in full[1:]]
    return replace(
        _why(facts, Gate.KEYED_LIMIT, sentence),
        unblocks=unblocks,
        command=command("queue", "limit", key, str(max(first.held.count, cap) + 1)),
        details=tuple(details),
        limits=full,
    )


def _holder_line(limit: Limit, now: int) -> str:
    key = limit.held.limit_key
    if not limit.cap:
        return f"The limit {key!r} is 0 as well ({limit.source})."
    return (
        f"The limit {key!r} of {limit.cap:,} ({limit.source}) is full as well, held by "
        f"{_holders(limit, now)}."
    )


def _holders(limit: Limit, now: int) -> str:
    names = []
    for holder in limit.held.holders:
        where = f" on worker {holder.worker!r}" if holder.worker is not None else ""
        if holder.detached:
            names.append(f"{holder.key!r}{where}, whose lease is over but whose body still runs")
        else:
            since = "" if holder.since is None else f" for {span(now - holder.since)}"
            names.append(f"{holder.key!r}{where}{since}")
    return some(names, limit.held.count)


def _in_quarantine(facts: JobFacts) -> Explanation | None:
    job = facts.this.job
    if not job.suspect:
        return None
    crashes = counted(job.crashes, "crash", "crashes")
    sentence = (
        f"{job.key!r} ran when its worker died ({crashes} alone so far), so it runs "
        "in quarantine next, when a worker is idle or the supervisor starts one for it."
    )
    return replace(
        _why(facts, Gate.QUARANTINE, sentence),
        unblocks="a worker takes the jobs in quarantine, which run beside nothing else",
        details=(f"Jobs that wait in quarantine: {facts.stats.suspects:,}.",),
    )


def _waiting(facts: JobFacts) -> Explanation:
    """Explain a job that waits for others: the last of the chain holds all of them up."""
    this = facts.this
    waits = [link for link in this.dependencies if link.open]
    chain = (this.job.key, *(link.job.key for link in facts.chain))
    if all(link.state in TERMINAL for link in waits):
        sentence = f"What {this.job.key!r} waited for has ended; the next lease call releases it."
        return replace(
            _why(facts, Gate.DEPENDENCY, sentence),
            unblocks="any worker asks for work",
            waits_for=tuple(waits),
        )
    names = some([f"{link.key!r} ({link.state.value})" for link in waits], this.job.pending)
    if not facts.chain:  # the end of a chain that is too long
        found = _why(facts, Gate.DEPENDENCY, f"{this.job.key!r} waits for {names}.")
        return replace(found, waits_for=tuple(waits))
    root = explain(replace(facts, this=facts.chain[-1], chain=()))
    sentence = f"{this.job.key!r} waits for {names}{_way(chain)}. {root.sentence}"
    return replace(
        root,
        key=this.job.key,
        state=this.job.state,
        gate=Gate.DEPENDENCY,
        sentence=sentence,
        unblocks=f"{chain[1]!r} ends{_as_it_must(waits, chain[1])}{_besides(this)}",
        waits_for=tuple(waits),
        chain=chain,
    )


def _way(chain: tuple[str, ...]) -> str:
    """The way from the first dependency to the job that holds all of them up."""
    if len(chain) <= 2:
        return ""
    between = len(chain) - 3
    over = f", through {between:,} more," if between else ""
    return f"; {chain[1]!r} waits{over} for {chain[-1]!r}"


def _as_it_must(waits: list[Dependency], key: str) -> str:
    kinds = {link.kind.value for link in waits if link.key == key}
    return " successfully" if "success" in kinds else ", in any state"


def _besides(this: JobContext) -> str:
    """How many more jobs it waits for."""
    others = this.job.pending - 1
    return f", and {others:,} more that it waits for" if others > 0 else ""


def _explain_detached(facts: JobFacts) -> Explanation:
    job, workers = facts.this.job, facts.this.detached
    names = some([repr(worker) for worker in workers])
    became = "was put back" if job.state not in TERMINAL else f"is {job.state.value}"
    held = f"; until it ends it holds {some([repr(k) for k in job.limit_keys])}"
    sentence = (
        f"{job.key!r} {became}, but its body still runs on worker {names}"
        f"{held if job.limit_keys else ''}."
    )
    found = replace(
        _why(facts, Gate.DETACHED, sentence),
        unblocks="its worker stops the body, or ends",
        worker=workers[0],
    )
    if job.state in TERMINAL:
        return on_worker(facts, found)
    behind = tuple(f"Behind that: {gate.sentence}" for gate in _closed(facts))
    return replace(on_worker(facts, found), details=behind)


def _finished(facts: JobFacts) -> Explanation:
    this = facts.this
    job = this.job
    when = "" if job.finished_at is None else f" at {at(job.finished_at)}"
    ago = "" if job.finished_at is None else f", {span(this.now - job.finished_at)} ago"
    if job.state is JobState.DONE:
        return _why(facts, Gate.FINISHED, f"{job.key!r} is done; it ended{when}{ago}.")
    if job.state is JobState.CANCELLED:
        sentence = f"{job.key!r} was cancelled by an operator{when}{ago}."
        return _why(facts, Gate.FINISHED, sentence)
    if job.state is JobState.ERROR:
        error = "" if job.last_error is None else f": {job.last_error.format()}"
        sentence = f"{job.key!r} failed for good{when}{error}."
        is_built = job.kind.is_built
        return replace(
            _why(facts, Gate.FINISHED, sentence),
            unblocks=BUILT_AGAIN if is_built else "its cause is fixed and it is retried",
            command=facts.again if is_built else _retry(job),
            details=(f"Failed attempts: {job.attempts}, crashes: {job.crashes}.",),
        )
    return _skipped(facts, when)


def _skipped(facts: JobFacts, when: str) -> Explanation:
    this = facts.this
    job = this.job
    blamed = this.skipped_by or (facts.chain[0].job.key if facts.chain else None)
    if blamed is None:
        reason = "" if job.last_error is None else f": {short(job.last_error.message)}"
        sentence = f"{job.key!r} was skipped by its own task{when}{reason}."
        return _why(facts, Gate.FINISHED, sentence)
    chain = (job.key, *(link.job.key for link in facts.chain))
    sentence = f"{job.key!r} was skipped{when}, because {blamed!r} did not succeed."
    found = replace(_why(facts, Gate.FINISHED, sentence), chain=chain, waits_for=this.dependencies)
    if not facts.chain:
        return found
    root = facts.chain[-1].job
    error = "" if root.last_error is None else f": {root.last_error.format()}"
    details = (f"It began with {root.key!r}, which is {root.state.value}{error}.",)
    found = replace(found, details=details)
    if root.state is not JobState.ERROR:
        return found
    is_built = root.kind.is_built
    return replace(
        found,
        unblocks=BUILT_AGAIN if is_built else f"{root.key!r} is retried and succeeds",
        command=facts.again if is_built else _retry(root),
    )


def _retry(job: Job) -> str:
    """What puts a failed job back, and all that was skipped because of it."""
    if job.kind is JobKind.JOB:
        return command("queue", "retry", job.key)
    return command("queue", "retry-failed", "--task", job.task)

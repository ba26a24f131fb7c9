# SPDX-License-Identifier: Apache-2.0
"""What does a running worker's word say about a job: slots, shares, or that it runs?"""

from __future__ import annotations

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.dataset import task_name
from penstock.model.job import WorkerId
from penstock.model.worker import (
    BlockedTasks,
    JobStanding,
    Silence,
    SlotUse,
    Standing,
    WorkerStatus,
)
from penstock.observe.phrases import at, counted, run_command, some, span
from penstock.observe.why.budget import held_by_budget, waits_for_money
from penstock.observe.why.facts import Explanation, Gate, JobFacts
from penstock.observe.why.provider import waits_for_permit, waits_for_provider

BY_GATE = "gate"  # what a provider's resource is to whoever waits for it

#: What a denial of task admission means for the job.
GATES = {
    "no_capacity": Gate.SLOTS,
    "group_cap": Gate.FAIR_SHARE,
    "borrow_debt": Gate.FAIR_SHARE,
    "shutdown": Gate.STOPPING,
    "policy": Gate.POLICY,
}


def explain_leased(facts: JobFacts) -> Explanation:
    """A job is leased: it runs there, or waits there."""
    this = facts.this
    job, worker = this.job, this.job.worker or WorkerId("")
    leased = span(this.now - job.updated_at)
    if worker in facts.silent:
        return _silent(facts, facts.silent[worker], leased)
    if all(view.id != worker for view in facts.alive):
        return Explanation(
            key=job.key,
            state=job.state,
            gate=Gate.NO_WORKER,
            sentence=(
                f"{job.key!r} was leased by worker {worker!r} {leased} ago, and that one is not "
                "alive any more; the next worker that asks for work takes it back."
            ),
            unblocks="any worker asks for work",
            command=run_command(job.task) if not facts.alive else None,
            worker=worker,
        )
    answer = next((x.standing for x in facts.answers if x.worker == worker), None)
    if answer is None or answer.standing is Standing.UNKNOWN:
        return _not_answered(facts, worker, leased)
    found = Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.RUNNING,
        sentence="",
        worker=worker,
        as_of=answer.status.captured_at,
    )
    match answer.standing:
        case Standing.RUNNING:
            return _running(facts, found, answer)
        case Standing.STOPPING:
            return msgspec.structs.replace(
                found,
                gate=Gate.LINGERING,
                sentence=(
                    f"{job.key!r} was told to stop on worker {worker!r}, and its body goes on."
                ),
                unblocks="its body ends, or is given up",
                when=answer.deadline_at,
            )
        case Standing.WAITING:
            return _held_up(facts, found, answer)
    return msgspec.structs.replace(
        found,
        sentence=f"The body of {job.key!r} has ended on worker {worker!r}, which writes it down.",
        unblocks="the worker's next word to the store",
    )


def _silent(facts: JobFacts, silence: Silence, leased: str) -> Explanation:
    """Whoever holds it was killed, most likely; its lease has not ended yet."""
    job, left = facts.this.job, round(silence.lease_seconds * MICROSECONDS)
    why = "its process is gone" if silence.is_gone else "its lease was not renewed in time"
    return Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.SILENT,
        sentence=(
            f"{job.key!r} is held by worker {silence.name}, which no longer answers: {why}. It is "
            f"taken back in {span(left)}, when that worker's lease ends."
        ),
        unblocks="the lease ends and any worker asks for work",
        when=facts.this.now + left,
        command=None if facts.alive else run_command(job.task),
        details=(f"It was leased {leased} ago.",),
        worker=silence.worker,
    )


def _not_answered(facts: JobFacts, worker: WorkerId, leased: str) -> Explanation:
    job, status = facts.this.job, facts.statuses.get(worker)
    view = next(view for view in facts.alive if view.id == worker)
    rest = span(round(view.lease_seconds * MICROSECONDS))
    is_unheard = view.lease_seconds > 0 and all(x.worker != worker for x in facts.answers)
    ends = f" If it is gone, the job is taken back in {rest}." if is_unheard else ""
    found = Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.RUNNING,
        sentence=(
            f"{job.key!r} was leased by worker {worker!r} {leased} ago: it runs there, or is about "
            f"to. That worker has not said which.{ends}"
        ),
        unblocks="its attempt ends",
        worker=worker,
    )
    if status is None:
        return found
    return msgspec.structs.replace(found, details=(_use(worker, status),), as_of=status.captured_at)


def _running(facts: JobFacts, found: Explanation, answer: JobStanding) -> Explanation:
    this = facts.this
    job = this.job
    since = answer.since_at
    began = "" if since is None else f" since {at(since)} ({span(this.now - since)})"
    attempt = job.attempts + job.crashes + 1
    until = answer.deadline_at
    permit = answer.permit_since_at
    if until is None:
        limit = "it has no time limit"
    elif permit is None:
        limit = f"its time limit is {at(until)}"
    else:
        limit = "its time limit stands still"
    progress = "" if answer.progress is None else f" It says: {answer.progress.words()} done."
    running = msgspec.structs.replace(
        found,
        sentence=(
            f"{job.key!r} is running on worker {found.worker!r}{began}: attempt {attempt}, and "
            f"{limit}.{progress}"
        ),
        unblocks="its attempt ends",
        when=until,
    )
    if permit is None:
        return running
    if answer.money_of is not None:
        return waits_for_money(running, permit, answer.money_of, facts.now)
    return waits_for_permit(running, permit, answer.permit_of, answer.status, facts.now)


def _held_up(facts: JobFacts, found: Explanation, answer: JobStanding) -> Explanation:
    """A leased job has not started: what the worker's scheduler says."""
    job, denied, status = facts.this.job, answer.denied, answer.status
    worker = found.worker or WorkerId("")
    if denied is None:
        return msgspec.structs.replace(
            found,
            gate=Gate.TURN,
            sentence=f"{job.key!r} is leased by worker {worker!r} and among the next to start.",
            unblocks="its turn comes",
            details=(_use(worker, status),),
        )
    gate = GATES.get(denied.reason, Gate.POLICY)
    told = msgspec.structs.replace(
        found, gate=gate, when=denied.available_at, details=(_use(worker, status),)
    )
    resource = denied.resource or "a resource"
    waits = f"{job.key!r} is leased by worker {worker!r} and waits"
    if gate is Gate.SLOTS:
        return msgspec.structs.replace(
            told,
            sentence=f"{waits} for {_slots(resource, status)}.",
            unblocks=(
                f"something that runs there ends and frees {resource!r}; a worker that starts with "
                "more slots would run more at once"
            ),
            command=_more_slots(job.task, resource, status),
        )
    if gate is Gate.FAIR_SHARE:
        return msgspec.structs.replace(
            told,
            sentence=f"{waits}: its group {job.group!r} {_share(denied, resource)}.",
            unblocks="a job of its group ends there, or the other groups want no more",
            command=_more_slots(job.task, resource, status),
        )
    if gate is Gate.STOPPING:
        return msgspec.structs.replace(
            told,
            sentence=f"{waits}, but that worker is stopping and gives it back.",
            unblocks="another worker takes it",
        )
    if denied.until == BY_GATE:
        return waits_for_provider(told, resource, status, facts.now, waits)
    return msgspec.structs.replace(
        told,
        sentence=f"{waits}: a rule holds it back ({resource}).",
        unblocks=f"{resource!r} opens",
    )


def _slots(resource: str, status: WorkerStatus) -> str:
    use = status.slots.get(resource)
    if use is None or use.limit is None:
        return f"{resource!r}"
    return (
        f"one of its {use.limit:,} {resource!r} slots, of which {use.used:,} are in use{_lent(use)}"
    )


def _lent(use: SlotUse) -> str:
    """Bodies that wait for their provider need no slot meanwhile."""
    return f", {use.lent:,} of them lent while they wait for a provider" if use.lent else ""


def _more_slots(task: str, kind: str | None, status: WorkerStatus) -> str | None:
    """The command for a worker with twice as many slots; only those of one kind have a flag."""
    use = None if kind is None else status.slots.get(kind)
    if kind is None or use is None or use.limit is None:
        return None
    more = max(2 * use.limit, 1)
    if kind == "async":
        return run_command(task, "--slots", str(more))
    return f"PENSTOCK_RUNTIME__{kind.upper()}_SLOTS={more} {run_command(task)}"


def _share(denied: BlockedTasks, resource: str) -> str:
    numbers = denied.numbers
    held, share = numbers.get("held"), numbers.get("share")
    debt, rivals = numbers.get("debt", 0), numbers.get("rivals", 0)
    text = f"has its share of {resource!r}"
    if held is not None and share is not None:
        text = f"holds {held:,.0f} of {resource!r}, and its share is {share:,.0f}"
    if debt:
        text += f"; it has borrowed {debt:,.0f} and gives back first"
    if not rivals:
        return text
    wait = "1 other group waits" if rivals == 1 else f"{rivals:,.0f} other groups wait"
    return f"{text}, while {wait}"


def _use(worker: WorkerId, status: WorkerStatus) -> str:
    """The slots of a worker, in a sentence."""
    slots = [
        f"{use.used:,} of {use.limit:,} {kind!r}"
        for kind, use in sorted(status.slots.items())
        if use.limit is not None
    ]
    text = f"Worker {worker!r}: {status.running:,} running"
    if slots:
        lent = sum(use.lent for use in status.slots.values())
        besides = f"; {lent:,} of them lent while they wait for a provider" if lent else ""
        text += f" ({', '.join(slots)} slots{besides})"
    return (
        f"{text}, {status.waiting:,} leased and waiting, of "
        f"{counted(status.groups_total, 'group')}."
    )


def explain_ready(facts: JobFacts) -> Explanation:
    """A job is ready, and nothing in the store holds it up: are all workers full?"""
    this = facts.this
    job, statuses = this.job, facts.statuses
    task = task_name(job.task)
    able = [
        view.id
        for view in facts.alive
        if job.task in view.tasks and not _is_stopping(statuses.get(view.id))
    ]
    if not able:
        return Explanation(
            key=job.key,
            state=job.state,
            gate=Gate.STOPPING,
            sentence=f"Every worker that knows the task {task!r} of {job.key!r} is stopping.",
            unblocks=f"another worker starts that knows the task {task!r}",
            command=run_command(job.task),
            as_of=min((status.captured_at for status in statuses.values()), default=None),
        )
    known = {name: statuses[name] for name in able if name in statuses}
    full = {name: status for name, status in known.items() if is_full(status, job.task)}
    ready = span(this.now - job.available_at)
    queued = facts.stats.groups.get(job.group, {}).get(job.state, 0)
    details = [_use(name, status) for name, status in list(known.items())[:3]]
    details.append(
        f"Its group {job.group!r} has {counted(queued, 'queued job')}; groups take turns."
    )
    found = Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.TURN,
        sentence=(
            f"Nothing holds {job.key!r} up: it has been ready for {ready}, and a worker takes it "
            "when its turn comes."
        ),
        unblocks="its turn comes",
        details=tuple(details),
        as_of=min((status.captured_at for status in known.values()), default=None),
    )
    broke = {name: status for name, status in known.items() if job.task in status.over_budget}
    if broke and len(broke) == len(able):
        first, status = next(iter(broke.items()))
        runs = {view.id: view.run_id for view in facts.alive}
        found = msgspec.structs.replace(found, worker=first)
        return held_by_budget(facts, found, status.over_budget[job.task], runs[first])
    held = {name: status for name, status in known.items() if job.task in status.held_back}
    if held and len(held) + len(full.keys() - held.keys()) == len(able):
        first, status = next(iter(held.items()))
        return waits_for_provider(
            msgspec.structs.replace(found, worker=first),
            status.held_back[job.task],
            status,
            facts.now,
            f"{job.key!r} has been ready for {ready}, and waits",
        )
    if not full or len(full) < len(able):
        return found
    first, status = next(iter(full.items()))
    kind = status.task_slots.get(job.task)
    slots = "slot" if kind is None else f"{kind!r} slot"
    use = None if kind is None else status.slots.get(kind)
    count = (
        "" if use is None or use.limit is None else f" ({use.used:,} of {use.limit:,}{_lent(use)})"
    )
    names = some([repr(name) for name in full])
    every = "Every" if len(full) > 1 else "The only"
    return msgspec.structs.replace(
        found,
        gate=Gate.SLOTS,
        sentence=(
            f"{every} worker that knows the task {task!r} has no free {slots}{count} for "
            f"{job.key!r}: {names}."
        ),
        unblocks="something that runs there ends, and its turn comes",
        command=_more_slots(job.task, kind, status),
        worker=first,
    )


def _is_stopping(status: WorkerStatus | None) -> bool:
    return status is not None and status.stopping


def is_full(status: WorkerStatus, task: str) -> bool:
    """Would a worker have no slot for one more job of this task?"""
    kind = status.task_slots.get(task)
    return any(use.is_full for name, use in status.slots.items() if kind is None or name == kind)


def on_worker(facts: JobFacts, found: Explanation) -> Explanation:
    """The same with the time of the worker's word, if it said something about it."""
    answer = next((x.standing for x in facts.answers if x.worker == found.worker), None)
    if answer is None or answer.standing is Standing.UNKNOWN:
        return found
    return msgspec.structs.replace(found, when=answer.deadline_at, as_of=answer.status.captured_at)

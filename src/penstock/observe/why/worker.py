# SPDX-License-Identifier: Apache-2.0
"""Explains a leased or ready job by what live workers report: running, slots, fair shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from penstock.clock import MICROSECONDS
from penstock.model.dataset import task_name
from penstock.model.job import WorkerId
from penstock.model.task import SUBMISSION
from penstock.model.worker import (
    BlockedTasks,
    LeasePhase,
    LeaseReport,
    SlotUse,
    UnresponsiveWorker,
    WorkerStatus,
)
from penstock.observe.phrases import at, run_command, some, span
from penstock.observe.why.budget import held_by_budget, waits_for_money
from penstock.observe.why.facts import Explanation, Gate, JobFacts
from penstock.observe.why.provider import (
    waits_for_account,
    waits_for_permit,
    waits_for_provider,
)
from penstock.sentences import counted

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
    """Explain a leased job: its worker runs it, holds it back, or no longer answers."""
    this = facts.this
    job, worker = this.job, this.job.worker or WorkerId("")
    leased = span(this.now - job.updated_at)
    if worker in facts.silent:
        return _explain_silent(facts, facts.silent[worker], leased)
    if all(view.id != worker for view in facts.alive):
        return Explanation(
            key=job.key,
            state=job.state,
            gate=Gate.NO_WORKER,
            sentence=(
                f"{job.key!r} was leased by worker {worker!r} {leased} ago, and that worker is "
                "dead; the next worker that asks for work takes the job back."
            ),
            unblocks="any worker asks for work",
            command=run_command(job.task) if not facts.alive else None,
            worker=worker,
        )
    answer = next((x.standing for x in facts.answers if x.worker == worker), None)
    if answer is None or answer.standing is LeasePhase.UNKNOWN:
        return _explain_unknown(facts, worker, leased)
    found = Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.RUNNING,
        sentence="",
        worker=worker,
        as_of=answer.status.captured_at,
    )
    match answer.standing:
        case LeasePhase.RUNNING:
            return _explain_running(facts, found, answer)
        case LeasePhase.STOPPING:
            return replace(
                found,
                gate=Gate.DETACHED,
                sentence=(
                    f"{job.key!r} was told to stop on worker {worker!r}, and its body still runs."
                ),
                unblocks="its body ends, or its time to stop is over",
                when=answer.deadline_at,
            )
        case LeasePhase.WAITING:
            return _explain_waiting(facts, found, answer)
    return replace(
        found,
        sentence=f"The body of {job.key!r} has ended on worker {worker!r}, which saves the result.",
        unblocks="the worker's next write to the store",
    )


def _explain_silent(facts: JobFacts, silence: UnresponsiveWorker, leased: str) -> Explanation:
    """Explain a job whose worker was killed, most likely, and whose lease has not ended yet."""
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


def _explain_unknown(facts: JobFacts, worker: WorkerId, leased: str) -> Explanation:
    job, status = facts.this.job, facts.statuses.get(worker)
    view = next(view for view in facts.alive if view.id == worker)
    rest = span(round(view.lease_seconds * MICROSECONDS))
    is_unheard = view.lease_seconds > 0 and all(x.worker != worker for x in facts.answers)
    ends = f" If the worker is dead, the job is taken back in {rest}." if is_unheard else ""
    found = Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.RUNNING,
        sentence=(
            f"{job.key!r} was leased by worker {worker!r} {leased} ago and runs there, or is "
            f"about to; the worker has not reported which.{ends}"
        ),
        unblocks="its attempt ends",
        worker=worker,
    )
    if status is None:
        return found
    return replace(found, details=(_format_slots(worker, status),), as_of=status.captured_at)


def _explain_running(facts: JobFacts, found: Explanation, answer: LeaseReport) -> Explanation:
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
        limit = "its time limit is paused"
    progress = "" if answer.progress is None else f" Progress: {answer.progress.format()}."
    running = replace(
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


def _explain_waiting(facts: JobFacts, found: Explanation, answer: LeaseReport) -> Explanation:
    """Explain a leased job that has not started, by the denial of the worker's scheduler."""
    job, denied, status = facts.this.job, answer.denied, answer.status
    worker = found.worker or WorkerId("")
    if denied is None:
        return replace(
            found,
            gate=Gate.TURN,
            sentence=f"{job.key!r} is leased by worker {worker!r} and among the next to start.",
            unblocks="its turn comes",
            details=(_format_slots(worker, status),),
        )
    gate = GATES.get(denied.reason, Gate.POLICY)
    told = replace(
        found, gate=gate, when=denied.available_at, details=(_format_slots(worker, status),)
    )
    resource = denied.resource or "a resource"
    waits = f"{job.key!r} is leased by worker {worker!r} and waits"
    if gate is Gate.SLOTS:
        return replace(
            told,
            sentence=f"{waits} for {_slots(resource, status)}.",
            unblocks=(
                f"a job that runs there ends and frees {resource!r}; a worker that starts with "
                "more slots would run more at once"
            ),
            command=_more_slots(job.task, resource, status),
        )
    if gate is Gate.FAIR_SHARE:
        return replace(
            told,
            sentence=f"{waits}: its group {job.group!r} {_format_share(denied, resource)}.",
            unblocks="a job of its group ends there, or the other groups have no ready jobs",
            command=_more_slots(job.task, resource, status),
        )
    if gate is Gate.STOPPING:
        return replace(
            told,
            sentence=f"{waits}, but that worker is stopping and gives it back.",
            unblocks="another worker takes it",
        )
    if denied.until == BY_GATE:
        return waits_for_provider(told, resource, status, facts.now, waits)
    return replace(
        told,
        sentence=f"{waits}: a policy holds it back ({resource}).",
        unblocks=f"{resource!r} opens",
    )


_SLOT_FLAGS = {"thread": "--threads", "process": "--process-slots"}
_SET_SLOTS = frozenset({"async", *_SLOT_FLAGS})  # those of row groups are no setting


def _slots(resource: str, status: WorkerStatus) -> str:
    if resource == SUBMISSION:
        return "a slot: all that runtime.slots allows, of whatever kinds, are in use"
    use = status.slots.get(resource)
    if use is None or use.limit is None:
        return f"{resource!r}"
    return (
        f"one of its {use.limit:,} {resource!r} slots, of which {use.used:,} are in use{_lent(use)}"
    )


def _lent(use: SlotUse) -> str:
    """How many slots are lent out while their bodies wait for a provider."""
    return f", {use.lent:,} of them lent while they wait for a provider" if use.lent else ""


def _more_slots(task: str, kind: str | None, status: WorkerStatus) -> str | None:
    """The command for a worker with twice as many slots of this kind."""
    use = None if kind is None else status.slots.get(kind)
    if kind not in _SET_SLOTS or use is None or use.limit is None:
        return None
    more = max(2 * use.limit, 1)
    if kind in _SLOT_FLAGS:
        return run_command(task, _SLOT_FLAGS[kind], str(more))
    return f"PENSTOCK_RUNTIME__{kind.upper()}_SLOTS={more} {run_command(task)}"


def _format_share(denied: BlockedTasks, resource: str) -> str:
    numbers = denied.numbers
    held, share = numbers.get("held"), numbers.get("share")
    debt, rivals = numbers.get("debt", 0), numbers.get("rivals", 0)
    text = f"has its share of {resource!r}"
    if held is not None and share is not None:
        text = f"holds {held:,.0f} of {resource!r}, and its share is {share:,.0f}"
    if debt:
        text += f"; it has borrowed {debt:,.0f} and repays that first"
    if not rivals:
        return text
    wait = "1 other group waits" if rivals == 1 else f"{rivals:,.0f} other groups wait"
    return f"{text}, while {wait}"


def _format_slots(worker: WorkerId, status: WorkerStatus) -> str:
    """The slots of a worker and their use, as a sentence."""
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
    """Explain a ready job that nothing in the store holds up: budgets, providers, slots, turns."""
    job, statuses = facts.this.job, facts.statuses
    able = [
        view.id
        for view in facts.alive
        if job.task in view.tasks and not _is_stopping(statuses.get(view.id))
    ]
    if not able:
        return _all_stopping(facts)
    known = {name: statuses[name] for name in able if name in statuses}
    found = _its_turn(facts, known)
    refused = [name for name, status in known.items() if job.task in status.over_budget]
    if refused and len(refused) == len(able):
        first = refused[0]
        run_id = next(view.run_id for view in facts.alive if view.id == first)
        refusal = known[first].over_budget[job.task]
        return held_by_budget(facts, replace(found, worker=first), refusal, run_id)
    closed = {
        name: account
        for name, status in known.items()
        for account in status.closed_accounts
        if job.task in account.tasks
    }
    if closed and len(closed) == len(able):
        first, account = next(iter(closed.items()))
        return waits_for_account(replace(found, worker=first), account, facts.now)
    held = [name for name, status in known.items() if job.task in status.held_back]
    full = [name for name, status in known.items() if is_full(status, job.task)]
    if held and len({*held, *full}) == len(able):
        status = known[held[0]]
        ready = span(facts.this.now - job.available_at)
        return waits_for_provider(
            replace(found, worker=held[0]),
            status.held_back[job.task],
            status,
            facts.now,
            f"{job.key!r} has been ready for {ready}, and waits",
        )
    if full and len(full) == len(able):
        return _no_slot(facts, found, full, known[full[0]])
    return found


def _all_stopping(facts: JobFacts) -> Explanation:
    job, task = facts.this.job, task_name(facts.this.job.task)
    return Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.STOPPING,
        sentence=f"Every worker that knows the task {task!r} of {job.key!r} is stopping.",
        unblocks=f"another worker starts that knows the task {task!r}",
        command=run_command(job.task),
        as_of=_oldest(facts.statuses),
    )


def _its_turn(facts: JobFacts, known: Mapping[WorkerId, WorkerStatus]) -> Explanation:
    job = facts.this.job
    queued = facts.stats.groups.get(job.group, {}).get(job.state, 0)
    slots = [_format_slots(name, status) for name, status in list(known.items())[:3]]
    group = f"Its group {job.group!r} has {counted(queued, 'queued job')}; groups take turns."
    return Explanation(
        key=job.key,
        state=job.state,
        gate=Gate.TURN,
        sentence=(
            f"Nothing holds {job.key!r} up: it has been ready for "
            f"{span(facts.this.now - job.available_at)}, and a worker takes it when its turn comes."
        ),
        unblocks="its turn comes",
        details=(*slots, group),
        as_of=_oldest(known),
    )


def _no_slot(
    facts: JobFacts, found: Explanation, full: Sequence[WorkerId], status: WorkerStatus
) -> Explanation:
    job = facts.this.job
    kind = status.task_slots.get(job.task)
    slots = "slot" if kind is None else f"{kind!r} slot"
    use = None if kind is None else status.slots.get(kind)
    count = ""
    if use is not None and use.limit is not None:
        count = f" ({use.used:,} of {use.limit:,}{_lent(use)})"
    every = "Every" if len(full) > 1 else "The only"
    return replace(
        found,
        gate=Gate.SLOTS,
        sentence=(
            f"{every} worker that knows the task {task_name(job.task)!r} has no free {slots}"
            f"{count} for {job.key!r}: {some([repr(name) for name in full])}."
        ),
        unblocks="a job that runs there ends, and its turn comes",
        command=_more_slots(job.task, kind, status),
        worker=full[0],
    )


def _oldest(statuses: Mapping[WorkerId, WorkerStatus]) -> int | None:
    return min((status.captured_at for status in statuses.values()), default=None)


def _is_stopping(status: WorkerStatus | None) -> bool:
    return status is not None and status.stopping


def is_full(status: WorkerStatus, task: str) -> bool:
    """Whether a worker has no slot for one more job of this task."""
    kind = status.task_slots.get(task)
    return any(use.is_full for name, use in status.slots.items() if kind is None or name == kind)


def on_worker(facts: JobFacts, found: Explanation) -> Explanation:
    """Add the deadline that its worker reports, if the worker has answered."""
    answer = next((x.standing for x in facts.answers if x.worker == found.worker), None)
    if answer is None or answer.standing is LeasePhase.UNKNOWN:
        return found
    return replace(found, when=answer.deadline_at, as_of=answer.status.captured_at)

# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts about one job for `why`: reads the store, and asks live workers.

A worker reads its inbox four times a second while it is busy. If none answers in time, or the
store cannot be written, the explanation rests on the store alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from penstock.clock import MICROSECONDS, Clock, blocking_sleep
from penstock.errors import StoreError
from penstock.model.dataset import BUILD
from penstock.model.job import TERMINAL, Job, JobState, WorkerId
from penstock.model.lease import JobRef
from penstock.model.run import RunDocument, read_document
from penstock.model.spending import TOTAL_SPAN, Budget, utc_day
from penstock.model.views import JobContext, WorkerView
from penstock.model.worker import LeaseReport, read_lease_report, read_status, unresponsive_workers
from penstock.observe.explain import budget_stops, closed_accounts
from penstock.observe.phrases import rebuild_command
from penstock.observe.spending import BudgetUse, budget_uses
from penstock.observe.why.facts import JobFacts, KnownCaps, WorkerAnswer
from penstock.process_identity import is_gone
from penstock.stores.protocol import Store

ANSWER_SECONDS = 1.5  # workers that are busy answer within one
POLL_SECONDS = 0.02
ASKED_MAX = 3  # workers that are asked about a job that none of them has
UNBUILT = "upstream failed: "  # how the reason begins of a job that misses a slice of its plan
CHAIN_MAX = 100  # jobs that are followed from one to the one it waits for


def gather_facts(
    store: Store,
    key: str,
    configured: Mapping[str, int],
    clock: Clock,
    budgets: Sequence[Budget] = (),
    gone: Callable[[str], bool] = is_gone,
) -> JobFacts | None:
    """All facts about one job; None if there is no such job.

    Args:
        store: of the job.
        key: of the job.
        configured: caps of limit keys by the settings of this folder.
        clock: of this process.
        budgets: by the settings of this folder.
        gone: whether the process with this mark is certainly gone.
    """
    began = clock.monotonic()
    this = store.job_context(key).result()
    if this is None:
        return None
    chain = tuple(_chain(store, this))
    workers = tuple(store.workers().result())
    stats, overrides = store.stats().result(), store.caps().result()
    silent = unresponsive_workers(workers, gone)
    living = [worker for worker in workers if worker.id not in silent]
    answers = tuple(_ask(store, chain[-1] if chain else this, living, clock))
    last_run = [] if any(worker.alive for worker in living) else _last_run(store)
    return JobFacts(
        this=this,
        now=this.now + round((clock.monotonic() - began) * MICROSECONDS),
        chain=chain,
        stats=stats,
        workers=workers,
        silent=silent,
        caps=KnownCaps(overrides, configured),
        answers=answers,
        budgets=tuple(_budgets(store, living, budgets, utc_day(this.now))),
        stops=budget_stops(last_run),
        closed_accounts=closed_accounts(last_run),
        again=None if this.job.plan_id is None else _again(store, this.job.plan_id),
    )


def _again(store: Store, plan_id: str) -> str | None:
    plan = store.plan(plan_id).result()
    return None if plan is None else rebuild_command(plan)


def _last_run(store: Store) -> list[RunDocument]:
    """What the workers of the last run have written down."""
    parts = store.run_parts(None).result()
    return [found for part in parts if (found := read_document(part.document)) is not None]


def _budgets(
    store: Store, workers: Sequence[WorkerView], budgets: Sequence[Budget], day: str
) -> list[BudgetUse]:
    """The use of the budgets that are set here, or hold a live worker back."""
    alive = [worker for worker in workers if worker.alive]
    told = [status for worker in alive if (status := read_status(worker.status)) is not None]
    holding = [one.budget for status in told for one in status.over_budget.values()]
    known = tuple(dict.fromkeys([*holding, *budgets]))
    if not known:
        return []
    runs = list(dict.fromkeys(worker.run_id for worker in alive))
    return budget_uses(known, store.balances([*runs, day, TOTAL_SPAN]).result(), runs, day)


def _chain(store: Store, this: JobContext) -> Iterator[JobContext]:
    """Follow dependencies from a job to the one that holds it up or caused its skip."""
    seen = {this.job.key}
    link: JobContext | None = this
    while link is not None and len(seen) <= CHAIN_MAX:
        key = _before(link)
        if key is None or key in seen:
            return
        seen.add(key)
        link = store.job_context(key).result()
        if link is not None:
            yield link


def _before(link: JobContext) -> str | None:
    if link.job.state is JobState.WAITING:
        left = (x.key for x in link.dependencies if x.open and x.state not in TERMINAL)
        return next(left, None)
    if link.job.state is not JobState.SKIPPED:
        return None
    return link.skipped_by or unbuilt_by(link.job)


def unbuilt_by(job: Job) -> str | None:
    """The job of the same plan whose missing slice made this one skip itself; None: it did not.

    Edges between such jobs go to gates, which open however their jobs end.
    """
    error = job.last_error
    if job.plan_id is None or error is None or not error.message.startswith(UNBUILT):
        return None
    return f"{BUILD}{job.plan_id}:{error.message.removeprefix(UNBUILT)}"


def _ask(
    store: Store, link: JobContext, workers: Sequence[WorkerView], clock: Clock
) -> Iterator[WorkerAnswer]:
    """Ask the workers that may know more than the store."""
    ref = JobRef(link.job.id, link.job.token)
    asked: dict[WorkerId, int] = {}
    try:
        for worker in _whom(link, workers):
            asked[worker] = store.ask(worker, ref).result()
    except StoreError:  # it cannot be written: nobody can be asked
        return
    until = clock.monotonic() + ANSWER_SECONDS
    while asked:
        for worker, number in list(asked.items()):
            document = store.answer_to(number).result()
            if document is None:
                continue
            del asked[worker]
            standing = read_lease_report(document)
            if standing is not None:
                yield WorkerAnswer(worker, _by_our_clock(standing, link.now))
        if asked:
            if clock.monotonic() >= until:
                return
            blocking_sleep(POLL_SECONDS)


def _by_our_clock(standing: LeaseReport, asked_at: int) -> LeaseReport:
    """Clocks differ: an answer counts from when it was asked for, by the clock of the store."""
    status = replace(standing.status, captured_at=asked_at)
    return replace(standing, status=status)


def _whom(link: JobContext, workers: Sequence[WorkerView]) -> list[WorkerId]:
    """Whom to ask: the holder; for a ready job, busy workers that could take it."""
    alive = {worker.id: worker for worker in workers if worker.alive}
    job = link.job
    if job.state is JobState.IN_PROGRESS:
        return [job.worker] if job.worker is not None and job.worker in alive else []
    if link.detached:
        return [worker for worker in link.detached if worker in alive][:ASKED_MAX]
    if job.state is not JobState.QUEUED or job.available_at > link.now:
        return []
    return [
        worker.id for worker in alive.values() if job.task in worker.tasks and _is_busy(worker)
    ][:ASKED_MAX]


def _is_busy(worker: WorkerView) -> bool:
    status = read_status(worker.status)
    return status is not None and bool(status.running or status.waiting)

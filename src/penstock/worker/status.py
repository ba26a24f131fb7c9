# SPDX-License-Identifier: Apache-2.0
"""The status row of a worker: its metrics, published for `why` and the live view.

Once a second it looks at itself, and writes its row if anything is new: an idle worker writes
nothing. Asked about one lease, it says where that stands. Nobody is woken by either.
"""

from __future__ import annotations

import heapq
from math import isfinite

from penstock.admission.tasks.decisions import TaskAdmissionDenied, TaskAdmissionView
from penstock.admission.tasks.queue import BlockedLine, QueueView
from penstock.clock import MICROSECONDS
from penstock.errors import TRANSIENT
from penstock.model.job import WorkerId
from penstock.model.lease import JobRef
from penstock.model.provider import gate_name
from penstock.model.task import SUBMISSION
from penstock.model.worker import (
    CAPS_SHOWN,
    GROUPS_SHOWN,
    LINES_SHOWN,
    PROGRESS_SHOWN,
    TASKS_SHOWN,
    BlockedTasks,
    GroupUse,
    JobProgress,
    LeasePhase,
    LeaseReport,
    SlotUse,
    WorkerStatus,
    WorkProgress,
)
from penstock.process_identity import identity, own_identity
from penstock.worker.attempt import NEVER, Attempt
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick, WorkerObserver

STATUS_SECONDS = 1.0  # between two looks


class StatusRow(WorkerObserver):
    """Owns the status of one worker as it was last published. Belongs to one loop."""

    def __init__(self, core: WorkerCore) -> None:
        self._core = core
        self._clock = core.parts.clock
        self._executor = core.executor
        configured = dict(core.parts.caps.configured)
        self._caps = configured if len(configured) <= CAPS_SHOWN else None
        slot_kinds = core.slot_kinds
        self._task_slots = {name: slot_kinds[name] for name in sorted(slot_kinds)[:TASKS_SHOWN]}
        self._process = own_identity()
        supervisor_pid = core.config.supervisor_pid
        self._supervisor = identity(supervisor_pid) if supervisor_pid else ""
        self._is_stopping = False
        self._looked: WorkerStatus | None = None
        self._published: tuple[WorkerId, WorkerStatus] | None = None
        self._next_monotonic = 0.0
        self._is_publishing = False

    def ticked(self, tick: Tick) -> None:
        self._is_stopping = tick.is_stopping
        if tick.is_registered and self._is_due(tick.worker):
            self._core.parts.loop.spawn(self._publish(tick.worker))

    def _is_due(self, worker: WorkerId) -> bool:
        """A second has passed, and something is not published yet."""
        now = self._clock.monotonic()
        if now < self._next_monotonic or self._is_publishing:
            return False
        self._next_monotonic = now + STATUS_SECONDS
        status = self._look()
        return (
            self._published is None
            or self._published[0] != worker
            or not status.same(self._published[1])
        )

    @property
    def looked(self) -> WorkerStatus | None:
        """What it saw when it last looked at itself."""
        return self._looked

    async def _publish(self, worker: WorkerId) -> None:
        """Write the row; if the store is unreachable, the next second tries again."""
        if self._looked is None:
            return
        status, self._is_publishing = self._looked, True
        try:
            await self._core.parts.store.publish(worker, status.encoded())
        except TRANSIENT:
            return
        finally:
            self._is_publishing = False
        self._published = worker, status

    def standing(self, ref: JobRef) -> LeaseReport:
        """Where a lease stands in this worker, now."""
        status = self._look()
        attempt = self._attempt(ref)
        if attempt is not None:
            stops = attempt.ended or attempt.stop is not None
            return LeaseReport(
                standing=LeasePhase.STOPPING if stops else LeasePhase.RUNNING,
                status=status,
                since_at=attempt.started_at,
                permit_since_at=self._permit_since(attempt),
                permit_of=_provider_of(attempt),
                money_of=None
                if attempt.request_context is None
                else attempt.request_context.waits_for_budget,
                deadline_at=None if attempt.ended else self._at(attempt.deadline_monotonic),
                progress=_progress_of(attempt),
            )
        if ref in self._core.window.refs():
            denied = self._core.window.scheduler.standing(ref)
            blocked = None if denied is None else _blocked_tasks(denied, 1, 1, self._now())
            return LeaseReport(standing=LeasePhase.WAITING, status=status, denied=blocked)
        known = ref in self._core.completer.refs()
        return LeaseReport(
            standing=LeasePhase.ENDED if known else LeasePhase.UNKNOWN, status=status
        )

    def _permit_since(self, attempt: Attempt) -> int | None:
        """Since when it waits for a provider, if it does."""
        if attempt.request_context is None or not attempt.waits_for_permit:
            return None
        return self._at(attempt.request_context.wait_began)

    def _attempt(self, ref: JobRef) -> Attempt | None:
        found = self._executor.running.get(ref)
        if found is not None:
            return found
        return next((x for x in self._executor.detached if x.ref == ref), None)

    def _look(self) -> WorkerStatus:
        """The worker at this moment, from its ledger and its queue; bounded, whatever it has."""
        core, now_at = self._core, self._now()
        config, window, providers = core.config, core.window, core.parts.providers
        ledger, queue = window.scheduler.controller.view(), window.scheduler.queue.view()
        running = ledger.running_counts_by_group
        lines = heapq.nlargest(LINES_SHOWN, queue.blocked(), key=lambda line: line.tasks)
        self._looked = WorkerStatus(
            captured_at=now_at,
            process=self._process,
            supervisor=self._supervisor,
            lease_ttl_seconds=config.lease_ttl_seconds,
            beat_seconds=config.beat_seconds,
            solo=config.solo,
            place=config.place,
            stopping=self._is_stopping,
            app=config.app,
            plan=config.plan,
            slots={
                resource: _slot_use(
                    limit, ledger.leased_resources.get(resource, 0), config.slots.get(resource)
                )
                for resource, limit in ledger.resource_limits.items()
                if resource != SUBMISSION
            },
            task_slots=self._task_slots,
            running=core.executor.occupied,
            waiting=len(window),
            groups=_group_uses(ledger, queue),
            groups_total=len({*running, *queue.groups()}),
            blocked=tuple(_line(line, self._looked, now_at) for line in lines),
            caps=self._caps,
            providers=() if providers is None else providers.uses(),
            held_back=window.held_back_by(),
            full_limits=core.lease_loop.full.shown(),
            over_budget=dict(core.hold.refusals),
            closed_accounts=core.accounts.closed(),
            progress=self._told_progress(),
        )
        return self._looked

    def _told_progress(self) -> tuple[JobProgress, ...]:
        """How far jobs are that tell it: a bounded number, those that began first."""
        running = self._executor.running.values()
        told = (attempt for attempt in running if attempt.context._progress is not None)
        first = heapq.nsmallest(PROGRESS_SHOWN, told, key=lambda one: (one.started_at, one.job.id))
        return tuple(
            JobProgress(attempt.job.key, attempt.started_at, progress)
            for attempt in first
            if (progress := _progress_of(attempt)) is not None
        )

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)

    def _at(self, monotonic: float) -> int | None:
        if monotonic == NEVER:
            return None
        return self._now() + round((monotonic - self._clock.monotonic()) * MICROSECONDS)


def _group_uses(ledger: TaskAdmissionView, queue: QueueView) -> dict[str, GroupUse]:
    """The groups with most tasks."""
    running = ledger.running_counts_by_group
    first = heapq.nlargest(
        GROUPS_SHOWN,
        {*running, *queue.groups()},
        key=lambda name: (running.get(name, 0) + queue.queued(name), name),
    )
    debts: dict[str, int] = {}
    for (name, _), debt in ledger.policy_debt_by_group_resource.items():
        debts[name] = debts.get(name, 0) + debt
    return {
        name: GroupUse(running.get(name, 0), queue.queued(name), debts.get(name, 0))
        for name in first
    }


def _slot_use(limit: int | None, used: int, configured: int | None) -> SlotUse:
    """There are more slots than were configured while some of them are lent."""
    if limit is None or configured is None or limit <= configured:
        return SlotUse(limit, used)
    return SlotUse(configured, used, limit - configured)


def _line(line: BlockedLine, before: WorkerStatus | None, now_at: int) -> BlockedTasks:
    """Tasks that wait for one thing; since when is known from the look before."""
    found = _blocked_tasks(line.denied, line.tasks, line.groups, now_at)
    for known in before.blocked if before is not None else ():
        if known.same_gate(found):
            return found.since(known.since_at)
    return found


def _blocked_tasks(
    denied: TaskAdmissionDenied, tasks: int, groups: int, now_at: int
) -> BlockedTasks:
    """A denial, as it is published."""
    gate = denied.item.request_resource_key
    after = denied.available_after
    return BlockedTasks(
        reason=denied.reason.value,
        until=denied.until.value,
        resource=denied.resource
        if denied.resource is not None or gate is None
        else gate_name(gate),
        tasks=tasks,
        groups=groups,
        since_at=now_at,
        numbers=dict(denied.numbers),
        available_at=None if after is None else now_at + round(after * MICROSECONDS),
    )


def _provider_of(attempt: Attempt) -> str | None:
    gate = attempt.lease.item.request_resource_key
    return None if gate is None else gate_name(gate)


def _progress_of(attempt: Attempt) -> WorkProgress | None:
    """What its body said last of how far it is."""
    said = attempt.context._progress
    if said is None:
        return None
    try:
        numbers = [float(number) for number in said if number is not None]
    except (TypeError, ValueError, OverflowError):
        return None  # not numbers: whatever it is, it is not ours to show
    return WorkProgress(*numbers) if all(map(isfinite, numbers)) else None

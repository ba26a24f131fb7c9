# SPDX-License-Identifier: Apache-2.0
"""What does a worker tell others of itself, and when?

Once a second it looks at itself, and writes its row if anything is new: an idle worker writes
nothing. Asked about one lease, it says where that stands. Nobody is woken by either.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from math import isfinite

from penstock.admission.tasks.controller import TaskAdmissionController
from penstock.admission.tasks.decisions import TaskAdmissionDenied
from penstock.admission.tasks.queue import BlockedLine, QueueView
from penstock.clock import MICROSECONDS, Clock
from penstock.errors import TRANSIENT
from penstock.model.job import WorkerId
from penstock.model.lease import Caps, JobRef
from penstock.model.provider import gate_name
from penstock.model.spending import BudgetRefusal
from penstock.model.task import SUBMISSION
from penstock.model.worker import (
    CAPS_SHOWN,
    GROUPS_SHOWN,
    LINES_SHOWN,
    TASKS_SHOWN,
    BlockedTasks,
    GroupUse,
    JobStanding,
    ProviderUse,
    SlotUse,
    Standing,
    WorkerStatus,
    WorkProgress,
)
from penstock.process_identity import own_mark
from penstock.stores.protocol import StatusStore
from penstock.worker.attempt import NEVER, Attempt
from penstock.worker.executor import JobExecutor
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.parts import Background, WorkerConfig
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.provider_run import ProviderRun

STATUS_SECONDS = 1.0  # between two looks

_NOTHING: dict[str, str] = {}
_NO_LIMITS: dict[str, int] = {}


class StatusRow(WorkerObserver):
    """Owns the last word of one worker. Belongs to one loop."""

    def __init__(
        self,
        config: WorkerConfig,
        store: StatusStore,
        clock: Clock,
        window: PrefetchWindow,
        slots: JobExecutor,
        ending: Callable[[], Iterable[tuple[int, int]]],
        caps: Caps,
        kinds: Mapping[str, str],
        background: Background,
        providers: ProviderRun | None = None,
    ) -> None:
        self._config = config
        self._process = own_mark()
        self._store = store
        self.full_limits: Callable[[], dict[str, int]] = dict  # that hold jobs back
        self._providers = providers
        self._clock = clock
        self._window = window
        self._slots = slots
        self._ending = ending  # leases whose ends are on the way to the store
        configured = dict(caps.configured)
        self._caps = configured if len(configured) <= CAPS_SHOWN else None
        self._task_slots = {name: kinds[name] for name in sorted(kinds)[:TASKS_SHOWN]}
        self.stopping = False
        self.refusals: Mapping[str, BudgetRefusal] = {}  # task → the budget that holds it back
        self._looked: WorkerStatus | None = None
        self._told: tuple[WorkerId, WorkerStatus] | None = None
        self._next_monotonic = 0.0
        self._publishing = False
        self._background = background

    def ticked(self, tick: Tick) -> None:
        if tick.is_registered and self.is_due(tick.worker):
            self._background.spawn(self.publish(tick.worker))

    def is_due(self, worker: WorkerId) -> bool:
        """Has a second passed, and is there anything that was not told yet?"""
        now = self._clock.monotonic()
        if now < self._next_monotonic or self._publishing:
            return False
        self._next_monotonic = now + STATUS_SECONDS
        status = self._look()
        return self._told is None or self._told[0] != worker or not status.same(self._told[1])

    @property
    def looked(self) -> WorkerStatus | None:
        """What it saw when it last looked at itself."""
        return self._looked

    async def publish(self, worker: WorkerId) -> None:
        """Write the row; if the store is unreachable, the next second tries again."""
        if self._looked is None:
            return
        status, self._publishing = self._looked, True
        try:
            await self._store.publish(worker, status.encoded())
        except TRANSIENT:
            return
        finally:
            self._publishing = False
        self._told = worker, status

    def standing(self, ref: JobRef) -> JobStanding:
        """Where a lease stands in this worker, now."""
        status = self._look()
        attempt = self._attempt(ref)
        if attempt is not None:
            stops = attempt.ended or attempt.stop is not None
            return JobStanding(
                standing=Standing.STOPPING if stops else Standing.RUNNING,
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
        if ref in self._window.refs():
            denied = self._window.scheduler.standing(ref)
            blocked = None if denied is None else blocked_tasks(denied, 1, 1, self._now())
            return JobStanding(standing=Standing.WAITING, status=status, denied=blocked)
        known = ref in self._ending()
        return JobStanding(standing=Standing.ENDED if known else Standing.UNKNOWN, status=status)

    def _permit_since(self, attempt: Attempt) -> int | None:
        """Since when it waits for a provider, if it does."""
        if attempt.request_context is None or not attempt.stands_still:
            return None
        return self._at(attempt.request_context.wait_began)

    def _attempt(self, ref: JobRef) -> Attempt | None:
        found = self._slots.running.get(ref)
        if found is not None:
            return found
        return next((x for x in self._slots.abandoned if x.ref == ref), None)

    def _look(self) -> WorkerStatus:
        scheduler = self._window.scheduler
        self._looked = capture(
            self._config,
            self._process,
            self._now(),
            scheduler.controller,
            scheduler.queue.view(),
            before=self._looked,
            waiting=len(self._window),
            stopping=self.stopping,
            task_slots=self._task_slots,
            caps=self._caps,
            providers=() if self._providers is None else self._providers.uses(),
            held_back=self._window.held_back_by(),
            full_limits=self.full_limits(),
            over_budget=dict(self.refusals),
        )
        return self._looked

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)

    def _at(self, monotonic: float) -> int | None:
        if monotonic == NEVER:
            return None
        return self._now() + round((monotonic - self._clock.monotonic()) * MICROSECONDS)


def capture(
    config: WorkerConfig,
    process: str,
    now_at: int,
    controller: TaskAdmissionController,
    queue: QueueView,
    *,
    before: WorkerStatus | None,
    waiting: int,
    stopping: bool,
    task_slots: dict[str, str],
    caps: dict[str, int] | None,
    providers: tuple[ProviderUse, ...] = (),
    held_back: dict[str, str] = _NOTHING,
    full_limits: dict[str, int] = _NO_LIMITS,
    over_budget: dict[str, BudgetRefusal] | None = None,
) -> WorkerStatus:
    """A worker at one moment, from its ledger and its queue; bounded, whatever it has."""
    ledger = controller.view()
    running = ledger.running_counts_by_group
    groups = {*running, *queue.groups()}
    first = heapq.nlargest(
        GROUPS_SHOWN, groups, key=lambda name: (running.get(name, 0) + queue.queued(name), name)
    )
    debts: dict[str, int] = {}
    for (name, _), debt in ledger.policy_debt_by_group_resource.items():
        debts[name] = debts.get(name, 0) + debt
    lines = heapq.nlargest(LINES_SHOWN, queue.blocked(), key=lambda line: line.tasks)
    return WorkerStatus(
        captured_at=now_at,
        process=process,
        lease_ttl_seconds=config.lease_ttl_seconds,
        beat_seconds=config.beat_seconds,
        solo=config.solo,
        place=config.place,
        stopping=stopping,
        slots={
            resource: _slot_use(
                limit, ledger.leased_resources.get(resource, 0), config.slots.get(resource)
            )
            for resource, limit in ledger.resource_limits.items()
            if resource != SUBMISSION
        },
        task_slots=task_slots,
        running=sum(running.values()),
        waiting=waiting,
        groups={
            name: GroupUse(running.get(name, 0), queue.queued(name), debts.get(name, 0))
            for name in first
        },
        groups_total=len(groups),
        blocked=tuple(_line(line, before, now_at) for line in lines),
        caps=caps,
        providers=providers,
        held_back=held_back,
        full_limits=full_limits,
        over_budget=over_budget or {},
    )


def _slot_use(limit: int | None, used: int, configured: int | None) -> SlotUse:
    """There are more slots than were configured while some of them are lent."""
    if limit is None or configured is None or limit <= configured:
        return SlotUse(limit, used)
    return SlotUse(configured, used, limit - configured)


def _line(line: BlockedLine, before: WorkerStatus | None, now_at: int) -> BlockedTasks:
    """Tasks that wait for one thing; since when is known from the look before."""
    found = blocked_tasks(line.denied, line.tasks, line.groups, now_at)
    for known in before.blocked if before is not None else ():
        if known.same_gate(found):
            return found.since(known.since_at)
    return found


def blocked_tasks(
    denied: TaskAdmissionDenied, tasks: int, groups: int, now_at: int
) -> BlockedTasks:
    """A denial, as others are told it."""
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

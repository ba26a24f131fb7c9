# SPDX-License-Identifier: Apache-2.0
"""The accounting of one worker: what limits it, the most that it held, and the record of its run.

`BottleneckProbe` finds the bottleneck at the end of every turn, from what is at hand. The store is
asked for two things, not more often than once a second: whether jobs wait for others, when slots
are free while something runs; and who holds what is left, when nothing does.

`RunRecord` saves the worker's part of the run as soon as it has a name, so that the run is known
whatever becomes of it; then after a second, two, four, eight, and every ten if anything is new; and
at its end. So whoever is killed takes little with it. A store that cannot take it hurts nobody: the
next save has everything that this one had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import islice

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionDenied, Until
from penstock.clock import MICROSECONDS
from penstock.errors import StoreError
from penstock.model.job import JobKind, JobState, WorkerId, kind_of_name
from penstock.model.lease import JobFailure
from penstock.model.provider import ClosedAccount, gate_name
from penstock.model.run import (
    GATES_SHOWN,
    AsyncCapacityPlan,
    CapacityValue,
    LimitKind,
    ModelFigures,
    RunDocument,
    RunPart,
    missing,
)
from penstock.model.spending import BudgetStop
from penstock.model.task import SUBMISSION
from penstock.model.views import Outlook
from penstock.model.worker import WorkerStatus, read_status, unresponsive_workers
from penstock.process_identity import is_gone, own_identity
from penstock.worker.attempt import Attempt, AttemptEnd
from penstock.worker.bottleneck import Cause, place_name
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.status import StatusRow

ASK_SECONDS = 1.0  # between two questions whether jobs wait for others
FIRST_SECONDS = 1.0  # between the first two saves of a worker that has something new to record
SAVE_SECONDS = 10.0  # the most between two; each time it is twice as long
END_SECONDS = 2.0  # for the last save
GROUPS_KEPT = 1_000  # whose maxima are known; any group beyond is left out
GROUPS_SHOWN = 20  # of a plan, those with most tasks first
MODELS_SHOWN = 50
NO_TABLES = "this version has no tables, so there are no row groups"
NO_PROVIDERS = "the app has no providers"
NOBODY_ASKED = "no request was sent"

_HERE = "this worker"

log = logging.getLogger("penstock.worker")

_RUNNING = Cause(None)
_STORE = Cause(LimitKind.STORE)
_IDLE = Cause(LimitKind.IDLE)
_PAUSED = Cause(LimitKind.PAUSED)
_DELAYS = Cause(LimitKind.DELAYS)
_ELSEWHERE = Cause(LimitKind.ELSEWHERE)
_SUSPECTS = Cause(LimitKind.SUSPECTS)
_LOST = Cause(LimitKind.LOST)
_FAIR_ORDER = Cause(LimitKind.FAIR_ORDER, by_holders=True)
_DEPENDENCIES = Cause(LimitKind.DEPENDENCIES, by_holders=True)


class RequestWaits(WorkerObserver):
    """Tells the bottleneck which attempts there are, where their waits for requests count."""

    def __init__(self, core: WorkerCore) -> None:
        self._bottleneck = core.window.scheduler.bottleneck

    def started(self, attempt: Attempt) -> None:
        self._bottleneck.began(attempt.ref)

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        self._bottleneck.left(attempt.ref)


class BottleneckProbe(WorkerObserver):
    """Tells the integrator how each turn leaves the worker. Decides nothing but what is charged.

    Owns what the store last said of jobs that wait for others, and of who holds the rest.
    """

    def __init__(self, core: WorkerCore) -> None:
        slot_kinds = core.slot_kinds
        self._core = core
        self._tasks = tuple(slot_kinds)
        self._jobs = tuple(task for task in slot_kinds if kind_of_name(task) is not JobKind.STEP)
        self._slot_kinds = tuple(dict.fromkeys(slot_kinds.values()))
        self._window = core.window
        self._executor = core.executor
        self._lease_loop = core.lease_loop
        self._drain = core.drain
        self._bottleneck = core.window.scheduler.bottleneck
        self._queue = core.window.scheduler.queue.view()
        self._process = own_identity()
        self._is_asking = False
        self._asked_monotonic = -ASK_SECONDS
        self._waiting_jobs = 0  # in the store, for others to end
        self._holders = _ELSEWHERE  # who seems to hold what is left

    def turned(self, goes_on: bool) -> None:
        running = len(self._executor.running)
        cause = self._cause(running, goes_on)
        self._bottleneck.turned(running, cause, self._queue.blocked())

    def _cause(self, running: int, goes_on: bool) -> Cause:
        lease_loop = self._lease_loop
        if running and next(iter(self._executor.running.values())).job.cell is not None:
            return _SUSPECTS  # nothing else runs beside them
        if self._queue.queued_total:  # 1. something ready waits
            denied = self._queue.binding()
            if denied is None or not goes_on:
                return _STORE  # ends have to be taken before anything more is begun
            return self._denied(denied)
        if lease_loop.knows_more:
            full = self._full_slot_kind()
            if full is not None:
                return Cause(LimitKind.SLOTS, full, self._executor.count(full), by_holders=True)
            if lease_loop.busy:
                return _STORE
        kept = self._kept_in_store(running)
        if kept is not None:
            return kept
        if running:  # 2. nothing ready waits, something runs
            if self._waiting_jobs and self._is_room():
                return _DEPENDENCIES
            return _RUNNING
        if lease_loop.busy or self._core.completer.pending or not goes_on:
            return _STORE  # it asks, acknowledges, or is not registered there
        return self._left(lease_loop.paused)

    def _denied(self, denied: TaskAdmissionDenied) -> Cause:
        """A leased job waits for something in this worker."""
        if denied.until is Until.GATE:
            return self._gate(denied.item.request_resource_key, denied.resource, denied.numbers)
        slot_kind = _slot_kind(denied)
        if denied.reason is DenialReason.NO_CAPACITY or self._is_full(slot_kind):
            return Cause(
                LimitKind.SLOTS, slot_kind, self._executor.count(slot_kind), by_holders=True
            )
        return _FAIR_ORDER

    def _gate(self, gate: Hashable, named: str | None, numbers: Mapping[str, float]) -> Cause:
        providers = self._core.parts.providers
        model = None if providers is None else providers.gate_of(gate)
        if numbers.get("cooldown_seconds", 0.0) > 0 or model is None:
            where = named or gate_name(gate)
            return Cause(LimitKind.COOLDOWN, where if model is None else place_name(model))
        return Cause(LimitKind.ADAPTIVE_LIMIT, gate=model)

    def _kept_in_store(self, running: int) -> Cause | None:
        """Jobs are ready in the store, and may not be handed out, or are not asked for."""
        room = self._is_room()
        blocked = self._lease_loop.blocked
        if blocked and room:
            return Cause(LimitKind.KEYED_LIMIT, blocked[0].limit_key, blocked[0].cap)
        if self._window.held_back and room and self._lease_loop.knows_more:
            gate = self._window.gate_in_the_way()
            if gate is not None:
                cooldown = {"cooldown_seconds": gate.cooldown_seconds}
                return self._gate(gate.resource, None, cooldown)
        if running and room and not self._lease_loop.busy:
            self._ask(self._find_waiting)
        return None

    def _left(self, paused: bool) -> Cause:
        """3. Nothing runs: what the jobs that are left wait for."""
        if paused:
            return _PAUSED
        outlook = self._drain.outlook
        if outlook is None:  # nobody waits for its end: what is for later is no limit
            found = _IDLE if self._lease_loop.next_due_at is None else self._delays()
            return _IDLE if found is _DELAYS else found
        states = _states(outlook, (*self._tasks, *outlook.served_elsewhere))
        if states[JobState.IN_PROGRESS]:
            self._ask(self._find_holders)
            if self._holders is _ELSEWHERE and states[JobState.WAITING]:
                return _DEPENDENCIES
            return self._holders
        if outlook.suspects:
            return _SUSPECTS
        if self._lease_loop.next_due_at is not None and states[JobState.QUEUED]:
            return self._delays()
        if states[JobState.QUEUED]:
            return _STORE
        return _DEPENDENCIES if states[JobState.WAITING] else _IDLE

    def _delays(self) -> Cause:
        """Jobs are for later; those that a provider has put off wait for its cool-down."""
        gate = self._window.gate_in_the_way()
        if gate is None or gate.cooldown_seconds <= 0:
            return _DELAYS
        return self._gate(gate.resource, None, {"cooldown_seconds": gate.cooldown_seconds})

    def _is_room(self) -> bool:
        free = self._executor.free()
        return any(free[one] for one in self._slot_kinds)

    def _is_full(self, slot_kind: str) -> bool:
        return not self._executor.free().get(slot_kind, 0)

    def _full_slot_kind(self) -> str | None:
        """A kind of which every slot is taken."""
        free = self._executor.free()
        return next((one for one in self._slot_kinds if not free[one]), None)

    def _ask(self, find: Callable[[], Coroutine[None, None, None]]) -> None:
        now = self._core.parts.clock.monotonic()
        if not self._is_asking and now - self._asked_monotonic >= ASK_SECONDS:
            self._is_asking, self._asked_monotonic = True, now
            self._core.parts.loop.spawn(self._find(find))

    async def _find(self, find: Callable[[], Coroutine[None, None, None]]) -> None:
        """Ask the store; what it cannot answer now is taken as unknown."""
        try:
            await find()
        except StoreError:
            self._waiting_jobs, self._holders = 0, _ELSEWHERE
        finally:
            self._is_asking = False
            self._core.parts.loop.wake()

    async def _find_waiting(self) -> None:
        """Count the jobs that wait; steps of builds always do, and hold nothing up."""
        outlook = await self._core.parts.store.outlook(WorkerId(""), self._core.config.run_id)
        self._waiting_jobs = _states(outlook, self._jobs)[JobState.WAITING]

    async def _find_holders(self) -> None:
        """Others that work, one that runs suspects, or one that died."""
        views = await self._core.parts.store.workers()
        silent = unresponsive_workers(views, is_gone)
        busy = [
            status
            for view in views
            if view.alive and view.id not in silent and (status := read_status(view.status))
            if status.process != self._process and (status.running or status.waiting)
        ]
        if busy:
            self._holders = _SUSPECTS if all(one.solo for one in busy) else _ELSEWHERE
        else:
            is_lost = any(silence.jobs for silence in silent.values())
            self._holders = _LOST if is_lost else _ELSEWHERE


def _slot_kind(denied: TaskAdmissionDenied) -> str:
    """The kind of slot that a task waits for."""
    if denied.resource is not None and denied.resource != SUBMISSION:
        return denied.resource
    needs = denied.item.resource_request.needs
    return next((name for name, _ in needs if name != SUBMISSION), SUBMISSION)


def _states(outlook: Outlook, tasks: Iterable[str]) -> dict[JobState, int]:
    """Open jobs of some tasks, by state."""
    found = dict.fromkeys(JobState, 0)
    for task in dict.fromkeys(tasks):
        if kind_of_name(task) is JobKind.TICK:
            continue  # a unit is always for later
        for state, count in outlook.open_by_task.get(task, {}).items():
            found[state] += count
    return found


class CapacityRecord(WorkerObserver):
    """Owns the maxima of one worker. Belongs to one loop."""

    def __init__(self, core: WorkerCore, status: StatusRow) -> None:
        self._executor = core.executor
        self._status = status
        self._configured = dict(core.config.capacity)
        self._controller = core.window.scheduler.controller
        self._providers = providers = core.parts.providers
        for where, said in providers.declared().items() if providers is not None else ():
            aliases = CapacityValue({**said}, "code and settings; the least counts")
            self._configured[f"static_caps.{where}.aliases"] = aliases
        self._leases: dict[str, int] = {}  # by resource
        self._queued: dict[str, int] = {}  # by group
        self._running = 0
        self._seen: WorkerStatus | None = None

    def turned(self, goes_on: bool) -> None:
        """Only a turn can leave more held than before."""
        running = len(self._executor.running)
        if running > self._running:
            self._running = running
        leases = self._leases
        for resource, amount in self._controller.leased.items():
            if amount > leases.get(resource, 0):
                leases[resource] = amount

    def ticked(self, tick: Tick) -> None:
        """The worker looks at itself once a second; what it saw then counts."""
        status = self._status.looked
        if status is self._seen or status is None:
            return
        self._seen = status
        for name, group in status.groups.items():
            known = self._queued.get(name)
            if known is None and len(self._queued) >= GROUPS_KEPT:
                continue
            self._queued[name] = max(known or 0, group.waiting)

    def plan(self, models: Sequence[ModelFigures]) -> AsyncCapacityPlan:
        """Configured, current and observed capacity up to now."""
        return AsyncCapacityPlan(self._configured, self._snapshot(models), self._maxima(models))

    def _snapshot(self, models: Sequence[ModelFigures]) -> dict[str, CapacityValue]:
        limits = self._controller.limits
        found = {
            "task_resource_limits": CapacityValue(
                {name: float(limit) for name, limit in limits.items()}, _HERE
            )
        }
        if self._providers is None:
            names = ("request_limits", "request_effective_max", "cooldown_seconds", "in_flight")
            return found | dict.fromkeys(names, missing(NO_PROVIDERS))
        cooling = self._providers.cooldowns()
        return found | {
            "request_limits": _by_model(models, lambda one: one.limit),
            "request_effective_max": _by_model(models, lambda one: one.limit_max),
            "cooldown_seconds": CapacityValue(cooling, _HERE),
            "in_flight": CapacityValue(self._providers.in_flight, _HERE),
        }

    def _maxima(self, models: Sequence[ModelFigures]) -> dict[str, CapacityValue]:
        groups = nlargest(GROUPS_SHOWN, self._queued.items(), key=lambda one: one[1])
        found = {
            "row_groups_in_flight": missing(NO_TABLES),
            "tasks_running": CapacityValue(self._running, _HERE),
            "task_leases": CapacityValue(
                {name: float(count) for name, count in self._leases.items()}, _HERE
            ),
            "queued_by_group": CapacityValue(
                {name: float(count) for name, count in groups if count}, f"{_HERE}, once a second"
            ),
        }
        if self._providers is None:
            names = ("request_waiters", "request_in_flight", "request_limits", "in_flight")
            return found | dict.fromkeys(names, missing(NO_PROVIDERS))
        return found | {
            "request_waiters": _by_model(models, lambda one: one.waiting_max),
            "request_in_flight": _by_model(models, lambda one: one.in_flight_max),
            "request_limits": _by_model(models, lambda one: one.limit_reached),
            "in_flight": CapacityValue(self._providers.in_flight_max, _HERE),
        }


def _by_model(
    models: Sequence[ModelFigures], value: Callable[[ModelFigures], int]
) -> CapacityValue:
    if not models:
        return missing(NOBODY_ASKED)
    shown = models[:MODELS_SHOWN]
    return CapacityValue({f"{one.provider}/{one.model}": float(value(one)) for one in shown}, _HERE)


class RunRecord(WorkerObserver):
    """Owns what one worker records of its run. Belongs to one loop."""

    def __init__(self, core: WorkerCore, capacity: CapacityRecord) -> None:
        self._core = core
        self._config = core.config
        self._clock = clock = core.parts.clock
        self._totals = core.totals
        self.capacity = capacity
        self._bottleneck = core.window.scheduler.bottleneck
        self._began_at = self._now()
        self._next_monotonic = clock.monotonic()
        self._pause_seconds = FIRST_SECONDS
        self._worker = WorkerId("")  # its name now
        #: A lost lease makes a worker somebody else; its part of the run goes on under one name.
        self._name = WorkerId("")
        self._is_saving = False
        self._saved: object = None
        self._cpu_began = clock.cpu()
        self._late_seconds = 0.0  # of the loop
        self._stops: tuple[BudgetStop, ...] = ()  # the budgets that end it
        self._closed_accounts: tuple[ClosedAccount, ...] = ()  # the accounts that do

    def ticked(self, tick: Tick) -> None:
        self._late_seconds += tick.late_seconds
        if self.is_due(tick.worker):
            self._core.parts.loop.spawn(self.save(tick.worker))

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        if type(end) is JobFailure:
            if end.refused_by is None:
                self._totals.retries += 1
            else:
                self._totals.put_back += 1

    def is_due(self, worker: WorkerId) -> bool:
        """It is time, and something was not saved yet."""
        now = self._clock.monotonic()
        if now < self._next_monotonic or self._is_saving or not worker:
            return False
        self._next_monotonic = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, SAVE_SECONDS)
        return self._news() != self._saved

    async def save(self, worker: WorkerId, *, over: bool = False) -> None:
        """Write it down; a failure is logged, and hurts nobody."""
        self._name, self._worker = self._name or worker, worker or self._worker
        if not self._name:
            return  # it never was anybody
        self._is_saving = True
        try:
            news, document = self._news(), self.document(over=over)
            part = RunPart(self._config.run_id, self._name, document.told_at, document.encoded())
            await self._core.parts.store.save_run(part)
            self._saved = news
        except Exception as error:
            log.debug("The record of this run was not saved: %r", error)
        finally:
            self._is_saving = False

    async def end(
        self, worker: WorkerId, stops: Sequence[BudgetStop], closed: Sequence[ClosedAccount]
    ) -> None:
        """The worker ends: save for the last time, if the store takes it soon."""
        self._stops, self._closed_accounts = tuple(stops), tuple(closed)
        try:
            await asyncio.wait_for(self.save(worker, over=True), END_SECONDS)
        except TimeoutError:
            log.debug("The store did not answer in time: the end of this run is not recorded.")

    def document(self, *, over: bool = False) -> RunDocument:
        """Everything up to now."""
        core, totals, bottleneck = self._core, self._totals, self._bottleneck
        models = () if core.parts.providers is None else core.parts.providers.figures()
        held = core.window.scheduler.controller.held_leases()
        return RunDocument(
            began_at=self._began_at,
            told_at=self._now(),
            over=over,
            within_seconds=max(self._next_monotonic - self._clock.monotonic(), 0.0),
            worker=self._worker,
            place=self._config.place,
            solo=self._config.solo,
            stops=self._stops,
            closed_accounts=self._closed_accounts,
            causes=bottleneck.causes(),
            doing=bottleneck.doing(),
            ended=totals.ended,
            refused=totals.refused,
            retries=totals.retries,
            put_back=totals.put_back,
            cpu_seconds=self._clock.cpu() - self._cpu_began,
            late_seconds=self._late_seconds,
            slots={one: core.config.slots[one] for one in core.slot_kinds.values()},
            models=models,
            gates=dict(islice(bottleneck.gates().items(), GATES_SHOWN)),
            used=bottleneck.used(held),
            capacity=self.capacity.plan(models),
        )

    def _news(self) -> object:
        """What must differ for another save to be worth a write; time alone does not."""
        charged = sum(c.seconds for c in self._bottleneck.causes() if c.kind is not LimitKind.IDLE)
        totals = self._totals
        return charged, totals.ended, totals.refused, totals.retries, totals.put_back

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)

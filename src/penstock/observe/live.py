# SPDX-License-Identifier: Apache-2.0
"""The metrics of a run in one snapshot: work, providers, workers, waiting reasons.

The live view draws it. Derived from the store and the status rows of the workers alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import TERMINAL, JobState
from penstock.model.plan import LevelStates, PlanRow
from penstock.model.schedule import UnitView
from penstock.model.spending import ALL, Balance, Period
from penstock.model.task import SUBMISSION
from penstock.model.views import Outlook, Stats, WorkerView
from penstock.model.worker import (
    PROGRESS_SHOWN,
    BlockedTasks,
    JobProgress,
    UnresponsiveWorker,
    WorkerStatus,
    read_status,
)
from penstock.observe.phrases import plan_facts, span
from penstock.observe.providers import Binding, LiveLimit, provider_rows
from penstock.sentences import counted

REASONS_MAX = 12  # more are not shown
BY_GATE = "gate"  # what a provider's resource is to whoever waits for it
LATE_SECONDS = 2.0  # a tick that is due for longer and has not begun is late
STALL_REASONS = 2  # in a line about a run that makes no progress


class Reason(msgspec.Struct, frozen=True):
    """What some jobs wait for: a noun ("async slots") or a clause ("crossref cools down")."""

    text: str
    jobs: int | None = None  # None: not counted

    def text_with_jobs(self) -> str:
        who = "jobs" if self.jobs is None else counted(self.jobs, "job")
        return f"{who} waiting: {self.text}"


def format_provider(name: str, live: LiveLimit | None) -> str:
    """Why a provider takes no more requests now."""
    if live is None:
        return f"{name} takes no more requests now"
    rest = f"{max(live.cooldown_seconds, 1):,.0f} s"
    match live.binding:
        case Binding.ACCOUNT:
            return f"the account of {name}, which is closed ({live.account})"
        case Binding.DOWN:
            return f"{name} is down ({live.failed_in_row:,} failures in a row), probed in {rest}"
        case Binding.COOLDOWN:
            return f"{name} cools down for {rest}"
        case Binding.MAX_PARALLEL:
            return f"{name} is at its max_parallel of {live.limit:,}"
        case Binding.RPM:
            return f"{name} has used its {live.rpm:,.0f} requests a minute"
        case Binding.TPM:
            return f"{name} has used its {live.tpm:,.0f} tokens a minute"
        case Binding.RATE:
            return f"{name} seems to allow {live.rate:,.4g} {live.mode} a second"
    return f"{name} is at its adaptive limit of {live.limit:,}"


def reasons(
    statuses: Iterable[WorkerStatus],
    providers: Mapping[str, LiveLimit],
    queued: Mapping[str, int],
    now_at: int,
) -> tuple[Reason, ...]:
    """What jobs wait for by the status of the workers, the most jobs first; a bounded number.

    Args:
        statuses: the last status of each worker.
        providers: by the name that people see.
        queued: jobs by task.
        now_at: by the clock of the workers.
    """
    statuses = list(statuses)
    counted: dict[str, int] = {}
    for status in statuses:
        for line in status.blocked:
            text = _format_blocked(line, providers, now_at)
            counted[text] = counted.get(text, 0) + line.tasks
    held_back = {task: name for status in statuses for task, name in status.held_back.items()}
    refused = {task: found for status in statuses for task, found in status.over_budget.items()}
    for task, refusal in refused.items():
        text = f"[{refusal.budget.name}], which is used up"
        if refusal.price_is_missing:
            text = f"the price of {refusal.where}, for [{refusal.budget.name}]"
        counted[text] = counted.get(text, 0) + queued.get(task, 0)
    accounts = {
        task: f"the account of {one.provider}, which is closed ({one.reason})"
        for status in statuses
        for one in status.closed_accounts
        for task in one.tasks
    }
    for task, text in accounts.items():
        counted[text] = counted.get(text, 0) + queued.get(task, 0)
    for task, name in held_back.items():  # such jobs are not even leased
        if queued.get(task):
            text = format_provider(name, _most_loaded(name, providers))
            counted[text] = counted.get(text, 0) + queued[task]
    known = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    found = [Reason(text, jobs) for text, jobs in known]
    limits = {key: cap for status in statuses for key, cap in status.full_limits.items()}
    for key, cap in sorted(limits.items()):
        of = "is 0" if cap <= 0 else f"of {cap:,} is full"
        found.append(Reason(f"keyed limit {key} {of}"))
    return tuple(found[:REASONS_MAX])


def _format_blocked(line: BlockedTasks, providers: Mapping[str, LiveLimit], now_at: int) -> str:
    resource = line.resource or "a resource"
    if line.reason == "no_capacity":
        return "slots" if resource == SUBMISSION else f"{resource} slots"
    if line.reason in ("group_cap", "borrow_debt"):
        return f"fair share of {resource} slots"
    if line.reason == "shutdown":
        return "the worker stops"
    if line.until == BY_GATE:
        return format_provider(resource, _most_loaded(resource, providers))
    until = line.available_at
    rest = "" if until is None or until < now_at + MICROSECONDS else f", {span(until - now_at)}"
    return f"{resource}{rest}"


def _most_loaded(name: str, providers: Mapping[str, LiveLimit]) -> LiveLimit | None:
    """Of the models of a provider, the one with most waiting requests."""
    if name in providers:
        return providers[name]
    models = [live for key, live in providers.items() if key.startswith(f"{name}/")]
    if not models and "/" in name:
        return providers.get(name.partition("/")[0])
    return max(models, key=lambda live: (live.waiting, live.in_flight), default=None)


class BuildView(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one open plan."""

    plan_id: str
    levels: int
    committed: int | None  # levels that readers see; None: each job is committed by itself
    slices: int | None  # to be built; None: not known
    states: dict[JobState, int]  # jobs that build slices

    @classmethod
    def of(cls, plan: PlanRow, levels: Sequence[LevelStates]) -> BuildView:
        facts = plan_facts(plan)
        states: dict[JobState, int] = {}
        for level in levels:
            for name, count in level.states.items():
                states[JobState(name)] = states.get(JobState(name), 0) + count
        is_eager = facts is not None and facts.eager
        return cls(
            plan_id=plan.id,
            levels=plan.levels,
            committed=None if is_eager else sum(level.committed for level in levels),
            slices=None if facts is None else facts.slices,
            states=states,
        )

    @property
    def jobs(self) -> int:
        return sum(self.states.values())

    @property
    def ended(self) -> int:
        return sum(self.states.get(state, 0) for state in TERMINAL)

    def parts(self) -> Iterator[str]:
        """The parts of its status line."""
        slices = "" if self.slices is None else f": {counted(self.slices, 'slice')}"
        yield f"plan {self.plan_id}{slices}"
        yield f"{self.ended:,} of {counted(self.jobs, 'job')} ended"
        if self.committed is None:
            yield counted(self.levels, "level")
        else:
            yield f"{self.committed:,} of {counted(self.levels, 'level')} committed"

    def ended_in(self, own: Mapping[JobState, int]) -> dict[JobState, int]:
        """The ends of a run that count for this plan: without those of barriers."""
        return {
            state: min(count, self.states.get(state, 0))
            for state, count in own.items()
            if state in TERMINAL
        }

    def stats_of(self, stats: Stats) -> Stats:
        """The counts of the queue, restricted to this plan."""
        return msgspec.structs.replace(stats, states=self.states)

    def outlook_of(self, outlook: Outlook) -> Outlook:
        """The ends of a run, restricted to this plan."""
        ended = self.ended_in(outlook.ended_in_run)
        return msgspec.structs.replace(outlook, ended_in_run=ended)


class UnitTroubles(msgspec.Struct, frozen=True):
    """How many units are degraded, deferred, late or paused."""

    degraded: int = 0  # the last try failed by its own fault
    deferred: int = 0  # the last try failed by the fault of another party
    late: int = 0
    paused: int = 0  # by an operator

    @classmethod
    def of(cls, units: Iterable[UnitView], now_at: int) -> UnitTroubles:
        degraded = deferred = late = paused = 0
        for unit in units:
            if unit.rests:
                paused += 1
            elif unit.is_failing:
                deferred += unit.by_others
                degraded += not unit.by_others
            elif unit.state is JobState.QUEUED:
                late += now_at - unit.due_at > LATE_SECONDS * MICROSECONDS
        return cls(degraded, deferred, late, paused)

    def __add__(self, other: UnitTroubles) -> UnitTroubles:
        return UnitTroubles(
            self.degraded + other.degraded,
            self.deferred + other.deferred,
            self.late + other.late,
            self.paused + other.paused,
        )


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """The units of all schedules in a store."""

    live: int
    ticking: int
    ended: int = 0  # in error
    troubles: UnitTroubles = UnitTroubles()  # by the last poll, which may be some seconds old

    @classmethod
    def of(cls, stats: Stats, troubles: UnitTroubles) -> Units | None:
        """None: there are none."""

        def count(state: JobState) -> int:
            return sum(counts.get(state, 0) for counts in stats.schedules.values())

        ended = count(JobState.ERROR)
        if not stats.units and not ended:
            return None
        ticking = count(JobState.IN_PROGRESS)
        return cls(live=stats.units, ticking=ticking, ended=ended, troubles=troubles)

    def parts(self) -> Iterator[str]:
        """The parts of its status line; the first two are always there."""
        yield f"{counted(self.live, 'unit')} of schedules"
        yield f"{self.ticking:,} ticking"
        if self.troubles.degraded:
            yield f"{self.troubles.degraded:,} degraded"
        if self.troubles.deferred:
            yield f"{self.troubles.deferred:,} waiting for others"
        if self.troubles.late:
            yield f"{self.troubles.late:,} late"
        if self.troubles.paused:
            yield f"{self.troubles.paused:,} paused"
        if self.ended:
            yield f"{self.ended:,} ended in error"


class ProviderLine(msgspec.Struct, frozen=True):
    """One model of a provider, over the workers of the run."""

    name: str  # the provider; with several models PROVIDER/MODEL
    live: LiveLimit
    binding: Binding
    spent_micros: int | None = None  # None: not paid

    @property
    def down(self) -> bool:
        return self.live.is_down


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of the queue by state, and the ends of this run."""

    ready: int = 0  # in the store
    leased: int = 0  # by a worker of the run, and not started
    delayed: int = 0  # for later, or to be tried again
    waiting: int = 0  # for other jobs
    running: int = 0
    lost: int = 0  # held by workers that no longer answer
    done: int = 0  # in this run, as the two below
    failed: int = 0
    skipped: int = 0
    suspects: int = 0
    paused: bool = False
    next_due_at: int | None = None

    @classmethod
    def of(cls, stats: Stats, outlook: Outlook, leased: int, lost: int = 0) -> Work:
        ended = outlook.ended_in_run
        held = stats.states.get(JobState.IN_PROGRESS, 0)
        lost = min(lost, held)
        leased = min(leased, held - lost)  # rows of workers are a second old
        queued = stats.states.get(JobState.QUEUED, 0)
        return cls(
            ready=max(queued - stats.delayed - stats.suspects, 0),
            leased=leased,
            delayed=stats.delayed,
            waiting=stats.states.get(JobState.WAITING, 0),
            running=held - leased - lost,
            lost=lost,
            done=ended.get(JobState.DONE, 0),
            failed=ended.get(JobState.ERROR, 0),
            skipped=ended.get(JobState.SKIPPED, 0),
            suspects=stats.suspects,
            paused=stats.paused,
            next_due_at=stats.next_due_at,
        )

    @property
    def queued(self) -> int:
        """What could run among others, and has not started."""
        return self.ready + self.leased


class Workers(msgspec.Struct, frozen=True):
    """The workers of the run, and the use of their slots."""

    pids: tuple[int, ...] = ()
    used: int = 0
    slots: int = 0
    stopping: int = 0
    others: int = 0  # live workers of other runs on the same store


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    work: Work
    silent: tuple[
        UnresponsiveWorker, ...
    ] = ()  # workers of any run that hold jobs and no longer answer
    providers: tuple[ProviderLine, ...] = ()
    reasons: tuple[Reason, ...] = ()
    workers: Workers = Workers()
    money: Balance | None = None  # of all paid calls of the run
    units: Units | None = None  # of schedules, if there are any; jobs are in `work`
    build: BuildView | None = None  # a build's, then `work` is of its jobs; or a schedule's
    progress: tuple[JobProgress, ...] = ()  # of running jobs that tell it, the first ones


def run_snapshot(
    stats: Stats,
    outlook: Outlook,
    workers: Iterable[WorkerView],
    balances: Iterable[Balance],
    run_id: str,
    now_at: int,
    silent: Collection[UnresponsiveWorker] = (),
    units: Units | None = None,
    build: BuildView | None = None,
) -> RunSnapshot:
    """Derive the snapshot of a run.

    Args:
        stats: of the whole queue.
        outlook: with the ends of this run.
        workers: all that are registered; those of the run are on this machine.
        balances: of this run.
        run_id: of which run.
        now_at: by the clock of this machine.
        silent: workers that no longer answer.
        units: of schedules.
        build: the plan of a build, then stats and outlook are of its jobs; or of a schedule.
    """
    unheard = {silence.worker for silence in silent}
    holders = tuple(silence for silence in silent if silence.jobs)
    views = [view for view in workers if view.alive and view.id not in unheard]
    own = [view for view in views if view.run_id == run_id]
    statuses = {view.pid: read_status(view.status) for view in own}
    known = {pid: status for pid, status in statuses.items() if status is not None}
    balances = [one for one in balances if one.account.period is Period.RUN]
    leased = sum(status.waiting for status in known.values())
    work = Work.of(stats, outlook, leased, sum(silence.jobs for silence in silent))
    refused = {one.where for status in known.values() for one in status.over_budget.values()}
    lines = provider_lines(own, balances, now_at, refused)
    return RunSnapshot(
        work=work,
        silent=holders if work.lost else (),
        providers=lines,
        reasons=(
            *_paused_reason(work),
            *_lost_reason(work, holders),
            *reasons(
                list(known.values()) if work.queued else [],
                {line.name: line.live for line in lines},
                {} if work.paused else _ready_by_task(stats, work.ready),
                now_at,
            ),
            *_not_ready_reasons(work, now_at),
        ),
        workers=_workers(list(statuses), list(known.values()), len(views) - len(own)),
        money=total_balance(balances),
        units=units,
        build=build,
        progress=tuple(
            sorted(
                (one for status in known.values() for one in status.progress),
                key=lambda one: (one.started_at, one.key),
            )[:PROGRESS_SHOWN]
        ),
    )


def provider_lines(
    workers: Iterable[WorkerView],
    balances: Sequence[Balance],
    now_at: int,
    over_budget: Collection[str] = (),
) -> tuple[ProviderLine, ...]:
    """A line for each model that the workers use, by name; of some the budget is used up."""
    here = [msgspec.structs.replace(view, status_at=None) for view in workers]  # one clock
    rows = [(row, row.live) for row in provider_rows(here, (), now_at) if row.live is not None]
    spent = {one.account.scope: one.spent.micros for one in balances}
    names = [row.provider for row, _ in rows]
    return tuple(
        ProviderLine(
            f"{row.provider}/{row.model}" if names.count(row.provider) > 1 else row.provider,
            live,
            Binding.BUDGET if f"{row.provider}/{row.model}" in over_budget else live.binding,
            spent.get(f"model:{row.provider}/{row.model}"),
        )
        for row, live in rows
    )


def total_balance(balances: Iterable[Balance]) -> Balance | None:
    """What the run has spent in all; None if it makes no paid calls."""
    return next((one for one in balances if one.account.scope == ALL), None)


def stall_reason(snapshot: RunSnapshot) -> str:
    """Why a run makes no progress: the known reason, or what is running."""
    work = snapshot.work
    cooling = [line for line in snapshot.providers if line.live.cooldown_seconds > 0]
    for line in sorted(cooling, key=lambda line: (not line.down, -line.live.waiting)):
        return format_provider(line.name, line.live)
    if snapshot.reasons:
        return " and ".join(reason.text_with_jobs() for reason in snapshot.reasons[:STALL_REASONS])
    if work.running:
        return f"{counted(work.running, 'job')} running, and none has ended lately"
    return "no worker has taken a job yet"


def _paused_reason(work: Work) -> Iterator[Reason]:
    """What holds all jobs up."""
    if work.paused:
        yield Reason("the queue is paused", work.ready)


def _lost_reason(work: Work, silent: Sequence[UnresponsiveWorker]) -> Iterator[Reason]:
    """What workers hold that were killed, most likely."""
    if work.lost:
        yield Reason(format_lost(silent), work.lost)


def format_lost(silent: Sequence[UnresponsiveWorker]) -> str:
    """Workers that no longer answer and hold jobs, and until when."""
    last = f"{max(one.lease_seconds for one in silent):,.0f} s"
    if len(silent) == 1:
        return f"worker pid {silent[0].pid} no longer answers, its lease ends in {last}"
    return f"{len(silent):,} workers no longer answer, the last of their leases ends in {last}"


def _not_ready_reasons(work: Work, now_at: int) -> Iterator[Reason]:
    """What jobs wait for that are not ready."""
    if work.suspects:
        yield Reason("in quarantine after a crash", work.suspects)
    if work.delayed:
        due = work.next_due_at
        rest = ""
        if due is not None and due > now_at:  # else one is due, and not yet taken
            rest = f", the next in {(due - now_at) / MICROSECONDS:,.0f} s"
        yield Reason(f"their due time{rest}", work.delayed)
    if work.waiting:
        yield Reason("other jobs", work.waiting)


def _ready_by_task(stats: Stats, ready: int) -> Mapping[str, int]:
    """Ready jobs by task, estimated: delayed ones and suspects are not counted by task."""
    queued = {task: states.get(JobState.QUEUED, 0) for task, states in stats.tasks.items()}
    total = max(sum(queued.values()), 1)
    return {task: count * ready // total for task, count in queued.items()}


def _workers(pids: list[int], statuses: list[WorkerStatus], others: int) -> Workers:
    bounded = [use for one in statuses for use in one.slots.values() if use.limit is not None]
    return Workers(
        pids=tuple(sorted(pids)),
        used=sum(use.used for use in bounded),
        slots=sum(use.limit or 0 for use in bounded),
        stopping=sum(one.stopping for one in statuses),
        others=others,
    )

# SPDX-License-Identifier: Apache-2.0
"""What is there to be seen of a run at one moment?

Made from what the store and the rows of the run's workers say; whoever draws it needs nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import TERMINAL, JobState
from penstock.model.plan import LevelStates, PlanRow
from penstock.model.schedule import UnitView
from penstock.model.spending import ALL, Balance, Period
from penstock.model.views import Outlook, Stats, WorkerView
from penstock.model.worker import BlockedTasks, Silence, WorkerStatus, read_status
from penstock.observe.phrases import counted, plan_facts, span
from penstock.observe.providers import LiveLimit, provider_rows

REASONS_MAX = 12  # more are not told
ILL = 2  # failures in a row: one may come late, after a refusal
NEARLY = 0.95  # of a cap: the minute that is looked at is not the bucket's own
BY_GATE = "gate"  # what a provider's resource is to whoever waits for it


class Binding(StrEnum):
    """What keeps a provider from getting more requests now."""

    COOLDOWN = "cool-down"
    DOWN = "down"  # it fails, and is tried now and again
    RPM = "rpm"
    TPM = "tpm"
    RATE = "adaptive rate"
    ADAPTIVE = "adaptive limit"
    MAX_PARALLEL = "max_parallel"
    BUDGET = "budget"  # of money or tokens, for as long as the run lasts
    NOTHING = "not the provider"


class Reason(msgspec.Struct, frozen=True):
    """What some jobs wait for: a thing ("async slots"), or a clause ("crossref cools down")."""

    text: str
    jobs: int | None = None  # None: nobody has counted them

    def words(self) -> str:
        who = "jobs" if self.jobs is None else counted(self.jobs, "job")
        return f"{who} waiting: {self.text}"


def is_down(live: LiveLimit) -> bool:
    """Does it fail, so that only single requests test it?"""
    return live.failed_in_row >= ILL and live.cooldown_seconds > 0


def binding_of(live: LiveLimit) -> Binding:
    """The first of the limits that holds requests back."""
    if is_down(live):
        return Binding.DOWN
    if live.cooldown_seconds > 0:
        return Binding.COOLDOWN
    if live.in_flight >= live.limit:
        full = live.limit >= live.limit_max
        return Binding.MAX_PARALLEL if full else Binding.ADAPTIVE
    if live.rpm is not None and live.requests_last_minute >= live.rpm * NEARLY:
        return Binding.RPM
    if live.tpm is not None and live.tokens_last_minute >= live.tpm * NEARLY:
        return Binding.TPM
    if not live.waiting:
        return Binding.NOTHING
    return Binding.RATE if live.rate is not None else Binding.ADAPTIVE


def format_provider(name: str, live: LiveLimit | None) -> str:
    """Why a provider serves no more now."""
    if live is None:
        return f"{name} serves no more now"
    rest = f"{max(live.cooldown_seconds, 1):,.0f} s"
    match binding_of(live):
        case Binding.DOWN:
            return f"{name} is down ({live.failed_in_row:,} failures in a row), tried in {rest}"
        case Binding.COOLDOWN:
            return f"{name} cools down {rest}"
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
    """What jobs wait for, as the workers tell it: those with most jobs first, a bounded number.

    Args:
        statuses: the last words of the workers.
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
    for task, name in held_back.items():  # such jobs are not even leased
        if queued.get(task):
            text = format_provider(name, _pressed(name, providers))
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
        return f"{resource} slots"
    if line.reason in ("group_cap", "borrow_debt"):
        return f"fair share of {resource} slots"
    if line.reason == "shutdown":
        return "the worker stops"
    if line.until == BY_GATE:
        return format_provider(resource, _pressed(resource, providers))
    until = line.available_at
    rest = "" if until is None or until < now_at + MICROSECONDS else f", {span(until - now_at)}"
    return f"{resource}{rest}"


def _pressed(name: str, providers: Mapping[str, LiveLimit]) -> LiveLimit | None:
    """Of the models of a provider the one with most requests that wait."""
    if name in providers:
        return providers[name]
    models = [live for key, live in providers.items() if key.startswith(f"{name}/")]
    if not models and "/" in name:
        return providers.get(name.partition("/")[0])
    return max(models, key=lambda live: (live.waiting, live.in_flight), default=None)


class BuildView(msgspec.Struct, frozen=True, kw_only=True):
    """One plan that is worked on."""

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

    def words(self) -> Iterator[str]:
        """In a few words each."""
        slices = "" if self.slices is None else f": {counted(self.slices, 'slice')}"
        yield f"plan {self.plan_id}{slices}"
        yield f"{self.ended:,} of {counted(self.jobs, 'job')} ended"
        if self.committed is None:
            yield counted(self.levels, "level")
        else:
            yield f"{self.committed:,} of {counted(self.levels, 'level')} committed"

    def ended_in(self, own: Mapping[JobState, int]) -> dict[JobState, int]:
        """What a run has ended of it: its ends without those of barriers and the like."""
        return {
            state: min(count, self.states.get(state, 0))
            for state, count in own.items()
            if state in TERMINAL
        }

    def stats_of(self, stats: Stats) -> Stats:
        """The queue as far as it is this plan."""
        return msgspec.structs.replace(stats, states=self.states)

    def outlook_of(self, outlook: Outlook) -> Outlook:
        """What a run has ended, as far as it is this plan."""
        ended = self.ended_in(outlook.ended_in_run)
        return msgspec.structs.replace(outlook, ended_in_run=ended)


LATE_SECONDS = 2.0  # a tick that is due for longer and has not begun is late


class UnitTroubles(msgspec.Struct, frozen=True):
    """Of some units, how many are not as they should be."""

    degraded: int = 0  # their last try failed, and it was their own fault
    deferred: int = 0  # their last try failed, and others were at fault
    late: int = 0

    @classmethod
    def of(cls, units: Iterable[UnitView], now_at: int) -> UnitTroubles:
        degraded = deferred = late = 0
        for unit in units:
            if unit.is_failing:
                deferred += unit.by_others
                degraded += not unit.by_others
            elif unit.state is JobState.QUEUED:
                late += now_at - unit.due_at > LATE_SECONDS * MICROSECONDS
        return cls(degraded, deferred, late)

    def __add__(self, other: UnitTroubles) -> UnitTroubles:
        return UnitTroubles(
            self.degraded + other.degraded, self.deferred + other.deferred, self.late + other.late
        )


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """All units of a store."""

    live: int
    ticking: int
    ended: int = 0  # in error
    troubles: UnitTroubles = UnitTroubles()  # by the last round, which may be some seconds old

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

    def words(self) -> Iterator[str]:
        """In a few words each; what is always there comes first."""
        yield f"{counted(self.live, 'unit')} of schedules"
        yield f"{self.ticking:,} ticking"
        if self.troubles.degraded:
            yield f"{self.troubles.degraded:,} degraded"
        if self.troubles.deferred:
            yield f"{self.troubles.deferred:,} waiting for others"
        if self.troubles.late:
            yield f"{self.troubles.late:,} late"
        if self.ended:
            yield f"{self.ended:,} ended in error"


STANDSTILL_REASONS = 2  # in a line about a run that stands still


class ProviderLine(msgspec.Struct, frozen=True):
    """One model of a provider, over the workers of the run."""

    name: str  # the provider; with several models PROVIDER/MODEL
    live: LiveLimit
    binding: Binding
    spent_micros: int | None = None  # None: not paid

    @property
    def down(self) -> bool:
        return is_down(self.live)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of the queue by state, and what this run has ended."""

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


class Money(msgspec.Struct, frozen=True):
    """The paid calls of the run."""

    spent_micros: int
    reserved_micros: int
    tokens: int
    bought: int
    reused: int
    resent: int = 0  # calls in doubt
    estimated: int = 0  # answers that did not tell all that they cost


class Workers(msgspec.Struct, frozen=True):
    """Who works on the run, and how many slots are in use."""

    pids: tuple[int, ...] = ()
    used: int = 0
    slots: int = 0
    stopping: int = 0
    others: int = 0  # live workers of other runs on the same store


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    work: Work
    silent: tuple[Silence, ...] = ()  # workers of any run that hold jobs and no longer answer
    providers: tuple[ProviderLine, ...] = ()
    reasons: tuple[Reason, ...] = ()
    workers: Workers = Workers()
    money: Money | None = None
    units: Units | None = None  # of schedules, if there are any; jobs are in `work`
    build: BuildView | None = None  # if it is one; `work` is of its jobs that build slices


def run_snapshot(
    stats: Stats,
    outlook: Outlook,
    workers: Iterable[WorkerView],
    balances: Iterable[Balance],
    run_id: str,
    now_at: int,
    silent: Collection[Silence] = (),
    units: Units | None = None,
    build: BuildView | None = None,
) -> RunSnapshot:
    """How a run stands.

    Args:
        stats: of the whole queue.
        outlook: with the ends of this run.
        workers: all that are registered; those of the run are on this machine.
        balances: of this run.
        run_id: of which run.
        now_at: by the clock of this machine.
        silent: those of the workers that no longer answer.
        units: of schedules.
        build: the plan that the run works on; then stats and outlook are of its jobs.
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
            *_of_all(work),
            *_of_lost(work, holders),
            *reasons(
                list(known.values()) if work.queued else [],
                {line.name: line.live for line in lines},
                {} if work.paused else _ready_by_task(stats, work.ready),
                now_at,
            ),
            *_of_some(work, now_at),
        ),
        workers=_workers(list(statuses), list(known.values()), len(views) - len(own)),
        money=money_of(balances),
        units=units,
        build=build,
    )


def provider_lines(
    workers: Iterable[WorkerView],
    balances: Sequence[Balance],
    now_at: int,
    over_budget: Collection[str] = (),
) -> tuple[ProviderLine, ...]:
    """A line for each model that the workers use, by name; some may have no money left."""
    here = [msgspec.structs.replace(view, status_at=None) for view in workers]  # one clock
    rows = [(row, row.live) for row in provider_rows(here, (), now_at) if row.live is not None]
    spent = {one.account.scope: one.spent.micros for one in balances}
    names = [row.provider for row, _ in rows]
    return tuple(
        ProviderLine(
            f"{row.provider}/{row.model}" if names.count(row.provider) > 1 else row.provider,
            live,
            Binding.BUDGET if f"{row.provider}/{row.model}" in over_budget else binding_of(live),
            spent.get(f"model:{row.provider}/{row.model}"),
        )
        for row, live in rows
    )


def money_of(balances: Iterable[Balance]) -> Money | None:
    """What the run has spent; None if nothing that it calls is paid."""
    for one in balances:
        if one.account.scope == ALL:
            return Money(
                one.spent.micros,
                one.reserved.micros,
                one.spent.tokens,
                one.bought,
                one.reused,
                one.resent,
                one.estimated,
            )
    return None


def stall_reason(picture: RunSnapshot) -> str:
    """Why nothing ends, in a few words: what is known to be in the way, or what is going on."""
    work = picture.work
    ill = [line for line in picture.providers if line.live.cooldown_seconds > 0]
    for line in sorted(ill, key=lambda line: (not line.down, -line.live.waiting)):
        return format_provider(line.name, line.live)
    if picture.reasons:
        return " and ".join(reason.words() for reason in picture.reasons[:STANDSTILL_REASONS])
    if work.running:
        return f"{counted(work.running, 'job')} running, and none has ended lately"
    return "no worker has taken a job yet"


def _of_all(work: Work) -> Iterator[Reason]:
    """What holds everything up."""
    if work.paused:
        yield Reason("the queue is paused", work.ready)


def _of_lost(work: Work, silent: Sequence[Silence]) -> Iterator[Reason]:
    """What is held by workers that were killed, most likely."""
    if work.lost:
        yield Reason(format_lost(silent), work.lost)


def format_lost(silent: Sequence[Silence]) -> str:
    """Who holds jobs without running them, and until when."""
    last = f"{max(one.lease_seconds for one in silent):,.0f} s"
    if len(silent) == 1:
        return f"worker pid {silent[0].pid} no longer answers, its lease ends in {last}"
    return f"{len(silent):,} workers no longer answer, the last of their leases ends in {last}"


def _of_some(work: Work, now_at: int) -> Iterator[Reason]:
    """What jobs wait for that could not run anyway."""
    if work.suspects:
        yield Reason("to run alone after a crash", work.suspects)
    if work.delayed:
        due = work.next_due_at
        rest = ""
        if due is not None and due > now_at:  # else one is due, and not yet taken
            rest = f", the next in {(due - now_at) / MICROSECONDS:,.0f} s"
        yield Reason(f"their time{rest}", work.delayed)
    if work.waiting:
        yield Reason("other jobs", work.waiting)


def _ready_by_task(stats: Stats, ready: int) -> Mapping[str, int]:
    """Queued jobs without those that are for later or run alone, whose tasks nobody has counted."""
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

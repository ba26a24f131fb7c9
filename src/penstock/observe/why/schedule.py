# SPDX-License-Identifier: Apache-2.0
"""Explains why a unit of a schedule does not tick, or how it ended; gathers the facts for it.

A unit is always due at some time, so what comes first is whether a daemon serves it; only then
when it is due, and how its last tries ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.structs import replace

from penstock.clock import to_datetime
from penstock.model.job import TERMINAL, AttemptError, ErrorCategory, JobState
from penstock.model.plan import KeptEnd, keeper_of
from penstock.model.schedule import MISSED_MAX, PreflightResult, UnitView
from penstock.observe.live import BuildView
from penstock.observe.phrases import at, run_command, short, some, span
from penstock.observe.why.facts import Explanation, Gate, JobFacts
from penstock.observe.why.job import explain
from penstock.observe.why.worker import explain_leased
from penstock.sentences import command, counted
from penstock.stores.protocol import Store

RECHECK = "preflight "  # the kind of an error begins so if a re-checked preflight failed
PAGE = 1_000  # results of preflights that are read at once
FAILED_SHOWN = 5


class FailedStart(msgspec.Struct, frozen=True, kw_only=True):
    """The preflights that failed at the last start of an app's daemon."""

    app: str
    failed: tuple[PreflightResult, ...]  # a bounded number, those of the unit's partition first
    count: int
    checked_at: int  # the last of them


class UnitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that the explanation of a unit is derived from."""

    unit: UnitView
    around: JobFacts  # its job row, and who works
    start: FailedStart | None = None
    passed: int = 0  # occurrences after the one that it is at
    last_plan: KeptEnd | None = None  # of a schedule of datasets
    plan: BuildView | None = None  # of such a one, that is open

    @property
    def is_served(self) -> bool:
        """Whether a live worker runs its ticks."""
        return any(self.unit.task in worker.tasks for worker in self.around.alive)


def explain_unit(facts: UnitFacts) -> Explanation:
    """Explain a unit by the first gate that holds it up."""
    unit, around = facts.unit, facts.around
    if around.this.detached and unit.state is not JobState.IN_PROGRESS:
        found = explain(around)
    elif unit.state in TERMINAL:
        return _ended(facts)
    elif unit.state is JobState.IN_PROGRESS:
        found = _ticking(facts)
    else:
        found = _queued(facts)
    if unit.paused_at is not None and not unit.rests:
        found = replace(
            found, details=(*found.details, f"{_paused_since(facts)}; this tick goes on.")
        )
    return replace(found, details=(*found.details, *_plans(facts), *_figures(unit)))


def _plans(facts: UnitFacts) -> Iterator[str]:
    """The plan of a schedule of datasets that is open, and the last that has ended."""
    if facts.plan is not None:
        yield f"It keeps datasets current, by {', '.join(facts.plan.parts())}."
    end = facts.last_plan
    if end is not None:
        lost = f"; {counted(end.failed, 'job')} failed: {some(end.failures, end.failed)}"
        built = counted(end.slices, "slice")
        told = f"Its last plan, {end.plan_id}, has built {built} by {at(end.ended_at)}"
        yield f"{told}{lost if end.failed else ''}."


def never_armed(key: str, start: FailedStart) -> Explanation:
    """Explain a unit that is not in the store, since no start has passed its preflights."""
    sentence = f"{key!r} is not in the store, and no unit is armed: {_failed_start(start)}"
    return Explanation(
        key=key,
        state=None,
        gate=Gate.PREFLIGHT,
        sentence=sentence,
        unblocks="every preflight passes at a later start of the daemon",
        command=command("run", "--check"),
        details=tuple(_failed_checks(start)),
    )


def _why(facts: UnitFacts, gate: Gate, sentence: str) -> Explanation:
    return Explanation(key=facts.unit.key, state=facts.unit.state, gate=gate, sentence=sentence)


def _queued(facts: UnitFacts) -> Explanation:
    """Explain a queued unit: the first closed gate is the answer."""
    gates = [
        gate
        for gate in (_rests(facts), _not_served(facts), _paused(facts), _not_due(facts))
        if gate is not None
    ]
    if not gates:
        late = span(facts.around.now - facts.unit.due_at)
        found = explain(facts.around)
        detail = f"Its tick was due at {at(facts.unit.due_at)}, {late} ago."
        return replace(found, details=(*found.details, detail))
    first, *others = gates
    behind = tuple(f"Behind that: {other.sentence}" for other in others)
    return replace(first, details=(*first.details, *behind))


def _not_served(facts: UnitFacts) -> Explanation | None:
    unit = facts.unit
    if facts.is_served:
        return None
    if facts.start is not None:
        sentence = f"No daemon serves {unit.key!r}: {_failed_start(facts.start)}"
        return replace(
            _why(facts, Gate.PREFLIGHT, sentence),
            unblocks="every preflight passes at a later start of the daemon",
            command=command("run", "--check"),
            details=tuple(_failed_checks(facts.start)),
        )
    alive = len(facts.around.alive)
    others = ""
    if alive:
        workers = "The only live worker does" if alive == 1 else f"The {alive:,} live workers do"
        others = f" {workers} not know it: 'penstock queue run' serves no schedules."
    return replace(
        _why(facts, Gate.NO_WORKER, f"{_unserved(unit)}.{others}"),
        unblocks=f"a daemon of the app {unit.app!r} runs and its preflights have passed",
        command=run_command(unit.task),
    )


def _unserved(unit: UnitView) -> str:
    """The store knows no daemon before its preflights have passed."""
    return f"No daemon serves {unit.key!r}, or one has started and still runs its preflights"


def _failed_start(start: FailedStart) -> str:
    first = start.failed[0]
    said = "" if first.error is None else f": {_said(first.error)}"
    more = f", and {start.count - 1:,} more" if start.count > 1 else ""
    return (
        f"the last start of the app {start.app!r} failed at {at(start.checked_at)}, since the "
        f"preflight {_check(first)} did not pass{more}{said}."
    )


def _failed_checks(start: FailedStart) -> Iterator[str]:
    for result in start.failed[1:]:
        if result.error is not None:
            yield (
                f"The preflight {_check(result)} failed at {at(result.checked_at)}: "
                f"{_said(result.error)}."
            )
    hidden = start.count - len(start.failed)
    if hidden > 0:
        yield f"{counted(hidden, 'more preflight')} failed."


def _said(error: AttemptError) -> str:
    """An error with the first line of its message."""
    first = error.message.partition("\n")[0]
    return replace(error, message=first).format()


def _check(result: PreflightResult) -> str:
    return f"{result.name!r} of {result.partition!r}" if result.partition else repr(result.name)


def _rests(facts: UnitFacts) -> Explanation | None:
    """Explain a unit that an operator has paused, by itself or with its schedule."""
    unit = facts.unit
    if not unit.rests or unit.paused_by is None:
        return None
    return replace(
        _why(facts, Gate.PAUSED, f"{_paused_since(facts)}."),
        unblocks="an operator resumes it; then it ticks for the occurrence that it has waited for",
        command=command("schedule", "resume", unit.paused_by),
        details=tuple(_format_passed(facts)),
    )


def _paused_since(facts: UnitFacts) -> str:
    unit, now = facts.unit, facts.around.now
    since = now if unit.paused_at is None else unit.paused_at
    whole = "" if unit.paused_by == unit.key else f" with its schedule {unit.paused_by!r}"
    return f"{unit.key!r} is paused{whole} since {at(since)} ({span(now - since)})"


def _paused(facts: UnitFacts) -> Explanation | None:
    if not facts.around.stats.paused:
        return None
    return replace(
        _why(facts, Gate.PAUSED, f"The queue is paused, so nobody takes {facts.unit.key!r}."),
        unblocks="an operator resumes the queue",
        command=command("queue", "resume"),
    )


def _not_due(facts: UnitFacts) -> Explanation | None:
    """Explain a unit that waits for its next tick, or for the retry of a failed one."""
    unit, now = facts.unit, facts.around.now
    if unit.available_at <= now:
        return None
    moment = f"at {_at(unit, unit.available_at)}, in {span(unit.available_at - now)}"
    error = unit.last_error
    if error is None or not unit.is_failing:
        found = _why(
            facts,
            Gate.NOT_DUE,
            f"{unit.key!r} is not due: its next tick is {moment} ({unit.timing}).",
        )
        return replace(found, unblocks="it is due", when=unit.available_at)
    said = error.format()
    again = f"It is tried again {moment}."
    if error.kind.startswith(RECHECK):
        name = error.kind.removeprefix(RECHECK)
        message = f": {short(error.message)}" if error.message else ""
        gate, sentence = (
            Gate.PREFLIGHT,
            f"The preflight {name!r}, which runs before each retry of {unit.key!r}, does not "
            f"pass{message}. {again}",
        )
    elif unit.by_others:
        since = unit.deferred_since or unit.due_at
        gate, sentence = (
            Gate.OTHERS,
            f"{unit.key!r} has waited for another party since {at(since)} ({span(now - since)}), "
            f"uncharged: {said}. {again}",
        )
    else:
        gate, sentence = (
            Gate.DEGRADED,
            f"{unit.key!r} is degraded: {_tries(unit)} of its tick of {_at(unit, unit.due_at)} "
            f"({span(now - unit.due_at)} ago) failed, the last with {said}. {again}",
        )
    return replace(
        _why(facts, gate, sentence),
        unblocks="its next try succeeds",
        when=unit.available_at,
        details=tuple(_format_passed(facts)),
    )


def _at(unit: UnitView, micros: int) -> str:
    """A time by the clocks that a cron expression goes by, with their offset; else in UTC."""
    kind, _, rest = unit.timing.partition(" ")
    zone = rest.rpartition(" ")[2] if kind == "cron" else "UTC"
    if zone != "UTC":
        with suppress(ZoneInfoNotFoundError, ValueError):
            there = to_datetime(micros).astimezone(ZoneInfo(zone))
            return there.isoformat(" ", "seconds")
    return at(micros)


def _tries(unit: UnitView) -> str:
    return counted(unit.attempts, "try", "tries")


def _ticking(facts: UnitFacts) -> Explanation:
    """Explain a unit whose tick runs, or is leased."""
    unit, around = facts.unit, facts.around
    found = explain_leased(around)
    passed = tuple(_format_passed(facts))
    if found.gate is not Gate.RUNNING or not passed:
        detail = f"This is its tick of {at(unit.due_at)}."
        return replace(found, details=(*found.details, detail))
    return replace(
        found,
        gate=Gate.OVERLAPPING,
        sentence=f"{found.sentence} Its tick of {at(unit.due_at)} has not ended. {passed[0]}",
        unblocks="that tick ends; a unit never overlaps itself",
    )


def _format_passed(facts: UnitFacts) -> Iterator[str]:
    """How many occurrences have passed since the one that runs."""
    unit, passed = facts.unit, facts.passed
    if passed:
        least = "at least " if unit.timing.startswith("cron") and passed >= MISSED_MAX else ""
        have = "1 occurrence has" if passed == 1 else f"{passed:,} occurrences have"
        yield f"Since then {least}{have} passed, which are skipped and counted ({unit.timing})."


def _ended(facts: UnitFacts) -> Explanation:
    unit, job = facts.unit, facts.around.this.job
    now = facts.around.now
    figures = tuple(_figures(unit))
    if unit.retired_at is not None:
        found = _why(
            facts,
            Gate.RETIRED,
            f"{unit.key!r} is retired: since {at(unit.retired_at)} "
            f"({span(now - unit.retired_at)}) the app {unit.app!r} no longer plans it. Its "
            "cursor is kept.",
        )
        return replace(
            found,
            unblocks="its schedule and partition are planned again and the daemon is started",
            command=run_command(unit.task),
            details=figures,
        )
    when = "" if job.finished_at is None else f" at {at(job.finished_at)}"
    if unit.state is not JobState.ERROR:
        found = _why(facts, Gate.FINISHED, f"{unit.key!r} was cancelled by an operator{when}.")
        return replace(
            found,
            unblocks="a daemon starts, which arms it again",
            command=run_command(unit.task),
            details=figures,
        )
    error = unit.last_error
    said = "" if error is None else f": {error.format()}"
    if error is not None and error.category is ErrorCategory.CRASHED:
        why = f"its process died with it {counted(job.crashes, 'time')} while it ran alone"
    else:
        why = f"all its attempts are used up ({_tries(unit)} of its tick of {at(unit.due_at)})"
    return replace(
        _why(facts, Gate.FINISHED, f"{unit.key!r} has ended in error{when}, since {why}{said}."),
        unblocks=(
            "an operator retries it, or a daemon starts, which arms it again"
            if facts.is_served
            else "a daemon starts, which arms it again"
        ),
        command=(
            command("queue", "retry-failed", "--task", unit.task)
            if facts.is_served
            else run_command(unit.task)
        ),
        details=figures,
    )


def _figures(unit: UnitView) -> Iterator[str]:
    last = "" if unit.last_tick_at is None else f"; the last success was at {at(unit.last_tick_at)}"
    tries = "no try has failed" if not unit.failed else f"{_failed(unit)} failed"
    yield (
        f"So far: {counted(unit.ticks, 'tick')} succeeded, {unit.missed:,} missed, {tries}{last}."
    )


def _failed(unit: UnitView) -> str:
    return counted(unit.failed, "try", "tries")


def unit_facts(
    store: Store, around: JobFacts, passed: Callable[[UnitView, int], int]
) -> UnitFacts | None:
    """All facts about a unit of a schedule; None if the job is none.

    Args:
        store: of the job.
        around: the facts about its job row.
        passed: how many occurrences have passed since the current one, by its timing.
    """
    unit = store.unit(around.this.job.key).result()
    if unit is None:
        return None
    start = failed_start(store, unit.app, unit.partition)
    found = UnitFacts(unit=unit, around=around, start=start, passed=passed(unit, around.now))
    if unit.partition is not None:
        return found
    plan = next((x for x in store.open_plans().result() if keeper_of(x.run_id) == unit.key), None)
    view = None if plan is None else BuildView.of(plan, store.plan_states(plan.id).result())
    end = KeptEnd.read(store.cursors([unit.key]).result().get(unit.key))
    return replace(found, plan=view, last_plan=end)


def failed_start(store: Store, app: str, partition: str | None) -> FailedStart | None:
    """The preflights that failed at the last start; None if all have passed."""
    own: list[PreflightResult] = []
    others: list[PreflightResult] = []
    count = checked_at = 0
    last = ""
    while page := store.preflights(app, last, PAGE).result():
        last = page[-1].unit
        for result in page:
            if result.error is None:
                continue
            count += 1
            checked_at = max(checked_at, result.checked_at)
            among = own if _concerns(result.partition, partition) else others
            if len(among) < FAILED_SHOWN:
                among.append(replace(result, value=None))
    if not count:
        return None
    return FailedStart(
        app=app,
        failed=tuple([*own, *others][:FAILED_SHOWN]),
        count=count,
        checked_at=checked_at,
    )


def _concerns(checked: str, partition: str | None) -> bool:
    """Whether a check is about the unit's own partition, by its name."""
    return not checked or (partition is not None and f"/{checked}/" in f"/{partition}/")

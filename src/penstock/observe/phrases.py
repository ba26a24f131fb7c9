# SPDX-License-Identifier: Apache-2.0
"""Formats times, durations, counts, names, errors and commands for sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.clock import MICROSECONDS, to_datetime
from penstock.model.dataset import utc_text
from penstock.model.job import TERMINAL, JobKind, kind_of_name
from penstock.model.plan import LevelStates, LockView, PlanFacts, PlanRow, keeper_of
from penstock.model.views import WorkerView
from penstock.sentences import command, counted
from penstock.terminal_text import format_duration

NAMES_SHOWN = 3
TEXT_SHOWN = 200  # characters of an error
SAME_BUILD = "the same 'penstock build' command"


def at(micros: int) -> str:
    """A stored time, to the second."""
    return to_datetime(micros).strftime("%Y-%m-%d %H:%M:%SZ")


def span(micros: int) -> str:
    """Format a duration: 0.4 s, 12 s, 3:20, 2:03:20."""
    return format_duration(max(micros, 0) / MICROSECONDS)


def some(names: Sequence[str], total: int | None = None) -> str:
    """The first names of a list, and how many more there are."""
    shown = list(names[:NAMES_SHOWN])
    more = (len(names) if total is None else total) - len(shown)
    if more > 0:
        return f"{', '.join(shown)} and {more:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def sum_known(parts: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def short(text: str) -> str:
    """A message on one line, cut."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= TEXT_SHOWN else f"{line[: TEXT_SHOWN - 1]}…"


def run_command(task: str, *words: str) -> str:
    """The command that starts a worker for a task; schedules need the daemon."""
    return command(*(("run",) if kind_of_name(task) is JobKind.TICK else ("queue", "run")), *words)


def owner(run_id: str) -> str:
    """Whose a lock or a plan is: a run's, or a schedule's."""
    unit = keeper_of(run_id)
    return f"the run {run_id!r}" if unit is None else f"the schedule {unit!r}"


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The run that holds the lock of a dataset."""

    lock: LockView
    gone: bool = False  # its process has certainly ended
    where: str | None = None  # on which machine; None: none of its workers is known

    def describe(self, now: int) -> str:
        """Which run holds it, since when, and whether that run is alive."""
        lock = self.lock
        where = "" if self.where is None else f" on {self.where}"
        since = f"since {at(lock.taken_at)} ({span(now - lock.taken_at)})"
        if self.gone:
            is_there = "whose process is gone"
        elif lock.alive:
            is_there = "which is alive"
        else:
            is_there = "which did not renew it in time"
        return f"{owner(lock.run_id)}{where}, {is_there}, {since}"

    @property
    def holds(self) -> bool:
        """Whether others must wait for it."""
        return self.lock.alive and not self.gone


def lock_holder(
    lock: LockView | None, workers: Sequence[WorkerView], *, gone: bool
) -> LockHolder | None:
    """A lock with the host of its run, if one of its workers is registered."""
    if lock is None:
        return None
    where = next((one.host for one in workers if one.run_id == lock.run_id), None)
    return LockHolder(lock=lock, gone=gone, where=where)


def plan_facts(plan: PlanRow) -> PlanFacts | None:
    """The request that a plan was made for; None: another version wrote it."""
    try:
        return PlanFacts.read(plan.document)
    except msgspec.MsgspecError:
        return None


def rebuild_command(plan: PlanRow) -> str | None:
    """The command that continues a plan, or builds the same; None if one cannot express it."""
    unit = keeper_of(plan.run_id)
    if unit is not None:
        return run_command(unit)
    facts = plan_facts(plan)
    if facts is None or len(set(facts.ranges)) != 1:
        return None  # dates of several zones: only the user who typed them knows
    (start, end), *_ = facts.ranges
    flags = {"--eager": facts.eager, "--force": facts.force, "--fail-fast": facts.fail_fast}
    return build_command(
        facts.targets, start, end, *(flag for flag, is_set in flags.items() if is_set)
    )


def build_command(targets: Sequence[str], start: int, end: int, *flags: str) -> str:
    """A command that builds [start, end) of some datasets; moments as times of UTC."""
    return command("build", *targets, "--from", utc_text(start), "--to", utc_text(end), *flags)


def format_level(level: LevelStates) -> str:
    """The progress of a level."""
    ended, total = ended_in(level), sum(level.states.values())
    has = "has" if ended == 1 else "have"
    return f"{ended:,} of {counted(total, 'job')} of level {level.level} {has} ended"


def ended_in(level: LevelStates) -> int:
    """How many jobs of a level have ended, in any state."""
    return sum(level.states.get(state, 0) for state in TERMINAL)

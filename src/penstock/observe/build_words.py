# SPDX-License-Identifier: Apache-2.0
"""How is a build told: what it was asked for, by which command, and who holds its datasets?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.model.dataset import utc_text
from penstock.model.job import TERMINAL
from penstock.model.lock import LevelStates, LockView, PlanRow
from penstock.model.plan_facts import PlanFacts
from penstock.model.views import WorkerView
from penstock.observe.phrases import at, command, counted, span

THE_SAME = "the same 'penstock build' command"


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the lock of a dataset."""

    lock: LockView
    gone: bool = False  # its process has certainly ended
    where: str | None = None  # on which machine; None: none of its workers is known

    def words(self, now: int) -> str:
        """Which run, since when, and whether it is still there."""
        lock = self.lock
        where = "" if self.where is None else f" on {self.where}"
        since = f"since {at(lock.taken_at)} ({span(now - lock.taken_at)})"
        if self.gone:
            is_there = "whose process is gone"
        elif lock.alive:
            is_there = "which is alive"
        else:
            is_there = "which has not renewed it in time"
        return f"the run {lock.run_id!r}{where}, {is_there}, {since}"

    @property
    def holds(self) -> bool:
        """Must others wait for it?"""
        return self.lock.alive and not self.gone


def holder_of(
    lock: LockView | None, workers: Sequence[WorkerView], *, gone: bool
) -> LockHolder | None:
    """A lock with where its run is, as far as its workers tell."""
    if lock is None:
        return None
    where = next((one.host for one in workers if one.run_id == lock.run_id), None)
    return LockHolder(lock=lock, gone=gone, where=where)


def plan_facts(plan: PlanRow) -> PlanFacts | None:
    """What a plan was asked for; None: another version has written that."""
    try:
        return PlanFacts.read(plan.document)
    except msgspec.MsgspecError:
        return None


def again_command(plan: PlanRow) -> str | None:
    """The command that asks for the same as a plan; None where one line cannot say it."""
    facts = plan_facts(plan)
    if facts is None or len(set(facts.ranges)) != 1:
        return None  # dates of several zones: only whoever typed them knows
    (start, end), *_ = facts.ranges
    flags = {"--eager": facts.eager, "--force": facts.force, "--fail-fast": facts.fail_fast}
    return build_command(
        facts.targets, start, end, *(flag for flag, is_set in flags.items() if is_set)
    )


def build_command(targets: Sequence[str], start: int, end: int, *flags: str) -> str:
    """A command that builds [start, end) of some datasets; moments as times of UTC."""
    return command("build", *targets, "--from", utc_text(start), "--to", utc_text(end), *flags)


def level_words(level: LevelStates) -> str:
    """How far a level is."""
    ended, total = ended_in(level), sum(level.states.values())
    has = "has" if ended == 1 else "have"
    return f"{ended:,} of {counted(total, 'job')} of level {level.level} {has} ended"


def ended_in(level: LevelStates) -> int:
    """How many jobs of a level have ended, in whatever way."""
    return sum(level.states.get(state, 0) for state in TERMINAL)

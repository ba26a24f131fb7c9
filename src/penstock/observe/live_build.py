# SPDX-License-Identifier: Apache-2.0
"""How far is a build at one moment?

Barriers, gates and the like are jobs as well, which nobody asked for: only what builds slices
counts here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.model.job import TERMINAL, JobState
from penstock.model.lock import LevelStates, PlanRow
from penstock.model.views import Outlook, Stats
from penstock.observe.build_words import plan_facts
from penstock.observe.phrases import counted


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

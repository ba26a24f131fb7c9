# SPDX-License-Identifier: Apache-2.0
"""Which tasks, groups and limits does a case of the scheduling benchmark have?

Described without the types of any scheduler, so that all of them get exactly the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from benchmarks.measuring import Answer

SUBMISSION, SLOT = "submission", "slot"
CAPACITY = 1_024  # of submissions and of slots: the peer's default
KEY_LIMITS = (4, 8, 12, 16)  # of the keyed resources, in turn
ADMITTED_PER_KEY_LIMIT = 2  # as the peer's resolver sets it


class Mix(StrEnum):
    """What do the tasks ask for?"""

    LOCAL = "local"  # a submission, and their groups have no admitted limit
    KEYED = "keyed"  # a submission, a slot and the limited resource of their group
    MIXED = "mixed"  # in each group every second task is keyed, the others are local


class Policy(StrEnum):
    """Who may run ahead of its share?"""

    STRICT = "strict"
    BORROW = "bounded borrow"  # the default of both


class Question(StrEnum):
    """What is timed?"""

    CYCLE = "cycle"  # select, acquire, commit, release: nothing else is in flight
    TURN = "turn"  # all capacity in use: one release, then admit until nothing is selected
    BLOCKED = "blocked"  # a select that finds nothing, again and again


@dataclass(frozen=True, slots=True)
class Group:
    """A group and the limit of its keyed resource."""

    number: int
    weight: int
    admitted_limit: int | None

    @property
    def key(self) -> str:
        """Its keyed resource."""
        return f"host:{self.number}"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured."""

    question: Question
    tasks: int  # that are queued while it is measured
    groups: int
    mix: Mix = Mix.KEYED
    policy: Policy = Policy.BORROW
    capacity: int = CAPACITY
    key_limit: int | None = None  # None: KEY_LIMITS in turn

    @classmethod
    def of(cls, answer: Answer) -> Case:
        """The case that was sent to a probe as JSON."""
        kinds = {
            "question": Question(answer["question"]),
            "mix": Mix(answer["mix"]),
            "policy": Policy(answer["policy"]),
        }
        return cls(**answer | kinds)

    def to_json(self) -> Answer:
        return asdict(self)

    def group_specs(self) -> list[Group]:
        """The groups; a weight is the static cap of what the group uses."""
        specs = []
        for number in range(self.groups):
            weight = self.key_limit or KEY_LIMITS[number % len(KEY_LIMITS)]
            local = self.mix is Mix.LOCAL
            specs.append(Group(number, weight, None if local else ADMITTED_PER_KEY_LIMIT * weight))
        return specs

    def limits(self) -> dict[str, int]:
        """The limits of all resources but submissions."""
        if self.mix is Mix.LOCAL:
            return {}
        return {SLOT: self.capacity} | {group.key: group.weight for group in self.group_specs()}

    def amounts(self, group: Group) -> tuple[dict[str, int], ...]:
        """What the tasks of this group ask for, in turn."""
        local = {SUBMISSION: 1}
        keyed = local | {SLOT: 1, group.key: 1}
        return {Mix.LOCAL: (local,), Mix.KEYED: (keyed,), Mix.MIXED: (keyed, local)}[self.mix]

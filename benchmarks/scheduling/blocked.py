# SPDX-License-Identifier: Apache-2.0
"""What does it cost to ask in vain, while no group can go?"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.cases import Case, Mix, Policy, Question
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling.asking import (
    Figures,
    ask,
    by_case,
    deviation_percent,
    middle,
    one_by_one,
)

GROUPS = (1, 8, 64, 256)
SMOKE_GROUPS = (256,)
FEW = 8  # submissions, all of them held
AMPLE = 4_096  # so that only the keyed resources are short
TASKS_PER_GROUP = 8
LEAST_TASKS = 1_000
BOUND_US = 3.0
COLUMNS = ("all wait for", "policy", "groups", "p50, µs", "p95, µs", "CPU, µs", "deviation, %")


def cases(groups: Sequence[int]) -> list[Case]:
    """All groups wait for the same few submissions, or each for its own resource."""
    return [
        Case(
            Question.BLOCKED,
            max(LEAST_TASKS, TASKS_PER_GROUP * count),
            count,
            mix,
            policy,
            capacity=capacity,
            key_limit=1,
        )
        for mix, capacity in ((Mix.LOCAL, FEW), (Mix.KEYED, AMPLE))
        for policy in Policy
        for count in groups
    ]


def waits_for(case: Case) -> str:
    return "submissions" if case.mix is Mix.LOCAL else "their own keys"


def measure(setup: Setup) -> Outcome:
    """Fill the capacity, then ask, several times over."""
    asked = cases(SMOKE_GROUPS if setup.smoke else GROUPS)
    answers = [ask(one_by_one(asked), setup) for _ in range(setup.rounds)]
    return to_outcome(by_case(asked, answers))


def to_outcome(figures: Figures) -> Outcome:
    """The worst of the cases with the most groups counts."""
    most = max(case.groups for case in figures)
    worst = max(middle(found) for case, found in figures.items() if case.groups == most)
    return Outcome(
        (
            Check(
                f"blocked: select_next in vain at {most} groups, p50 in µs",
                worst,
                Sense.BELOW,
                BOUND_US,
            ),
        ),
        (
            Table(
                "A select_next that finds nothing",
                COLUMNS,
                tuple(
                    (
                        waits_for(case),
                        str(case.policy),
                        case.groups,
                        *(middle(found, figure) for figure in ("p50", "p95", "cpu")),
                        deviation_percent(found),
                    )
                    for case, found in figures.items()
                ),
            ),
        ),
    )

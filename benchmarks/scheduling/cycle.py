# SPDX-License-Identifier: Apache-2.0
"""Does a scheduling cycle cost the same, whatever the number of groups and of queued tasks?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.measuring import paired_ratio, pick
from benchmarks.peers.cases import Case, Mix, Policy, Question
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling.asking import Figures, ask, by_case, deviation_percent, middle

TASKS = (1_000, 10_000, 100_000)
SMOKE_TASKS = (1_000, 10_000)
GROUPS = (1, 8, 64, 256)
SMOKE_GROUPS = (1, 256)
ROUNDS = 3  # of the whole matrix
GROUPS_GROWTH = 1.5
TASKS_GROWTH = 1.3
COLUMNS = ("mix", "groups", "queued tasks", "p50, µs", "p95, µs", "CPU, µs", "deviation, %")


def matrix(
    tasks: Sequence[int], groups: Sequence[int], policy: Policy = Policy.BORROW
) -> list[Case]:
    """Every mix with every number of groups and of tasks."""
    return [
        Case(Question.CYCLE, queued, count, mix, policy)
        for mix in Mix
        for count in groups
        for queued in tasks
    ]


def measure(setup: Setup) -> Outcome:
    """Measure the whole matrix in a new process, several times over."""
    tasks = SMOKE_TASKS if setup.smoke else TASKS
    groups = SMOKE_GROUPS if setup.smoke else GROUPS
    cases = matrix(tasks, groups)
    answers = [ask(cases, setup) for _ in range(ROUNDS)]
    return to_outcome(by_case(cases, answers))


def to_outcome(figures: Figures) -> Outcome:
    """Compare the largest with the smallest, within each round."""
    fewest, most = (pick_of(case.groups for case in figures) for pick_of in (min, max))
    shortest, longest = (pick_of(case.tasks for case in figures) for pick_of in (min, max))

    def growth(of: Case, to: Case) -> float:
        return paired_ratio(pick(figures[to], "p50"), pick(figures[of], "p50"))

    by_groups = max(
        growth(case, replace(case, groups=most)) for case in figures if case.groups == fewest
    )
    by_tasks = max(
        growth(case, replace(case, tasks=longest)) for case in figures if case.tasks == shortest
    )
    return Outcome(
        (
            Check(
                f"cycle: p50 at {most} groups, × that at {fewest}, the worst of all mixes",
                by_groups,
                Sense.AT_MOST,
                GROUPS_GROWTH,
            ),
            Check(
                f"cycle: p50 with {longest:,} queued tasks, × that with {shortest:,}, the worst "
                "of all mixes",
                by_tasks,
                Sense.AT_MOST,
                TASKS_GROWTH,
            ),
        ),
        (
            Table(
                "Select, acquire, commit, release: one cycle",
                COLUMNS,
                tuple(
                    (
                        str(case.mix),
                        case.groups,
                        case.tasks,
                        *(middle(found, figure) for figure in ("p50", "p95", "cpu")),
                        deviation_percent(found),
                    )
                    for case, found in figures.items()
                ),
            ),
        ),
    )

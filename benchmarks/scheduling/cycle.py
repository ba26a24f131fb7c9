# SPDX-License-Identifier: Apache-2.0
"""Does a scheduling cycle cost the same, whatever the number of groups and of queued tasks?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    families = in_families(cases)
    answers = [ask(families, setup) for _ in range(ROUNDS)]
    figures = by_case([case for family in families for case in family], answers)
    return to_outcome({case: figures[case] for case in cases})


def in_families(cases: Sequence[Case]) -> list[list[Case]]:
    """What is compared takes turns: the corners of the matrix of one mix. The rest goes alone."""
    at_corners = corners(cases)
    families: dict[object, list[Case]] = {}
    for case in cases:
        families.setdefault(case.mix if case in at_corners else case, []).append(case)
    return [*families.values()]


def corners(cases: Iterable[Case]) -> list[Case]:
    """Those with the fewest or the most groups and the shortest or the longest queue."""
    found = [*cases]
    groups, tasks = {case.groups for case in found}, {case.tasks for case in found}
    return [
        case
        for case in found
        if case.groups in (min(groups), max(groups)) and case.tasks in (min(tasks), max(tasks))
    ]


def to_outcome(figures: Figures) -> Outcome:
    """Compare the corners of the matrix with each other, within each round."""
    fewest, most = (pick_of(case.groups for case in figures) for pick_of in (min, max))
    shortest, longest = (pick_of(case.tasks for case in figures) for pick_of in (min, max))

    compared = corners(figures)

    def growth(of: Case, to: Case) -> float:
        return paired_ratio(pick(figures[to], "p50"), pick(figures[of], "p50"))

    by_groups = max(
        growth(case, replace(case, groups=most)) for case in compared if case.groups == fewest
    )
    by_tasks = max(
        growth(case, replace(case, tasks=longest)) for case in compared if case.tasks == shortest
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

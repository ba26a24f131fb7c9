# SPDX-License-Identifier: Apache-2.0
"""How does the scheduler of NeMo Data Designer do on the same tasks, in the same run?

It has an environment of its own; without it this scenario says which command makes it, and checks
nothing. Ours and the peer take turns. Of the two clocks, the one that favours the peer counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measuring import ROOT, Answer, interleaved, paired_ratio, pick
from benchmarks.peers.cases import Case, Mix, Policy, Question
from benchmarks.runner import Cell, Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling import blocked, cycle
from benchmarks.scheduling.asking import (
    OURS,
    Figures,
    ask,
    by_case,
    deviation_percent,
    middle,
    one_by_one,
)

PYTHON = ROOT / ".venv-designer" / "bin" / "python"
READY = ROOT / ".venv-designer" / "ok"  # made last
COMMAND = "make bench-peers"
DRIVER = "designer_tasks"
TASKS = 10_000
TURN_TASKS = 40_000  # no group may run empty meanwhile
IN_FLIGHT = 64  # in a turn
AT_MOST = {8: 1 / 3, 256: 1 / 40}  # by groups: of the peer's p50
COMPARED_COLUMNS = (
    "what",
    "policy",
    "mix",
    "groups",
    "ours p50, µs",
    "p95, µs",
    "CPU, µs",
    "deviation, %",
    "peer p50, µs",
    "p95, µs",
    "CPU, µs",
    "deviation, %",
    "ours, 1 / n of it",
)
MATRIX_COLUMNS = ("mix", "groups", "queued tasks", "p50, µs", "p95, µs", "CPU, µs", "cycles")


def compared(policy: Policy) -> list[Case]:
    """What ours and the peer take turns with."""
    cycles = [Case(Question.CYCLE, TASKS, groups, mix, policy) for groups in AT_MOST for mix in Mix]
    turns = [
        Case(Question.TURN, TURN_TASKS, groups, Mix.KEYED, policy, capacity=IN_FLIGHT)
        for groups in AT_MOST
    ]
    vain = [case for case in blocked.cases([max(AT_MOST)]) if case.policy is policy]
    return [*cycles, *turns, *vain]


def measure(setup: Setup) -> Outcome:
    """Take turns, first with one policy and then with the other; then the peer's whole matrix."""
    if not READY.exists():
        return absent()
    ours: dict[Case, Sequence[Answer]] = {}
    theirs: dict[Case, Sequence[Answer]] = {}
    for policy in Policy:
        cases = compared(policy)
        answers = _in_turn(cases, setup)
        ours |= by_case(cases, answers["ours"])
        theirs |= by_case(cases, answers["peer"])
    shown = cycle.matrix(cycle.SMOKE_TASKS if setup.smoke else cycle.TASKS, cycle.GROUPS)
    matrix: dict[Case, Sequence[Answer]] = {}
    for mix in Mix:  # a process each: all together may take longer than a probe has
        cases = [case for case in shown if case.mix is mix]
        whole = ask(one_by_one(cases), setup, DRIVER, PYTHON)
        matrix |= by_case(cases, [whole])
    return to_outcome(ours, theirs, matrix, answers["peer"][0]["version"])


def _in_turn(cases: Sequence[Case], setup: Setup) -> dict[str, list[Answer]]:
    return interleaved(
        setup.rounds,
        {
            "ours": lambda: ask(one_by_one(cases), setup, OURS),
            "peer": lambda: ask(one_by_one(cases), setup, DRIVER, PYTHON),
        },
    )


def absent() -> Outcome:
    """What is said when the peer has no environment."""
    line = f"not measured: the peer is not installed here; `{COMMAND}` does it"
    return Outcome((), (Table("Beside Data Designer", ("peer",), ((line,),)),))


def part_of(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Our p50 as a part of the peer's, by the clock that favours the peer."""
    return max(paired_ratio(pick(ours, clock), pick(theirs, clock)) for clock in ("p50", "cpu"))


def to_outcome(ours: Figures, theirs: Figures, matrix: Figures, version: str) -> Outcome:
    """One check for each number of groups and policy: the worst of all mixes."""
    parts = {case: part_of(ours[case], theirs[case]) for case in ours}
    checks = tuple(
        Check(
            f"designer: cycle at {groups} groups, {policy}, part of the peer's p50, the worst mix",
            max(
                part
                for case, part in parts.items()
                if (case.question, case.groups, case.policy) == (Question.CYCLE, groups, policy)
            ),
            Sense.AT_MOST,
            bound,
        )
        for policy in Policy
        for groups, bound in AT_MOST.items()
    )
    compared_table = Table(
        f"Beside Data Designer {version}",
        COMPARED_COLUMNS,
        tuple(_compared_row(case, ours[case], theirs[case], parts[case]) for case in ours),
    )
    matrix_table = Table(
        f"One cycle of Data Designer {version}, {Policy.BORROW}, a single round",
        MATRIX_COLUMNS,
        tuple(
            (
                str(case.mix),
                case.groups,
                case.tasks,
                *(middle(found, figure) for figure in ("p50", "p95", "cpu", "count")),
            )
            for case, found in matrix.items()
        ),
    )
    return Outcome(checks, (compared_table, matrix_table))


def _compared_row(
    case: Case, ours: Sequence[Answer], theirs: Sequence[Answer], part: float
) -> tuple[Cell, ...]:
    figures: list[Cell] = []
    for found in (ours, theirs):
        figures += [middle(found, figure) for figure in ("p50", "p95", "cpu")]
        figures.append(deviation_percent(found))
    return (_what(case), str(case.policy), str(case.mix), case.groups, *figures, 1 / part)


def _what(case: Case) -> str:
    if case.question is Question.BLOCKED:
        return f"select in vain, all wait for {blocked.waits_for(case)}"
    if case.question is Question.TURN:
        return f"turn with {case.capacity} in flight"
    return "cycle"

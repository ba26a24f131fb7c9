# SPDX-License-Identifier: Apache-2.0
"""How near does each controller come to one that knows the provider's limits?

Simulated seconds, so the figures do not depend on the machine. The seeds are above 1,000: nothing
was tuned on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from benchmarks.admission.cases import CASES, CONGESTION, STEP, STRICT, Case
from benchmarks.admission.scoring import CONTROLLERS, OURS, Score, Task, mean, run_all
from benchmarks.runner import Check, Kind, Outcome, Sense, Setup, Table

SEEDS = (1_001, 1_002, 1_003, 1_004, 1_005)
SMOKE_CASES = ("P1 C=8 RA1", "P2 10/s b10 RA", "P3 TPM RA", CONGESTION)
SMOKE_PEERS = (OURS, "Data Designer")
REFUSED_MAX = 0.05  # a peer that is refused more often goes fast at others' expense
TIE = 0.02
COLD = ("P1 C=64 RA1", "P1 C=64 noRA", "P1 C=8 RA1")  # latency of 2 s
Found = Mapping[tuple[str, str], Score]  # case, controller


def measure(setup: Setup) -> Outcome:
    """Score everybody on every case."""
    cases = [case for case in CASES if not setup.smoke or case.name in SMOKE_CASES]
    names = SMOKE_PEERS if setup.smoke else tuple(CONTROLLERS)
    seeds = SEEDS[: setup.size(len(SEEDS), smoke=1)]
    tasks = [Task(name, case.name, seed) for name in names for case in cases for seed in seeds]
    scores = run_all(tasks)
    found: dict[tuple[str, str], Score] = {}
    for name in names:
        for case in cases:
            found[case.name, name] = mean(
                score
                for task, score in zip(tasks, scores, strict=True)
                if (task.case, task.controller) == (case.name, name)
            )
    checks = (*_goodput(cases, found), *_peers(cases, names, found))
    if not setup.smoke:
        checks = (*checks, *_times(found))
    return Outcome(checks, (_table(cases, names, found, len(seeds)),))


def _goodput(cases: list[Case], found: Found) -> tuple[Check, ...]:
    ours = {case.name: found[case.name, OURS] for case in cases}
    goodput = {name: 100 * score.goodput for name, score in ours.items()}
    refused = [100 * score.refused for score in ours.values()]
    loose = [value for name, value in goodput.items() if name != STRICT]
    checks = [
        _check("mean of the cases, % of the oracle", fmean(goodput.values()), 94, 96),
        _check("least of the cases, % of the oracle", min(loose), 82, 90),
        _check("mean of 429s, %", fmean(refused), 1.5, 1, Sense.AT_MOST),
    ]
    goals = [_goal("most 429s of a case, %", max(refused), 2)]
    if STRICT in goodput:
        checks.append(_check("strict spacing, % of the oracle", goodput[STRICT], 60, 90))
    return (*(check for pair in checks for check in pair), *goals)


def _peers(cases: list[Case], names: tuple[str, ...], found: Found) -> tuple[Check, ...]:
    """How far the best peer is ahead that is not refused too often."""
    worst = 0.0
    for case in cases:
        for name in names:
            if name == OURS or (name, case.name) == ("Gradient2", CONGESTION):
                continue
            peer, ours = found[case.name, name], found[case.name, OURS]
            if peer.refused <= REFUSED_MAX:
                worst = max(worst, peer.goodput - ours.goodput)
    return (
        Check(
            "quality: a peer with 5 % of 429s or less is ahead by, points",
            100 * worst,
            Sense.AT_MOST,
            100 * TIE,
            timing=False,
        ),
    )


def _times(found: Found) -> tuple[Check, ...]:
    step = found[STEP, OURS]
    cold = [found[name, OURS].found for name in COLD]
    return (
        _goal("step to a quarter, seconds until it is followed", _known(step.down), 5),
        _goal("step to four times, seconds until it is followed", _known(step.up), 15),
        _goal("from cold to 90 % at 2 s latency, seconds", max(map(_known, cold)), 10),
    )


def _known(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


def _check(
    name: str, value: float, bound: float, goal: float, sense: Sense = Sense.AT_LEAST
) -> tuple[Check, Check]:
    return (
        Check(f"quality: {name}", value, sense, bound, timing=False),
        Check(f"quality: {name}", value, sense, goal, Kind.GOAL, timing=False),
    )


def _goal(name: str, value: float, most: float) -> Check:
    return Check(f"quality: {name}", value, Sense.AT_MOST, most, Kind.GOAL, timing=False)


def _table(cases: list[Case], names: tuple[str, ...], found: Found, seeds: int) -> Table:
    return Table(
        "Goodput in % of the oracle / 429s in % of what was sent / seconds until 90 % of the "
        f"oracle's rate; simulated, mean of {seeds} seeds that nothing was tuned on",
        ("provider", *names),
        tuple((case.name, *(_cell(found[case.name, name]) for name in names)) for case in cases),
    )


def _cell(score: Score) -> str:
    seconds = "–" if score.found is None else f"{score.found:.0f}"
    return f"{100 * score.goodput:.1f} / {100 * score.refused:.1f} / {seconds}"

# SPDX-License-Identifier: Apache-2.0
"""How much of what was possible was reached, and at what price?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from benchmarks.admission import netflix, ours, peers
from benchmarks.admission.cases import (
    CASES,
    MEAN,
    STEP,
    STEP_DOWN,
    STEP_UP,
    Case,
    worlds,
)
from benchmarks.admission.client import Client, Counts, Limiter, PeerClient
from benchmarks.admission.providers import Provider, Tenants
from benchmarks.admission.simulation import Simulation

MOST = 256  # the user's cap, the same for all
ENOUGH = 0.9  # of the oracle: it has been found
QUIET = 0.05  # 429s that a recovered limit may have
OURS = "penstock adaptive"


def _peer(
    make: Callable[[Simulation, int], Limiter],
) -> Callable[[Simulation, Provider, Case], Client]:
    return lambda sim, provider, case: PeerClient(sim, provider, case.sizes, make(sim, MOST), MOST)


#: Everybody who is scored; nobody has settings for a case.
CONTROLLERS: dict[str, Callable[[Simulation, Provider, Case], Client]] = {
    OURS: lambda sim, provider, case: ours.OurClient(
        sim, provider, case.sizes, ours.adaptive(MOST)
    ),
    "penstock aimd": lambda sim, provider, case: ours.OurClient(
        sim, provider, case.sizes, ours.aimd(MOST)
    ),
    "fixed 256": _peer(peers.FixedConcurrency),
    "Data Designer": _peer(peers.DesignerAimd),
    "Data Designer, ramp 60 s": _peer(partial(peers.DesignerAimd, ramp_seconds=60.0)),
    "botocore adaptive": _peer(peers.BotocoreAdaptive),
    "Gradient2": _peer(netflix.Gradient2),
    "Vegas": _peer(netflix.Vegas),
    "Netflix AIMD": _peer(netflix.NetflixAimd),
}


@dataclass(frozen=True, slots=True)
class Score:
    """One course of one controller."""

    goodput: float  # part of the oracle's
    refused: float  # part of what was sent
    failed: float
    found: float | None = None  # seconds until 90 % of the oracle's rate; None: never
    down: float | None = None  # seconds after a step down
    up: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One course to simulate: a case by its name, or a world by its number and seed."""

    controller: str
    case: str
    seed: int
    world: tuple[int, int, int] | None = None  # how many, their seed, which

    def run(self) -> Score:
        if self.world is not None:
            count, seed, number = self.world
            return score(worlds(count, seed)[number], self.controller, self.seed)
        return score(next(case for case in CASES if case.name == self.case), *self._rest())

    def _rest(self) -> tuple[str, int]:
        return self.controller, self.seed


def course(case: Case, controller: str, seed: int) -> tuple[Counts, Provider]:
    """Simulate one."""
    sim = Simulation(seed)
    provider = case.provider(sim)
    client = CONTROLLERS[controller](sim, provider, case)
    sim.run(case.seconds)
    return client.counts, provider


def score(case: Case, controller: str, seed: int) -> Score:
    counts, provider = course(case, controller, seed)
    seconds = range(case.seconds)
    oracle = sum(case.rate(second) for second in seconds) + case.extra
    rate = case.rate
    if isinstance(provider, Tenants):
        oracle = provider.slot_seconds / MEAN
        mean = oracle / case.seconds
        rate = lambda _: mean  # noqa: E731
    sent = max(1, sum(counts.sent.values()))
    done = [0.0]
    for second in seconds:
        done.append(done[-1] + counts.ok.get(second, 0.0))

    def found(begin: int, end: int) -> float | None:
        for second in range(begin, end - case.span):
            wanted = sum(rate(at) for at in range(second, second + case.span))
            if done[second + case.span] - done[second] >= ENOUGH * wanted:
                return second - begin
        return None

    down = up = None
    if case.name == STEP:
        down, up = _recovered(counts, done, rate), found(STEP_UP, case.seconds)
    return Score(
        done[-1] / oracle,
        sum(counts.refused.values()) / sent,
        sum(counts.failed.values()) / sent,
        found(0, case.seconds),
        down,
        up,
    )


def _recovered(
    counts: Counts, done: Sequence[float], rate: Callable[[float], float]
) -> float | None:
    """Seconds after the step down until the new rate is used, without a storm of refusals."""
    span = 10
    for second in range(STEP_DOWN, STEP_UP - span):
        within = range(second, second + span)
        sent = sum(counts.sent.get(at, 0) for at in within)
        refused = sum(counts.refused.get(at, 0) for at in within)
        enough = ENOUGH * span * rate(second)
        if done[second + span] - done[second] >= enough and refused <= QUIET * max(1, sent):
            return second - STEP_DOWN
    return None


def run_all(tasks: Sequence[Task]) -> list[Score]:
    """Simulate them on all cores; the answers do not depend on how many there are."""
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(Task.run, tasks, chunksize=1))


def mean(scores: Iterable[Score]) -> Score:
    """Of several seeds."""
    found = list(scores)
    return Score(
        fmean(score.goodput for score in found),
        fmean(score.refused for score in found),
        fmean(score.failed for score in found),
        _mean([score.found for score in found]),
        _mean([score.down for score in found]),
        _mean([score.up for score in found]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

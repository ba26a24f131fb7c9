# SPDX-License-Identifier: Apache-2.0
"""What does a permit cost: alone, among hundreds, among thousands who wait?

Ours with either algorithm, beside the controller of NeMo Data Designer in its own environment; they
take turns. A crowd may cost what it likes by the wall's clock if the machine is busy elsewhere, so
the two sizes are compared by the CPU's.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.measuring import Answer, fresh, interleaved, pick
from benchmarks.peers import permits
from benchmarks.runner import Check, Kind, Outcome, Sense, Setup, Table
from benchmarks.scheduling.designer import COMMAND, PYTHON, READY

CAP = 8
ALGORITHMS = ("adaptive", "aimd")
ALONE, FEW, MANY = 0, 256, 10_000  # tasks
ALONE_CAP = 256
AT_MOST_ALONE = 15.0  # µs
AT_LEAST_FEW = 20_000.0  # operations per second
AT_MOST_MANY = 2.0  # × the cost among FEW
PEER = "Data Designer"
COLUMNS = ("controller", "tasks", "cap", "µs per operation", "CPU, µs", "operations/s")

Figures = Mapping[tuple[str, int], Sequence[Answer]]  # who, tasks


def measure(setup: Setup) -> Outcome:
    """Everybody in turn, `rounds` times over."""
    asked: dict[str, Callable[[], Answer]] = {}
    keys: dict[str, tuple[str, int]] = {}
    for waiters in (ALONE, FEW, MANY):
        for algorithm in ALGORITHMS:
            name = f"{algorithm} {waiters}"
            keys[name] = (algorithm, waiters)
            asked[name] = partial(_ask, setup, "penstock_requests", waiters, algorithm)
        if READY.exists() and waiters == ALONE:  # in a crowd its run often does not end
            name = f"peer {waiters}"
            keys[name] = (PEER, waiters)
            asked[name] = partial(_ask, setup, "designer_requests", waiters, "aimd")
    answers = interleaved(setup.rounds, asked)
    return to_outcome({keys[name]: found for name, found in answers.items()}, smoke=setup.smoke)


def _ask(setup: Setup, driver: str, waiters: int, algorithm: str) -> Answer:
    return fresh(
        permits.measure,
        setup.folder,
        python=sys.executable if driver == "penstock_requests" else PYTHON,
        driver=driver,
        cap=CAP if waiters else ALONE_CAP,
        waiters=waiters,
        seconds=setup.size(2, smoke=1),
        algorithm=algorithm,
    )


def to_outcome(found: Figures, *, smoke: bool = False) -> Outcome:
    checks: list[Check] = []
    for algorithm in ALGORITHMS:
        alone = _middle(found[algorithm, ALONE], "microseconds")
        few = 1e6 / _middle(found[algorithm, FEW], "microseconds")
        costs = [_middle(found[algorithm, waiters], "cpu") for waiters in (FEW, MANY)]
        if not smoke:  # an unknown machine may be as slow as it likes
            checks += [
                Check(
                    f"speed: acquire + release alone, {algorithm}, µs",
                    alone,
                    Sense.AT_MOST,
                    AT_MOST_ALONE,
                ),
                Check(
                    f"speed: {FEW} tasks on a cap of {CAP}, {algorithm}, operations/s",
                    few,
                    Sense.AT_LEAST,
                    AT_LEAST_FEW,
                ),
            ]
        checks.append(
            Check(
                f"speed: CPU among {MANY:,} tasks / among {FEW}, {algorithm}",
                costs[1] / costs[0],
                Sense.AT_MOST,
                AT_MOST_MANY,
            )
        )
        if (PEER, ALONE) in found:
            theirs = _middle(found[PEER, ALONE], "microseconds")
            name = f"speed: acquire + release alone, {algorithm}, × the peer's time"
            checks.append(Check(name, alone / theirs, Sense.AT_MOST, 1.0, Kind.GOAL))
    return Outcome(tuple(checks), (_table(found),))


def _table(found: Figures) -> Table:
    rows = [
        (
            who if who == PEER else f"ours, {who}",
            max(1, waiters),
            CAP if waiters else ALONE_CAP,
            _middle(answers, "microseconds"),
            _middle(answers, "cpu"),
            1e6 / _middle(answers, "microseconds"),
        )
        for (who, waiters), answers in found.items()
    ]
    version = next((a[0]["version"] for (who, _), a in found.items() if who == PEER), None)
    beside = f"{PEER} {version}" if version else f"no peer here; `{COMMAND}` installs it"
    return Table(f"A permit and its return, beside {beside}", COLUMNS, tuple(rows))


def _middle(answers: Sequence[Answer], figure: str) -> float:
    return statistics.median(pick(answers, figure))

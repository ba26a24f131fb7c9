# SPDX-License-Identifier: Apache-2.0
"""The comparison of two checkouts: workloads that take turns, pair by pair."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.journal.provider import serving
from benchmarks.measuring import Answer, ProbeFailed, fresh
from benchmarks.paired import journal, planning, queue, scheduling, startup
from benchmarks.paired.checkout import Side
from benchmarks.paired.figures import (
    Better,
    Figure,
    from_answer,
    paired,
    to_outcome,
)
from benchmarks.postgres.server import ended_connections_cpu, new_database, surroundings
from benchmarks.queue.workload import file_url
from benchmarks.runner import Outcome, Scenario, Section, Setup, Surroundings, Table

PAIRS = 10
PAIRS_IN_SMOKE = 1
SERVED = "postgres"  # the section that needs a server
TICK_SECONDS = 0.01  # in which the kernel counts the CPU of a server

#: What is measured of one side, in an empty folder of its own.
Workload = Callable[[Side, Setup], list[Figure]]


def section(
    names: Sequence[str],
    old: Side,
    new: Side,
    pairs: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Section:
    """The named sections of either side as one, `baseline`, with a scenario for each."""

    def measured(name: str, setup: Setup) -> Outcome:
        return compare(name, WORKLOADS[name], (old, new), setup, pairs, tell)

    return Section(
        "baseline",
        tuple(Scenario(name, partial(measured, name)) for name in dict.fromkeys(names)),
        partial(_around, old, new, served=SERVED in names),
    )


def compare(
    name: str,
    workloads: Sequence[Workload],
    sides: tuple[Side, Side],
    setup: Setup,
    pairs: int,
    tell: Callable[[str], None],
) -> Outcome:
    """Measure the old side and the new one in turn; every second pair begins with the new one."""
    if not setup.smoke:  # compiles what is imported, and shows early whether everything runs
        for workload in workloads:
            for side in sides:
                _measured(workload, side, replace(setup, smoke=True))
    rounds: list[dict[str, list[Figure]]] = []
    for number in range(pairs):
        tell(f"{name}: pair {number + 1} of {pairs} …")
        found: dict[str, list[Figure]] = {side.name: [] for side in sides}
        for workload in workloads:
            for side in sides if number % 2 == 0 else reversed(sides):
                found[side.name] += _measured(workload, side, setup)
        rounds.append(found)
    old, new = (side.name for side in sides)
    outcome = to_outcome(name, paired([(found[old], found[new]) for found in rounds]))
    for check in outcome.checks:  # for whoever does not wait for the other sections
        tell(f"{check.name}: {check.value:.3f}")
    return outcome


def _measured(workload: Workload, side: Side, setup: Setup) -> list[Figure]:
    # Beside the scenario's folder, so that the scenarios share what they have compiled.
    with tempfile.TemporaryDirectory(dir=setup.folder.parent) as folder:
        try:
            return workload(side, replace(setup, folder=Path(folder)))
        except ProbeFailed as error:
            raise ProbeFailed(f"On the {side.name} side, {side.commit}: {error}") from None


@contextlib.contextmanager
def _around(old: Side, new: Side, *, served: bool) -> Iterator[Surroundings]:
    rows = tuple((side.name, side.commit) for side in (old, new))
    sides = Table("The two sides", ("side", "commit"), rows)
    if not served:
        yield Surroundings("", (sides,))
        return
    with surroundings() as server:
        yield replace(server, tables=(sides, *server.tables))


def _on(side: Side, setup: Setup, probe: Callable[..., Answer], **arguments: Any) -> list[Figure]:
    return from_answer(fresh(probe, setup.folder, python=side.python, **arguments))


def _queue(side: Side, setup: Setup) -> list[Figure]:
    many, few = setup.size(30_000, smoke=100), setup.size(4_000, smoke=20)
    return _on(side, setup, queue.measure, store=file_url(), many=many, few=few)


def _postgres(side: Side, setup: Setup) -> list[Figure]:
    many, few = setup.size(30_000, smoke=100), setup.size(3_000, smoke=20)
    before = ended_connections_cpu(setup.url)
    with new_database(setup.url) as url:
        figures = _on(side, setup, queue.measure, store=url, many=many, few=few)
    spent = ended_connections_cpu(setup.url) - before
    cpu = max(spent, TICK_SECONDS) / (many + 3 * few) * 1e6
    return [*figures, Figure("all of this, on the server", "CPU µs/job", Better.LOWER, cpu)]


def _scheduling(side: Side, setup: Setup) -> list[Figure]:
    jobs = setup.size(8_000, smoke=100)
    return _on(side, setup, scheduling.drain, store=file_url(), jobs=jobs)


def _cycle(side: Side, setup: Setup) -> list[Figure]:
    return scheduling.cycle(side.root, side.python, setup.folder)


def _journal(side: Side, setup: Setup) -> list[Figure]:
    calls = setup.size(2_400, smoke=32)
    with serving() as provider:
        return _on(side, setup, journal.measure, store=file_url(), provider=provider, calls=calls)


def _plan(side: Side, setup: Setup) -> list[Figure]:
    datasets, days = setup.size(300, smoke=10), setup.size(1_000, smoke=10)
    return _on(side, setup, planning.plan, datasets=datasets, days=days)


def _build(side: Side, setup: Setup) -> list[Figure]:
    slices, plans = setup.size(600, smoke=20), setup.size(300, smoke=5)
    return _on(side, setup, planning.build, slices=slices, plans=plans)


def _startup(side: Side, setup: Setup) -> list[Figure]:
    return _on(side, setup, startup.measure, times=setup.size(3, smoke=1))


WORKLOADS: dict[str, tuple[Workload, ...]] = {
    "queue": (_queue,),
    "postgres": (_postgres,),
    "scheduling": (_scheduling, _cycle),
    "journal": (_journal,),
    "planning": (_plan, _build),
    "import": (_startup,),
}

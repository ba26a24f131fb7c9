# SPDX-License-Identifier: Apache-2.0
"""Does a graph cost what it has, however deep or wide it is?"""

from __future__ import annotations

from itertools import pairwise

from benchmarks.measuring import Answer, fresh, pick, stopwatch
from benchmarks.planning.market import DAY, Daily, nothing_built
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.dataset import DatasetSpec, Need
from penstock.model.plan import BuildRequest
from penstock.planning.build_plan import plan_build
from penstock.planning.graph import closure, levels_of, validate

SECONDS = 2.0  # for the order of any of these graphs: F59


def measure(setup: Setup) -> Outcome:
    """A deep chain, a wide diamond, and many diamonds in a row."""
    shapes = {
        "chain": setup.size(100_000, 10_000),
        "diamond": setup.size(10_000, 1_000),
        "diamonds": setup.size(10_000, 1_000),
    }
    found = {
        shape: fresh(shape_probe, setup.folder, shape=shape, size=size)
        for shape, size in shapes.items()
    }
    rows = tuple(
        (f"{shape} of {shapes[shape]:,}", answer["datasets"], answer["order"], answer["plan"])
        for shape, answer in found.items()
    )
    slowest = max(pick(list(found.values()), "order"))
    return Outcome(
        (Check("depth: CPU seconds to validate and order", slowest, Sense.BELOW, SECONDS),),
        (
            Table(
                "Graphs of datasets with one slice each",
                ("shape", "datasets", "validate, close, levels: CPU s", "plan: CPU s"),
                rows,
            ),
        ),
    )


def shape_probe(shape: str, size: int) -> Answer:
    """Validate a graph, close over its last dataset, find its levels; then plan it."""
    needs = {"chain": _chain, "diamond": _diamond, "diamonds": _diamonds}[shape](size)
    calendar = Daily()
    specs = {
        name: DatasetSpec(name=name, calendar=calendar, needs=tuple(Need(dataset=up) for up in ups))
        for name, ups in needs.items()
    }
    last = list(specs)[-1]
    with stopwatch() as order:
        validate(specs.values())
        closure(specs, [last])
        levels_of(needs)
    request = BuildRequest(targets=(last,), ranges=((0, DAY),))
    with stopwatch() as plan:
        plan_build(specs, request, nothing_built, DAY)
    return {"datasets": len(specs), "order": order.cpu, "plan": plan.cpu}


def _chain(size: int) -> dict[str, list[str]]:
    return {f"d{n}": [f"d{n - 1}"] if n else [] for n in range(size)}


def _diamond(size: int) -> dict[str, list[str]]:
    middle = [f"m{n}" for n in range(size)]
    return {"top": [], **{name: ["top"] for name in middle}, "bottom": middle}


def _diamonds(size: int) -> dict[str, list[str]]:
    needs: dict[str, list[str]] = {"t0": []}
    for before, after in pairwise(range(size + 1)):
        needs |= {f"l{after}": [f"t{before}"], f"r{after}": [f"t{before}"]}
        needs[f"t{after}"] = [f"l{after}", f"r{after}"]
    return needs

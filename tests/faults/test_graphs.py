# SPDX-License-Identifier: Apache-2.0
"""F59: a graph that cannot be is refused with everything that is wrong; any other one is planned.

How long the large ones take is measured: `python -m benchmarks planning`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from penstock.errors import UsageError
from penstock.model.dataset import DatasetSpec, Need
from penstock.model.plan import BuildRequest, Placement
from penstock.planning.build_plan import plan_build
from penstock.planning.graph import closure, levels_of, validate
from penstock.planning.plan_jobs import plan_jobs
from tests.datasets import DAY, Steps, by_name, dataset, nothing_built
from tests.depth import depth

DEEP = depth(quick=20_000, soak=100_000)
DEEP_JOBS = depth(quick=5_000, soak=20_000)
WIDE = 10_000
ROW = 1_000  # diamonds
FRAMES = 60  # that planning may use, whatever the graph


@contextmanager
def hardly_any_stack() -> Iterator[None]:
    """What recurses even a little fails in here."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def chain(length: int) -> list[DatasetSpec]:
    """Each dataset needs the one before; they share one calendar."""
    calendar = Steps()
    return [
        DatasetSpec(
            name=f"d{n}", calendar=calendar, needs=(Need(dataset=f"d{n - 1}"),) if n else ()
        )
        for n in range(length)
    ]


@pytest.mark.parametrize(
    ("needs", "refusal"),
    [
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, "in a circle: a → b → c → a"),
        ({"a": ["a"]}, "Dataset 'a' needs itself"),
        ({"prices": [], "report": ["pirces"]}, "'pirces', which is not defined; the nearest"),
        ({"a": [], "b": ["a", "a"]}, r"Dataset 'b' needs 'a' twice"),
    ],
)
def test_f59_a_graph_that_cannot_be_is_refused(needs: dict[str, list[str]], refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        validate([dataset(name, *wanted) for name, wanted in needs.items()])


def test_f59_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="Two datasets are called 'a'"):
        validate([dataset("a"), dataset("a")])


def test_f59_a_chain_of_20_000_datasets_is_ordered_without_recursion() -> None:
    specs = by_name(chain(DEEP))

    with hardly_any_stack():
        validate(specs.values())
        order = closure(specs, [f"d{DEEP - 1}"])
        levels = levels_of({name: [n.dataset for n in specs[name].needs] for name in specs})

    assert order == list(specs)
    assert [len(level) for level in levels] == [1] * DEEP


def test_f59_a_plan_of_5_000_levels_and_its_jobs_are_made_without_recursion() -> None:
    specs = by_name(chain(DEEP_JOBS))
    request = BuildRequest(targets=(f"d{DEEP_JOBS - 1}",), ranges=((0, DAY),))
    place = Placement(task="t", group="g")

    with hardly_any_stack():
        plan = plan_build(specs, request, nothing_built, DAY)
        jobs = sum(1 for _ in plan_jobs(plan, lambda _: place, place, eager=True))

    assert [len(level) for level in plan.levels] == [1] * DEEP_JOBS
    assert jobs > DEEP_JOBS


def test_f59_a_circle_of_10_000_datasets_is_printed_in_short() -> None:
    specs = chain(WIDE)
    specs[0] = dataset("d0", f"d{WIDE - 1}")

    with (
        hardly_any_stack(),
        pytest.raises(UsageError, match=r"circle: d0 → d9999 → .* 9,991 more … .* → d1 → d0\."),
    ):
        validate(specs)


def test_f59_a_diamond_of_10_000_datasets_is_two_levels_apart() -> None:
    middle = [dataset(f"m{n}", "top") for n in range(WIDE)]
    specs = by_name([dataset("top"), *middle, dataset("bottom", *(spec.name for spec in middle))])
    request = BuildRequest(targets=("bottom",), ranges=((0, DAY),))

    with hardly_any_stack():
        validate(specs.values())
        plan = plan_build(specs, request, nothing_built, 0)

    assert [len(level) for level in plan.levels] == [1, WIDE, 1]
    assert len(plan.levels[2][0].needs) == WIDE


def test_f59_diamonds_in_a_row_are_planned_though_their_paths_are_countless() -> None:
    specs = [dataset("t0")]
    for before, after in pairwise(range(ROW + 1)):
        specs += [dataset(f"l{after}", f"t{before}"), dataset(f"r{after}", f"t{before}")]
        specs.append(dataset(f"t{after}", f"l{after}", f"r{after}"))
    request = BuildRequest(targets=(f"t{ROW}",), ranges=((0, DAY),))

    with hardly_any_stack():
        validate(specs)
        plan = plan_build(by_name(specs), request, nothing_built, 0)

    assert len(plan.levels) == 2 * ROW + 1
    assert plan.jobs == 3 * ROW + 1

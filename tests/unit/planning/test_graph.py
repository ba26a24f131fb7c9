# SPDX-License-Identifier: Apache-2.0
"""Graphs of datasets: refused with everything that is wrong, or put in order; networkx agrees."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.model.dataset import Need, Rule
from penstock.planning.graph import closure, levels_of, validate
from tests.datasets import by_name, dataset

edges = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)


def test_all_problems_of_a_graph_are_told_at_once() -> None:
    specs = [
        dataset("prices"),
        dataset("a", "b"),
        dataset("b", "c"),
        dataset("c", "a"),
        dataset("x", "y"),
        dataset("y", "x"),
        dataset("alone", "alone"),
        dataset("report", "price"),
        dataset("twice", "prices", Need(dataset="prices", rule=Rule.LOOKBACK, count=20)),
        dataset("prices"),
        dataset("mixed", "p-q", "p.q"),
        dataset("p-q"),
        dataset("p.q"),
    ]

    with pytest.raises(UsageError) as refused:
        validate(specs)

    assert str(refused.value).splitlines() == [
        "The graph of datasets has 7 problems:",
        "- Dataset 'alone' needs itself: remove alone.latest() from its needs.",
        "- Dataset 'twice' needs 'prices' twice (prices.latest() and prices.lookback(20)): "
        "keep one of them.",
        "- Two datasets are called 'prices': rename one of them.",
        "- Dataset 'mixed' needs 'p-q' and 'p.q', which would both be its argument 'p_q': "
        "rename one of them.",
        "- Dataset 'report' needs 'price', which is not defined; "
        "the nearest known ones are 'prices', 'twice'.",
        "- Datasets need each other in a circle: a → b → c → a. Remove one of these needs.",
        "- Datasets need each other in a circle: x → y → x. Remove one of these needs.",
    ]


def test_the_middle_of_a_long_circle_is_left_out() -> None:
    specs = [dataset(f"d{n:03}", f"d{(n + 1) % 100:03}") for n in range(100)]

    with pytest.raises(UsageError, match=r"d000 → d001 → d002 → d003 → d004 → … 91 more … → d096"):
        validate(specs)


def test_an_unknown_target_is_told_with_the_nearest() -> None:
    specs = by_name([dataset("prices"), dataset("volatility")])

    with pytest.raises(
        UsageError, match="No dataset is called 'prcies'; the nearest known one is 'prices'"
    ):
        closure(specs, ["prcies"])


@given(edges)
def test_a_graph_is_refused_exactly_if_it_has_a_circle(pairs: set[tuple[int, int]]) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(10))
    graph.add_edges_from((a, b) for a, b in pairs if a != b)
    specs = [dataset(f"d{n}", *(f"d{m}" for m in sorted(graph[n]))) for n in graph]
    knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]

    try:
        validate(specs)
        told: list[list[str]] = []
    except UsageError as error:
        lines = [line for line in str(error).splitlines() if "→" in line]
        told = [line.split("circle: ")[1].split(". Remove")[0].split(" → ") for line in lines]

    assert len(told) == len(knots)
    for circle in told:
        assert circle[0] == circle[-1]
        numbers = [int(name[1:]) for name in circle]
        assert all(graph.has_edge(a, b) for a, b in pairwise(numbers))


@given(edges, st.sets(st.integers(0, 9), min_size=1, max_size=4))
def test_closure_and_levels_are_those_of_networkx(
    pairs: set[tuple[int, int]], targets: set[int]
) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(10))
    graph.add_edges_from((max(pair), min(pair)) for pair in pairs if pair[0] != pair[1])
    specs = by_name(dataset(f"d{n}", *(f"d{m}" for m in sorted(graph[n]))) for n in graph)
    wanted = set(targets).union(*(nx.descendants(graph, target) for target in targets))

    order = closure(specs, [f"d{n}" for n in sorted(targets)])
    levels = levels_of({name: [need.dataset for need in specs[name].needs] for name in specs})

    assert {int(name[1:]) for name in order} == wanted
    assert len(order) == len(wanted)
    places = {name: place for place, name in enumerate(order)}
    for name in order:
        assert all(places[need.dataset] < places[name] for need in specs[name].needs)
    generations = nx.topological_generations(graph.reverse())
    assert [sorted(map(int, (n[1:] for n in level))) for level in levels] == [
        sorted(level) for level in generations
    ]


def test_levels_of_a_circle_are_refused_with_the_circle() -> None:
    with pytest.raises(UsageError, match="a → b → a"):
        levels_of({"a": ["b"], "b": ["a"], "c": []})


def test_closure_refuses_a_circle_that_nobody_validated() -> None:
    specs = by_name([dataset("a", "b"), dataset("b", "a")])

    with pytest.raises(UsageError, match="a → b → a"):
        closure(specs, ["a"])

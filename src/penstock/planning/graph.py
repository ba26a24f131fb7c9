# SPDX-License-Identifier: Apache-2.0
"""The dependency graph (DAG) of datasets: validation, cycles, topological order, levels.

Nothing here recurses: a chain of 100,000 datasets is as good as any other graph.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import TypeVar

from penstock.errors import UsageError
from penstock.model.dataset import DatasetSpec
from penstock.planning.units import PROBLEMS_SHOWN, Problems

CIRCLE_SHOWN = 10  # names of a circle that its refusal prints
NEAR_SHOWN = 3  # known names that a refusal proposes
NEAR_AMONG = 2_000  # known names that are compared with an unknown one

N = TypeVar("N", bound=Hashable)


def validate(specs: Iterable[DatasetSpec]) -> None:
    """Raise one UsageError with everything that is wrong with a graph."""
    problems = Problems("The graph of datasets")
    needs: dict[str, list[str]] = {}
    for spec in specs:
        if spec.name in needs:
            problems.add(f"Two datasets are called {spec.name!r}: rename one of them.")
        needs.setdefault(spec.name, []).extend(_needs_of(spec, problems))
    unknown = 0
    for name, wanted in needs.items():
        for need in wanted:
            if need not in needs:
                unknown += 1
                near = nearest(need, needs) if unknown <= PROBLEMS_SHOWN else ""
                problems.add(f"Dataset {name!r} needs {need!r}, which is not defined{near}.")
    known = {name: [n for n in wanted if n in needs] for name, wanted in needs.items()}
    for circle in _circles(known):
        problems.add(_circle_refusal("Datasets", circle))
    problems.raise_if_any()


def _needs_of(spec: DatasetSpec, problems: Problems) -> list[str]:
    """Whom one dataset needs, without what is wrong by itself."""
    arguments: dict[str, str] = {}
    for need in spec.needs:
        if need.dataset == spec.name:
            problems.add(f"Dataset {spec.name!r} needs itself: remove {need.text} from its needs.")
            continue
        other = arguments.setdefault(need.argument, need.dataset)
        if other != need.dataset:
            problems.add(
                f"Dataset {spec.name!r} needs {other!r} and {need.dataset!r}, which would both be "
                f"its argument {need.argument!r}: rename one of them."
            )
    counts = Counter(need.dataset for need in spec.needs if need.dataset != spec.name)
    for name, count in counts.items():
        if count > 1:
            rules = " and ".join(need.text for need in spec.needs if need.dataset == name)
            problems.add(f"Dataset {spec.name!r} needs {name!r} twice ({rules}): keep one of them.")
    return list(counts)


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that proposes known names for an unknown one; empty if none is near."""
    names = list(known)
    if len(names) > NEAR_AMONG:
        alike = (other for other in names if other[:2].lower() == name[:2].lower())
        names = list(islice(alike, NEAR_AMONG))
    near = get_close_matches(name, names, NEAR_SHOWN)
    if not near:
        return ""
    told = ", ".join(map(repr, near))
    return f"; the nearest known one{' is' if len(near) == 1 else 's are'} {told}"


def closure(specs: Mapping[str, DatasetSpec], targets: Iterable[str]) -> list[str]:
    """The targets and all that they need in topological order, upstream first.

    Raises:
        UsageError: a target or something that is needed is unknown, or there is a circle.
    """
    names = list(targets)
    for target in names:
        if target not in specs:
            raise UsageError(f"No dataset is called {target!r}{nearest(target, specs)}.")
    needs: dict[str, list[str]] = {}
    for name in names:  # grows meanwhile
        if name in needs:
            continue
        if name not in specs:
            validate(specs.values())
        needs[name] = [need.dataset for need in specs[name].needs]
        names += needs[name]
    return [name for level in levels_of(needs) for name in level]


def levels_of(needs: Mapping[N, Collection[N]], what: str = "Datasets") -> list[list[N]]:
    """Kahn's algorithm: what needs nothing, then what needs only those, and so on.

    Args:
        needs: each node with those that it needs, all of them known.
        what: what the nodes are called in the refusal of a circle.

    Raises:
        UsageError: there is a circle, which is printed.
    """
    waits = {name: len(wanted) for name, wanted in needs.items()}
    dependants: dict[N, list[N]] = {}
    for name, wanted in needs.items():
        for need in wanted:
            dependants.setdefault(need, []).append(name)
    levels = []
    level = [name for name, count in waits.items() if not count]
    placed = 0
    while level:
        levels.append(level)
        placed += len(level)
        following = []
        for name in level:
            for dependant in dependants.get(name, ()):
                waits[dependant] -= 1
                if not waits[dependant]:
                    following.append(dependant)
        level = following
    if placed < len(waits):
        circle = next(_circles(needs))
        raise UsageError(_circle_refusal(what, circle))
    return levels


def _circles(needs: Mapping[N, Collection[N]]) -> Iterator[list[N]]:
    """The shortest circle through one node of every strongly connected component."""
    for component in _cyclic_components(needs):
        members = set(component)
        start = min(component, key=repr)
        came: dict[N, N] = {}
        queue = deque([start])
        while start not in came:
            name = queue.popleft()
            for need in needs[name]:
                if need in members and need not in came:
                    came[need] = name
                    queue.append(need)
        circle = [start]
        step = came[start]
        while step != start:
            circle.append(step)
            step = came[step]
        yield [start, *reversed(circle)]


def _cyclic_components(needs: Mapping[N, Collection[N]]) -> Iterator[list[N]]:
    """Strongly connected components with a circle: Tarjan's algorithm, its stack our own."""
    number: dict[N, int] = {}
    low: dict[N, int] = {}
    open_names: dict[N, None] = {}
    for root in needs:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        open_names[root] = None
        path = [(root, iter(needs[root]))]
        while path:
            name, rest = path[-1]
            for need in rest:
                if need not in number:
                    number[need] = low[need] = len(number)
                    open_names[need] = None
                    path.append((need, iter(needs[need])))
                    break
                if need in open_names:
                    low[name] = min(low[name], number[need])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[name])
                if low[name] == number[name]:
                    component: list[N] = []
                    while not component or component[-1] != name:
                        component.append(open_names.popitem()[0])
                    if len(component) > 1 or name in needs[name]:
                        yield component


def _circle_refusal(what: str, circle: Sequence[object]) -> str:
    """Names the circle as `a → b → a`; the middle of a long one is left out."""
    if len(circle) > CIRCLE_SHOWN + 1:
        half = CIRCLE_SHOWN // 2
        left = len(circle) - 2 * half
        circle = [*circle[:half], f"… {left:,} more …", *circle[-half:]]
    shown = " → ".join(map(str, circle))
    return f"{what} need each other in a circle: {shown}. Remove one of these needs."

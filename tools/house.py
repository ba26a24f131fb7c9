# SPDX-License-Identifier: Apache-2.0
"""Measures the house beside its bounds: files, code lines, imports, constructors, a job's walk.

`make house` prints it. The exit code is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RUNS = 5  # of each process whose CPU time is measured; the least is what it needs
WALKS = 6  # jobs whose way is recorded, after one that warms the worker up

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of the house and what it may be at most; None: printed, not bounded."""

    name: str
    value: float
    most: float | None = None

    @property
    def is_missed(self) -> bool:
        return self.most is not None and self.value > self.most

    def line(self) -> str:
        bound = "" if self.most is None else f"at most {self.most:,g}"
        return (
            f"{self.name:<52}{self.value:>10,g}   {bound:<16}{'MISSED' if self.is_missed else ''}"
        )


def code_lines(tree: ast.Module, text: str) -> int:
    """Count lines that are not blank, comment, docstring or import."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                skipped.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in skipped
    )


def functions_of(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def parameter_count(function: Function) -> int:
    """Count what a caller hands over: every parameter but self."""
    arguments = function.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1


def constructors_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name the classes that write their own __init__, with its number of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    yield node.name, parameter_count(member)


def body_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def tree_measures(source: Path) -> list[Measure]:
    """Read every file of the package."""
    texts = {path: path.read_text() for path in sorted(source.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lengths = sorted(body_lines(f) for tree in trees.values() for f in functions_of(tree))
    constructors = [one for tree in trees.values() for one in constructors_of(tree)]
    return [
        Measure("files under src/penstock", len(texts), 340),
        Measure("code lines", sum(code_lines(trees[p], texts[p]) for p in texts), 44_000),
        Measure("lines in all", sum(len(text.splitlines()) for text in texts.values())),
        Measure("lines of a function, median", statistics.median(lengths)),
        Measure("lines of a function, nine in ten", lengths[int(len(lengths) * 0.9)], 25),
        Measure("parameters of a constructor, most", max(count for _, count in constructors), 8),
    ]


def cpu_seconds(command: list[str]) -> float:
    """Run a command RUNS times; its least CPU time, children included."""
    least = float("inf")
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        least = min(least, used)
    return round(least, 3)


def import_measures() -> list[Measure]:
    """Start processes that import the package, or ask the command for help."""
    count = (
        "import sys, penstock; "
        "print(sum(name.partition('.')[0] == 'penstock' for name in sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", count], check=True, capture_output=True, text=True, cwd=REPOSITORY
    )
    penstock = Path(sys.executable).parent / "penstock"
    return [
        Measure(
            "CPU seconds of 'import penstock'",
            cpu_seconds([sys.executable, "-c", "import penstock"]),
            0.35,
        ),
        Measure("modules of ours in 'import penstock'", int(loaded.stdout), 120),
        Measure("CPU seconds of 'penstock --help'", cpu_seconds([str(penstock), "--help"]), 0.4),
    ]


def walk_measures(listed: bool) -> list[Measure]:
    """Record which of our files and functions one job passes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [sys.executable, str(REPOSITORY / "tools/job_walk.py"), str(WALKS)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": ""},
        )
    passed: dict[str, list[str]] = json.loads(answer.stdout)
    if listed:
        for file, names in passed.items():
            print(f"  {file}: {', '.join(names)}")
    return [
        Measure("files that a job passes from enqueue to done", len(passed), 45),
        Measure("functions that a job passes", sum(map(len, passed.values()))),
    ]


def offenders(source: Path) -> Iterator[str]:
    """Name constructors and functions that are larger than the house allows."""
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text())
        place = path.relative_to(source)
        for name, count in constructors_of(tree):
            if count > 8:
                yield f"{place}: {name} takes {count} parameters"
        for function in functions_of(tree):
            if body_lines(function) > 70:
                yield f"{place}: {function.name} has {body_lines(function)} lines"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", action="store_true", help="name the files that a job passes")
    parser.add_argument("--offenders", action="store_true", help="name what is too large")
    parser.add_argument("--source", type=Path, default=REPOSITORY / "src/penstock")
    wanted = parser.parse_args()
    if wanted.offenders:
        print(*offenders(wanted.source), sep="\n")
    measures = [*tree_measures(wanted.source), *import_measures(), *walk_measures(wanted.walk)]
    print(*(measure.line() for measure in measures), sep="\n")
    return int(any(measure.is_missed for measure in measures))


if __name__ == "__main__":
    sys.exit(main())

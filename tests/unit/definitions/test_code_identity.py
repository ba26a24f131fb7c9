# SPDX-License-Identifier: Apache-2.0
"""The identity of code: what a function does changes it, how and where it is written does not."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.definitions.code_identity import identity_of_code

BASE = '''
def helper(text):
    return text.upper()

def work(review: str, least: int = 3) -> bool:
    """Docstring."""
    return len(helper(review)) > least
'''


def module_of(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def identity(tmp_path: Path) -> Callable[[str], str]:
    """Of `work` in a module of this text; each module is a file of its own."""
    numbers = iter(range(1_000))

    def of(text: str) -> str:
        module = module_of(tmp_path / f"code_{next(numbers)}.py", text)
        return identity_of_code(module.work)

    return of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def helper", "# a comment\n\n\ndef helper"),
        ('"""Docstring."""', '"""Another."""'),
        ('    """Docstring."""\n', ""),
        (" -> bool", ""),
        ("review: str", "review"),
        ("return len", "return  (len"),
        ("def work", "import functools\n@functools.lru_cache\ndef work"),
        ("def helper", "LIMIT = 4\ndef unrelated():\n    return 1\n\ndef helper"),
    ],
)
def test_how_code_is_written_does_not_count(
    identity: Callable[[str], str], old: str, new: str
) -> None:
    changed = BASE.replace(old, new)
    if "(len" in new:
        changed = changed.replace("least\n", "least)\n")

    assert changed != BASE
    assert identity(changed) == identity(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> least", ">= least"),
        ("least: int = 3", "least: int = 4"),
        ("text.upper()", "text.lower()"),  # in a function that it calls
    ],
)
def test_what_code_does_counts(identity: Callable[[str], str], old: str, new: str) -> None:
    assert identity(BASE.replace(old, new)) != identity(BASE)


PINNED = '''
def helper(x):
    return x.strip()

async def work(review: str, least: int = 3, *, k={"a": 1}) -> bool:
    """Doc."""
    if len(helper(review)) > least and review != f"a{review!r:>{least}}b {{x}} it's \\"" 'c':
        return [await y async for y in review if (z := y)]
    match review:
        case {"a": [1, *rest]} if rest:
            return lambda *a, k=1, **q: (a, -1, 1e5, 0x10, "\\u00e9")
'''


def test_identities_are_pinned_for_ever(identity: Callable[[str], str]) -> None:
    """The same under 3.11, 3.12 and 3.13. A change would buy anew what needs a function."""
    assert identity(PINNED) == "ca15d82f0aaaf2292c6cc562f17c46b7"


def least(count: int) -> Callable[[str], bool]:
    return lambda text: len(text) > count


def test_what_code_encloses_counts() -> None:
    assert identity_of_code(least(1)) == identity_of_code(least(1))
    assert identity_of_code(least(1)) != identity_of_code(least(2))


def test_lambdas_of_one_line_are_told_apart() -> None:
    first, second, third = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 1)
    nested = [lambda x: (lambda y: y)(x), lambda x: (lambda y: -y)(x)]

    assert identity_of_code(first) == identity_of_code(third)
    assert identity_of_code(first) != identity_of_code(second)
    assert identity_of_code(nested[0]) != identity_of_code(nested[1])


def adder() -> Callable[[int], Callable[[int], int]]:
    return lambda n: lambda y: y + 1


def test_a_lambda_inside_of_another_is_itself() -> None:
    make = adder()

    assert identity_of_code(make(0)) == identity_of_code(lambda y: y + 1)
    assert identity_of_code(make) != identity_of_code(make(0))


def test_a_lambda_over_several_lines_is_found() -> None:
    spread = lambda x: (  # noqa: E731
        x + 1  # one more
    )
    flat = lambda x: x + 1  # noqa: E731

    assert identity_of_code(spread) == identity_of_code(flat)


class Longer:
    def __init__(self, than: int) -> None:
        self.than = than

    def __call__(self, text: str) -> bool:
        return len(text) > self.than

    def method(self, text: str) -> bool:
        return len(text) < self.than


def test_partials_methods_and_objects_have_identities() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    found: list[Any] = [
        functools.partial(add, 1),
        functools.partial(add, 2),
        Longer(1).method,
        Longer(2).method,
        Longer(1),
        Longer(2),
        len,
        str,
    ]

    assert len({identity_of_code(one) for one in found}) == len(found)


def test_code_without_a_source_is_known_by_what_it_was_compiled_to() -> None:
    def made(text: str) -> Any:
        space: dict[str, Any] = {}
        exec(text, space)
        return space["work"]

    one = identity_of_code(made("def work(x):\n    return x + 1\n"))

    assert identity_of_code(made("def work(x):\n    return x + 1\n")) == one
    assert identity_of_code(made("def work(x):\n    return x + 2\n")) != one


def test_every_process_finds_the_same(tmp_path: Path) -> None:
    (tmp_path / "pinned.py").write_text(BASE + "check = lambda row: {1, 'a'} & {row['x']}\n")
    code = (
        "import pinned; from penstock.definitions.code_identity import identity_of_code as of;"
        "print(of(pinned.work), of(pinned.check))"
    )
    said = {
        subprocess.run(
            [sys.executable, *flags, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, flags in (("1", []), ("2", ["-O"]))
    }

    assert len(said) == 1

# SPDX-License-Identifier: Apache-2.0
"""Which values may work be multiplied over, and what are they called?"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from penstock import Partitions, Penstock
from penstock.definitions import partitions as module
from penstock.definitions.partitions import name_of
from penstock.errors import UsageError


@dataclass(frozen=True)
class Repo:
    owner: str
    name: str


@dataclass(frozen=True)
class Branch:
    repo: Repo
    name: str


class Place(msgspec.Struct, frozen=True):
    region: str
    zone: int


class Row(BaseModel):
    model_config = ConfigDict(frozen=True)
    table: str
    number: int


class Pair(NamedTuple):
    left: str
    right: str


class Colour(Enum):
    RED = "red/ish"


class Size(IntEnum):
    SMALL = 1


class Kind(StrEnum):
    NEW = "new"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("eu", "eu"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("a b:c", "a b:c"),
        ("مجموعة", "مجموعة"),
        (7, "7"),
        (-1.5, "-1.5"),
        (True, "true"),
        (Decimal("1.10"), "1.10"),
        (date(2024, 2, 29), "2024-02-29"),
        (Colour.RED, "red%2Fish"),
        (Size.SMALL, "1"),
        (Kind.NEW, "new"),
        (Repo("thumbrise", "autosolve"), "thumbrise/autosolve"),
        (Repo("a/b", "%"), "a%2Fb/%25"),
        (Branch(Repo("o", "n"), "main"), "o/n/main"),
        (Place("eu", 2), "eu/2"),
        (Row(table="t", number=3), "t/3"),
        (Pair("l", "r"), "l/r"),
        (("x", 1), "x/1"),
    ],
)
def test_a_value_is_called_by_its_text_or_its_parts(value: object, name: str) -> None:
    assert name_of(value) == name


@given(st.tuples(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9)))
def test_two_pairs_have_one_name_only_if_they_are_equal(pair: tuple[str, str]) -> None:
    try:
        name = name_of(pair)
    except UsageError:
        return
    parts = [part.replace("%2F", "/").replace("%25", "%") for part in name.split("/")]
    assert tuple(parts) == pair


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty name"),
        (("a", ""), "empty part"),
        ((), "empty"),
        (None, "has no name of its own"),
        ({"a": 1}, "has no name of its own"),
        (object, "has no name of its own"),
        ("a\nb", "control characters"),
        ("\ud800", "surrogate"),
        ("x" * 257, "1 to 256 characters"),
        ((((((((((1,),),),),),),),),), "has no name of its own"),
    ],
)
def test_a_value_without_a_name_is_refused(value: object, why: str) -> None:
    found = Partitions("p", [value]).named_values(None)

    assert found.values == {}
    (problem,) = found.problems
    assert problem.startswith("Partitions 'p': ")
    assert why in problem


def test_values_are_by_name_and_in_order() -> None:
    regions = Partitions("region", ["us", "eu"])

    assert list(regions.named_values(None).values.items()) == [("us", "us"), ("eu", "eu")]


def test_an_iterator_is_read_once_and_kept() -> None:
    regions = Partitions("region", iter(["us", "eu"]))

    assert len(regions.named_values(None).values) == len(regions.named_values(None).values) == 2


def test_a_function_is_called_whenever_it_is_evaluated_and_not_before() -> None:
    calls = count()
    regions = Partitions("region", lambda: [f"r{next(calls)}"])

    assert next(calls) == 0
    assert list(regions.named_values(None).values) == ["r1"]
    assert list(regions.named_values(None).values) == ["r2"]


def test_a_key_names_otherwise() -> None:
    by_name = Partitions("repo", [Repo("o", "a/b")], key=lambda repo: repo.name)
    in_parts = Partitions("repo", [Repo("o", "a")], key=lambda repo: (repo.name, repo.owner))

    assert list(by_name.named_values(None).values) == ["a%2Fb"]
    assert list(in_parts.named_values(None).values) == ["a/o"]


def test_every_value_that_cannot_be_used_is_told() -> None:
    values: list[Any] = ["a", "", ["list"], "a", {1: 2}, "b"]
    found = Partitions("p", values, key=lambda value: value if value != ["list"] else "l")
    told = found.named_values(None)

    assert list(told.values) == ["a", "b"]
    assert [problem.split(": ", 1)[1].split(";")[0] for problem in told.problems] == [
        "'' has an empty name, or an empty part in it.",
        "['list'] is not hashable",
        "two values are named 'a'.",
        "{1: 2} is of type dict, which has no name of its own",
    ]


def test_a_mutable_dataclass_is_not_hashable() -> None:
    @dataclass
    class Loose:
        name: str

    (problem,) = Partitions("p", [Loose("x")]).named_values(None).problems

    assert problem.endswith(
        "is not hashable; write @dataclass(frozen=True), or a tuple for a list."
    )


def _raise() -> list[str]:
    raise OSError("no such\nfile")


def _broken() -> Iterator[str]:
    yield "a"
    raise RuntimeError("half way")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_raise, "their function raised OSError: no such"),
        (_broken, "their function raised RuntimeError: half way."),
        (lambda: None, "a list or another iterable, got None."),
        (lambda: "abc", "a list or another iterable, got 'abc'."),
        (lambda: 5, "a list or another iterable, got 5."),
    ],
)
def test_a_function_that_fails_is_told_with_its_dimension(
    function: Callable[[], Iterable[str]], why: str
) -> None:
    found = Partitions("region", function).named_values(None)

    assert found.values == {}
    assert found.problems[0].startswith("Partitions 'region': ")
    assert why in found.problems[0]


def test_a_key_that_raises_is_told() -> None:
    (problem,) = Partitions("p", ["a"], key=lambda value: value[9]).named_values(None).problems

    assert problem.startswith("Partitions 'p': the key= of 'a' raised IndexError: ")


def test_a_source_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES_MAX", 10)

    assert len(Partitions("n", range(10)).named_values(None).values) == 10
    with pytest.raises(UsageError, match="more than 10 values"):
        Partitions("n", count())


# From the configuration


def test_values_of_the_configuration_are_rebuilt() -> None:
    repos: Partitions[Repo] = Partitions("repo", of=Repo)
    raw = [{"owner": "o", "name": "a"}, {"owner": "o", "name": "b"}]

    found = repos.named_values(raw).values
    assert found == {"o/a": Repo("o", "a"), "o/b": Repo("o", "b")}
    assert Partitions("n", of=int).named_values([1, 2]).values == {"1": 1, "2": 2}
    assert Partitions("n", of=Row).named_values([{"table": "t", "number": 1}]).values == {
        "t/1": Row(table="t", number=1)
    }


@pytest.mark.parametrize(
    ("of", "raw", "why"),
    [
        (Repo, None, r"write repo = \[...\] under \[partitions\] in penstock.toml"),
        (Repo, [{"owner": "o"}], r"partitions.repo\[0\] cannot become Repo: object missing"),
        (int, [1, "2"], r"partitions.repo\[1\] cannot become int: expected `int`, got `str`"),
        (Row, [{"table": "t"}], r"partitions.repo\[0\] cannot become Row"),
        (Partitions, ["x"], r"partitions.repo\[0\] cannot become Partitions"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(of: type, raw: Any, why: str) -> None:
    (problem,) = Partitions("repo", of=of).named_values(raw).problems

    assert re.search(why, problem), problem


# Definition


@pytest.mark.parametrize(
    "make",
    [
        lambda: Partitions("p"),
        lambda: Partitions("p", ["a"], of=str),
        lambda: Partitions("", ["a"]),
        lambda: Partitions("x" * 65, ["a"]),
        lambda: Partitions("p", "text"),
        lambda: Partitions("p", 5),  # type: ignore[arg-type]
        lambda: Partitions("p", ["a"], key="name"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_dimension_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_coroutine_function_is_refused() -> None:
    async def regions() -> list[str]:
        return ["eu"]

    with pytest.raises(UsageError, match="write a `def`"):
        Partitions("region", regions)  # type: ignore[arg-type]


def test_two_dimensions_of_one_name_are_refused() -> None:
    app = Penstock("a")
    app.partitions("region", ["eu"])

    with pytest.raises(UsageError, match="two partitions named 'region'"):
        app.partitions("region", of=str)


class Wordless(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("source", "key", "sentence"),
    [
        (lambda: sys.exit(3), None, "their function raised SystemExit: 3."),
        (["a"], lambda _: sys.exit(4), "the key= of 'a' raised SystemExit: 4."),
        ([Wordless("a")], None, "the name of 'a' raised RuntimeError: no text."),
    ],
)
def test_whatever_a_user_does_to_end_the_process_is_a_problem_of_the_plan(
    source: Any, key: Any, sentence: str
) -> None:
    named = Partitions("host", source, key=key).named_values(None)
    assert named.problems == (f"Partitions 'host': {sentence}",)


def test_too_many_dimensions_are_refused_before_they_are_multiplied() -> None:
    many = tuple(Partitions(f"d{n}", ["a"]) for n in range(6))
    assert len(module.dimensions_of("Schedule 'x'", many[:5])) == 5
    with pytest.raises(UsageError, match="at most 5 partitions, got 6"):
        module.dimensions_of("Schedule 'x'", many)

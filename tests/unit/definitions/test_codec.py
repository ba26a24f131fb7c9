# SPDX-License-Identifier: Apache-2.0
"""Which calls become JSON, what comes back, and what is said of the others?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from penstock import Context
from penstock.definitions.task import ArgumentCodec
from penstock.errors import PayloadError, UsageError


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    points: list[Point]


class Person(BaseModel):
    name: str
    age: int


class Opaque:
    """Something that JSON cannot rebuild."""


def codec(function: Callable[..., Any]) -> ArgumentCodec:
    return ArgumentCodec("t", function)


def round_trip(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    made = codec(function)
    positional, keyword = made.call_arguments(made.encode(args, kwargs))
    return positional if not keyword else (positional, keyword)


def refusal(function: Callable[..., Any], payload: str) -> str:
    with pytest.raises(PayloadError) as caught:
        codec(function).decode(payload)
    return str(caught.value)


def test_arguments_come_back_in_the_functions_order() -> None:
    def task(ctx: Context, a: int, b: str = "b", c: float = 0.5) -> None: ...

    assert round_trip(task, c=1.0, a=1) == (1, "b", 1.0)
    assert round_trip(task, 1, "x") == (1, "x", 0.5)
    assert codec(task).encode((), {"a": 1}) == '{"a":1}'  # a default is not written down


def test_keyword_only_arguments_stay_keywords() -> None:
    def task(ctx: Context, a: int, *, b: int, c: int = 3) -> None: ...

    assert round_trip(task, 1, b=2) == ((1,), {"b": 2, "c": 3})
    with pytest.raises(PayloadError, match="takes 1 positional arguments, got 2"):
        codec(task).encode((1, 2), {})


def test_rich_types_are_rebuilt() -> None:
    def task(
        ctx: Context,
        when: datetime,
        day: date,
        span: timedelta,
        number: UUID,
        colour: Colour,
        shape: Shape,
        kind: Literal["a", "b"],
        maybe: int | None,
        pair: tuple[int, str],
        names: set[str],
    ) -> None: ...

    values = {
        "when": datetime(2024, 1, 5, 12),
        "day": date(2024, 1, 5),
        "span": timedelta(seconds=90),
        "number": UUID(int=5),
        "colour": Colour.RED,
        "shape": Shape([Point(1), Point(2, 3)]),
        "kind": "b",
        "maybe": None,
        "pair": (1, "x"),
        "names": {"n"},
    }

    assert round_trip(task, **values) == tuple(values.values())


def test_a_pydantic_model_is_rebuilt_and_checked() -> None:
    def task(ctx: Context, person: Person) -> None: ...

    assert round_trip(task, person=Person(name="Ada", age=36)) == (Person(name="Ada", age=36),)
    assert "argument 'person'" in refusal(task, '{"person": {"name": "Ada", "age": "old"}}')


def test_a_mutable_default_is_the_functions_own() -> None:
    default: list[int] = []

    def task(ctx: Context, items: list[int] = default) -> None: ...

    assert round_trip(task)[0] is default


def test_arguments_without_annotations_are_any_json() -> None:
    def task(ctx, anything):  # type: ignore[no-untyped-def]
        ...

    assert round_trip(task, {"a": [1, None, "x"]}) == ({"a": [1, None, "x"]},)


@given(st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1) | st.text()))
def test_every_strict_json_object_survives(values: dict[str, Any]) -> None:
    def task(ctx: Context, values: dict[str, Any]) -> None: ...

    try:
        came_back = round_trip(task, values=values)
    except PayloadError as error:
        assert "NUL" in str(error) or "surrogate" in str(error)  # noqa: PT017
    else:
        assert came_back == (values,)


def example(ctx: Context, host: str, points: list[Point], depth: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ("{}", "Task 't' is missing the argument 'host'."),
        ('{"host": 5, "points": []}', "Task 't', argument 'host': expected `str`, got `int`."),
        (
            '{"host": "h", "points": [{"x": 1}, {"x": "?"}]}',
            "Task 't', argument 'points[1]' (at 'x'): expected `int`, got `str`.",
        ),
        (
            '{"host": "h", "points": [{}]}',
            "Task 't' is missing the argument 'x' of '$.points[0]'.",
        ),
        (
            '{"host": "h", "points": [], "dpth": 1}',
            "Task 't' has no argument 'dpth'; it takes: 'host', 'points', 'depth'.",
        ),
        ("[]", "Task 't': the payload: expected `object`, got `array`."),
        ("{", "Task 't': the payload is not JSON: Input data was truncated."),
    ],
)
def test_a_bad_payload_is_told_with_task_argument_and_what_was_expected(
    payload: str, said: str
) -> None:
    assert refusal(example, payload) == said


def test_an_unknown_field_inside_an_argument_is_told() -> None:
    def task(ctx: Context, shape: Shape) -> None: ...

    said = refusal(task, '{"shape": {"points": [], "size": 1}}')

    assert said == "Task 't', argument 'shape': unknown field 'size'."


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "NaN is not JSON"),
        (2**63, "64 bits"),
        ("\x00", "NUL"),
        ("\ud800", "surrogate"),
        (b"bytes", "a value of type bytes, which JSON does not have"),
        (Opaque(), "a value of type Opaque, which JSON does not have"),
        ({1: 2}, "a key of type int"),
        ("x" * 2**20, "1,048,576 are kept"),
    ],
)
def test_a_value_that_is_not_strict_json_is_refused_when_encoded(value: object, said: str) -> None:
    def task(ctx: Context, value: Any) -> None: ...

    with pytest.raises(PayloadError, match=r"^Task 't'") as caught:
        codec(task).encode((value,), {})

    assert said in str(caught.value)


def test_calls_that_python_would_refuse_are_refused() -> None:
    def task(ctx: Context, a: int) -> None: ...

    made = codec(task)
    with pytest.raises(PayloadError, match="got the argument 'a' twice"):
        made.encode((1,), {"a": 1})
    with pytest.raises(PayloadError, match="no argument 'b'; it takes: 'a'"):
        made.encode((), {"b": 1})
    with pytest.raises(PayloadError, match="takes 1 positional arguments, got 2"):
        made.encode((1, 2), {})


def test_functions_whose_arguments_have_no_names_are_refused() -> None:
    def nothing() -> None: ...
    def only_keyword(*, ctx: Context) -> None: ...
    def many(ctx: Context, *items: int) -> None: ...
    def named(ctx: Context, **items: int) -> None: ...
    def positional(ctx: Context, a: int, /) -> None: ...

    for function in (nothing, only_keyword):
        with pytest.raises(UsageError, match="its first parameter must be `ctx: Context`"):
            codec(function)
    for function in (many, named):
        with pytest.raises(UsageError, match="write them out one by one"):
            codec(function)
    with pytest.raises(UsageError):
        codec(positional)


def test_annotations_that_cannot_be_resolved_are_refused() -> None:
    def task(ctx: Context, a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="cannot be resolved: name 'Missing' is not defined"):
        codec(task)


def test_a_class_that_json_cannot_rebuild_is_told_when_a_job_is_made() -> None:
    def task(ctx: Context, thing: Opaque) -> None: ...

    assert "a Opaque cannot be rebuilt from JSON" in refusal(task, '{"thing": {}}')

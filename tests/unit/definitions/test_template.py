# SPDX-License-Identifier: Apache-2.0
"""Templates and conditions: what they read, what they write, and errors that quote no value."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from penstock.definitions.template import Condition, Template, TemplateFailed
from penstock.errors import UsageError

SECRET = "a prompt that nobody may read in a log"


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("{{ a }} and {{ b }}", {"a": 1, "b": "x"}, "1 and x"),
        ("{{ p.name }} {{ p['name'] }}", {"p": {"name": "Lamp"}}, "Lamp Lamp"),
        ("{{ p.items }} {{ p.values }}", {"p": {"items": 3, "values": 4}}, "3 4"),
        ("{% for k, v in p.items() %}{{ k }}={{ v }};{% endfor %}", {"p": {"a": 1}}, "a=1;"),
        ("{{ a }}|{{ p }}", {"a": None, "p": {"é": [1, None]}}, '|{"é": [1, null]}'),
        ("{{ p|tojson }} {{ t|tojson }}", {"p": {"a": "<'é'>"}, "t": "x"}, '{"a": "<\'é\'>"} "x"'),
        ("{{ day }} {{ day.year }}", {"day": date(2024, 1, 31)}, "2024-01-31 2024"),
        ("<b>{{ a }}</b>", {"a": "<&>"}, "<b><&></b>"),
        ("{% if a is defined %}{{ a }}{% endif %}", {"a": "x"}, "x"),
        ("{{ a }}\n", {"a": "{{ b }}"}, "{{ b }}\n"),  # a value is no template
        ("{% set n = a + 1 %}{{ n }}", {"a": 1}, "2"),
        ("{% for n in range(3) %}{{ loop.index }}{% endfor %}", {}, "123"),
    ],
)
def test_a_template_writes_a_row(text: str, row: dict[str, Any], expected: str) -> None:
    assert Template(text, "x").render(row) == expected


def test_a_template_names_columns_in_order_and_the_fields_that_it_takes() -> None:
    made = Template(
        "{{ b.x }}{{ a }}{% for one in rows_of %}{{ one.y }}{{ b['z'] }}{% endfor %}{{ c.upper() }}"
        "{% set local = a %}{{ local }}{{ range(3) }}",
        "x",
    )

    assert made.variables == ("b", "a", "rows_of", "c")
    assert made.fields == {"b": ("x", "z")}


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("{{ a }}", {}, "the row has no 'a'"),
        ("{{ p.nmae }}", {"p": {"name": SECRET}}, "'p' has no field 'nmae'"),
        (
            "{{ p[a] }}",
            {"p": {"x": 1}, "a": SECRET},
            "a value that the template asks for is not th",
        ),
        ("{{ a + 1 }}", {"a": SECRET}, r"do not fit the template \(TypeError\)"),
        ("{{ a|int + b }}", {"a": "1", "b": SECRET}, r"do not fit the template \(TypeError\)"),
        ("{{ 1 / a }}", {"a": 0}, r"do not fit the template \(ZeroDivisionError\)"),
        ("{{ a.format_map({}) }}", {"a": SECRET + "{x}"}, "do not fit|is not there"),
        ("{{ p.append(1) }}", {"p": [SECRET]}, r"do not fit the template \(SecurityError\)"),
    ],
)
def test_a_row_that_does_not_fit_is_told_without_its_values(
    text: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(TemplateFailed, match=message) as caught:
        Template(text, "x").render(row)

    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_code_cannot_be_reached_from_a_value() -> None:
    made = Template("{{ (a|attr('__class__')) }}", "x")

    with pytest.raises(TemplateFailed):
        made.render({"a": "x"})


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("{{ stars > 3 }}", {"stars": 4}, True),
        ("stars > 3", {"stars": 3}, False),
        ("{{ tone == 'dry' and stars in [1, 2] }}", {"tone": "dry", "stars": 2}, True),
        ("{{ name }}", {"name": ""}, False),
        ("{{ not p.name }}", {"p": {"name": None}}, True),
    ],
)
def test_a_condition_holds_or_not(text: str, row: dict[str, Any], expected: bool) -> None:
    made = Condition(text, "x")

    assert made.holds(row) is expected
    assert set(made.variables) == set(row)


def test_a_condition_over_what_is_not_there_fails() -> None:
    with pytest.raises(TemplateFailed, match="the row has no 'stars'"):
        Condition("{{ stars > 3 }}", "x").holds({})
    with pytest.raises(TemplateFailed, match="'p' has no field 'x'"):
        Condition("{{ p.x }}", "x").holds({"p": {}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n{% if %}", r"where: the template cannot be read \(line 2\): "),
        ("{{ a is odder }}", "No test named 'odder'"),
        ("{{ a|nosuch }}", r"cannot be read \(line 1\): No filter named 'nosuch'\.$"),
        ("{% extends 'x' %}", "cannot take in another file"),
        ("{% import 'x' as y %}", "cannot take in another file"),
        ("{{ a._private }}", "cannot read '_private'"),
    ],
)
def test_a_template_that_could_never_be_rendered_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Template(text, "where")

# SPDX-License-Identifier: Apache-2.0
"""Samplers as declared: reads what an author said about a sampled column, or refuses it."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, TypedDict

from penstock.errors import UsageError
from penstock.model.table import (
    Choices,
    ChoicesBy,
    Constant,
    Dates,
    Ids,
    Integers,
    Normal,
    Sampler,
    Uniform,
)

DECIMALS_MAX = 15
WHOLE_MAX = 2**63 - 1  # what a column of whole numbers holds
ID_FIELDS = ("row", "uuid", "hex")

_KINDS = ("choices", "uniform", "integers", "normal", "dates", "ids")
_FITS = {  # which kinds an extra option is for
    "weights": ("choices",),
    "by": ("choices",),
    "decimals": ("uniform", "normal"),
    "within": ("normal",),
}
_SCALARS = (str, bool, int, float)


class SamplerOptions(TypedDict, total=False):
    """What a sampled column is drawn from: one of the first six, and what goes with it."""

    choices: Iterable[Any] | Mapping[Any, Iterable[Any]]
    uniform: tuple[float, float]
    integers: tuple[int, int]
    normal: tuple[float, float]
    dates: tuple[str | date, str | date]
    ids: str
    weights: Iterable[float]
    by: str
    decimals: int
    within: tuple[float, float]


def read_sampler(what: str, options: Mapping[str, Any]) -> Sampler:
    """The sampler that was said; UsageError says what is wrong."""
    said = [kind for kind in _KINDS if kind in options]
    for name in options:
        if name not in _KINDS and name not in _FITS:
            raise UsageError(
                f"{what}: {name!r} is not an option of a sample; the options are "
                f"{', '.join((*_KINDS, *_FITS))}."
            )
    if len(said) != 1:
        got = " and ".join(f"{kind}=" for kind in said) or "none of them"
        raise UsageError(f"{what} is drawn from one of {', '.join(_KINDS)}; got {got}.")
    kind = said[0]
    for name, kinds in _FITS.items():
        if name in options and kind not in kinds:
            raise UsageError(f"{what}: {name}= does not go with {kind}=; leave it out.")
    return _READERS[kind](what, options)


def read_otherwise(what: str, sampler: Sampler, otherwise: object) -> Sampler:
    """What is drawn where the condition does not hold: of the same kind, or one value."""
    if otherwise is None or isinstance(otherwise, _SCALARS):
        _check_values(what, "otherwise", [otherwise])
        return Constant(otherwise)
    kind = {Choices: "choices", ChoicesBy: "choices", Uniform: "uniform", Integers: "integers"}
    name = {**kind, Normal: "normal", Dates: "dates", Ids: "ids"}.get(type(sampler), "choices")
    return _READERS[name](f"{what}, otherwise", {name: otherwise})


def _choices(what: str, options: Mapping[str, Any]) -> Sampler:
    given = options["choices"]
    if "by" in options:
        return _choices_by(what, given, options)
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"{what}: choices= is a list such as ['dry', 'warm'], got {given!r:.100}.")
    values = list(given)
    _check_values(what, "choices", values)
    return Choices(tuple(values), _weights(what, options.get("weights"), len(values)))


def _choices_by(what: str, given: object, options: Mapping[str, Any]) -> ChoicesBy:
    column = options["by"]
    if not isinstance(column, str):
        raise UsageError(f"{what}: by= is the name of a column, got {column!r:.100}.")
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{what}: with by={column!r} choices= is a mapping from its values to lists such as "
            f"{{'books': ['novel', 'essay']}}, got {given!r:.100}."
        )
    if "weights" in options:
        raise UsageError(f"{what}: weights= does not go with by=; leave it out.")
    groups = []
    for value, choices in given.items():
        if isinstance(choices, str) or not isinstance(choices, Iterable):
            raise UsageError(f"{what}: the choices of {value!r:.100} are a list, got {choices!r}.")
        groups.append((value, tuple(choices)))
        _check_values(what, f"choices of {value!r:.50}", list(groups[-1][1]))
    _check_values(what, "choices", [one for _, choices in groups for one in choices])
    return ChoicesBy(column, tuple(groups))


def _check_values(what: str, name: str, values: list[Any]) -> None:
    if not values:
        raise UsageError(f"{what}: {name} is empty; give it one value at least.")
    kinds = set()
    for value in values:
        if value is not None and type(value) not in _SCALARS:
            raise UsageError(
                f"{what}: {name} has {value!r:.100}; values are texts, numbers, True, False or "
                "None."
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{what}: {name} has {value!r}, which JSON does not have.")
        if type(value) is int and not -WHOLE_MAX - 1 <= value <= WHOLE_MAX:
            raise UsageError(f"{what}: {name} has {value!r:.50}, which 64 bits do not hold.")
        if value is not None:
            kinds.add({int: "number", float: "number"}.get(type(value), type(value).__name__))
    if len(kinds) > 1:
        raise UsageError(
            f"{what}: {name} has values of several kinds ({', '.join(sorted(kinds))}), and a "
            "column has one."
        )


def _weights(what: str, weights: object, count: int) -> tuple[float, ...] | None:
    if weights is None:
        return None
    if isinstance(weights, str) or not isinstance(weights, Iterable):
        raise UsageError(f"{what}: weights= is a list of numbers, got {weights!r:.100}.")
    found = list(weights)
    for weight in found:
        if not _is_number(weight) or weight < 0:
            raise UsageError(f"{what}: a weight is a number from 0 on, got {weight!r:.100}.")
    if len(found) != count:
        raise UsageError(f"{what}: {count} choices need {count} weights, got {len(found)}.")
    if not 0 < sum(found) < math.inf:
        raise UsageError(f"{what}: the weights must have a sum above 0.")
    return tuple(float(weight) for weight in found)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _pair(what: str, name: str, given: object, example: str) -> tuple[Any, Any]:
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    raise UsageError(f"{what}: {name}= is a pair such as {example}, got {given!r:.100}.")


def _numbers(what: str, name: str, given: object, example: str) -> tuple[float, float]:
    first, second = _pair(what, name, given, example)
    if not _is_number(first) or not _is_number(second):
        raise UsageError(f"{what}: {name}= is a pair of numbers such as {example}, got {given!r}.")
    return first, second


def _uniform(what: str, options: Mapping[str, Any]) -> Uniform:
    low, high = _numbers(what, "uniform", options["uniform"], "(0, 1)")
    if not low < high or not math.isfinite(float(high) - float(low)):
        raise UsageError(f"{what}: uniform= goes from low to high, got {options['uniform']!r}.")
    return Uniform(float(low), float(high), _decimals(what, options))


def _integers(what: str, options: Mapping[str, Any]) -> Integers:
    low, high = _pair(what, "integers", options["integers"], "(1, 6)")
    if type(low) is not int or type(high) is not int:
        raise UsageError(
            f"{what}: integers= is a pair of whole numbers such as (1, 6), got "
            f"{options['integers']!r:.100}."
        )
    if not -WHOLE_MAX - 1 <= low <= high <= WHOLE_MAX:
        raise UsageError(
            f"{what}: integers= goes from low to high within 64 bits, got "
            f"{options['integers']!r:.100}."
        )
    return Integers(low, high)


def _normal(what: str, options: Mapping[str, Any]) -> Normal:
    mean, deviation = _numbers(what, "normal", options["normal"], "(50, 10)")
    if not deviation > 0:
        raise UsageError(f"{what}: the deviation of normal= is above 0, got {deviation!r}.")
    low = high = None
    if "within" in options:
        low, high = _numbers(what, "within", options["within"], "(0, 100)")
        if not low < high:
            raise UsageError(f"{what}: within= goes from low to high, got {options['within']!r}.")
        if not low - 6 * deviation < mean < high + 6 * deviation:
            raise UsageError(
                f"{what}: within={options['within']!r} is more than 6 deviations from the mean; "
                "choose another mean or another range."
            )
    return Normal(float(mean), float(deviation), low, high, _decimals(what, options))


def _decimals(what: str, options: Mapping[str, Any]) -> int | None:
    decimals = options.get("decimals")
    if decimals is not None and (type(decimals) is not int or not 0 <= decimals <= DECIMALS_MAX):
        raise UsageError(
            f"{what}: decimals= is a whole number from 0 to {DECIMALS_MAX}, got {decimals!r:.100}."
        )
    return decimals


def _dates(what: str, options: Mapping[str, Any]) -> Dates:
    given = options["dates"]
    example = "('2024-01-01', '2024-12-31')"
    start, end = (_date(what, one) for one in _pair(what, "dates", given, example))
    if type(start) is not type(end):
        raise UsageError(f"{what}: dates= is two days or two times, got {given!r:.150}.")
    if isinstance(start, datetime) and isinstance(end, datetime):
        if (start.tzinfo is None) is not (end.tzinfo is None):
            raise UsageError(f"{what}: one end of dates= has a time zone, the other has none.")
        fits = (end - start).total_seconds() >= 1
    else:
        fits = start <= end
    if not fits:
        raise UsageError(f"{what}: dates= goes from the first to the last, got {given!r:.150}.")
    return Dates(start, end)


def _date(what: str, given: object) -> date | datetime:
    if isinstance(given, date):
        return given
    try:
        text = given if isinstance(given, str) else ""
        return date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{what}: dates= takes days such as '2024-01-31' or times such as "
            f"'2024-01-31T08:00:00', got {given!r:.100}."
        ) from None


def _ids(what: str, options: Mapping[str, Any]) -> Ids:
    form = options["ids"]
    example = "'order-{row:05}' or '{uuid}'"
    if not isinstance(form, str):
        raise UsageError(f"{what}: ids= is a text such as {example}, got {form!r:.100}.")
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(form) if field is not None]
        form.format(row=0, uuid="", hex="")
    except (ValueError, LookupError, AttributeError):
        raise UsageError(f"{what}: ids= is a text such as {example}, got {form!r:.100}.") from None
    if not fields or not set(fields) <= set(ID_FIELDS):
        raise UsageError(
            f"{what}: ids= holds {{row}}, {{uuid}} or {{hex}}, so that no two rows are called the "
            f"same, got {form!r:.100}."
        )
    return Ids(form)


_READERS = {
    "choices": _choices,
    "uniform": _uniform,
    "integers": _integers,
    "normal": _normal,
    "dates": _dates,
    "ids": _ids,
}

# SPDX-License-Identifier: Apache-2.0
"""Which settings are there, and which of their names does a user give?

A setting is named by its path: `("providers", "openai", "models", "gpt-5", "rpm")`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from penstock.config.settings import (
    BudgetSettings,
    ModelSettings,
    PriceSettings,
    ProviderSettings,
    ScopeBudget,
    Settings,
    SpanBudget,
)

Path = tuple[str, ...]

#: Tables whose tables have names that a user gives.
NAMED = ("limits", "partitions", "providers")
MODELS = "models"  # of a provider, by name
PRICES = "usd_per_million_tokens"  # of a model, a table
BUDGET = "budget"
DAY = "day"  # of a budget, a table
#: What a budget may be for: `[budget.provider.NAME]`.
SCOPES = tuple(name for name in BudgetSettings.model_fields if name not in ScopeBudget.model_fields)
_SPAN = tuple(SpanBudget.model_fields)


def dotted(path: Iterable[str]) -> str:
    """Write a path as one name; a part with a dot or a space in it is quoted, as in TOML."""
    return ".".join(part if re.fullmatch(r"[^\s.\"']+", part) else f'"{part}"' for part in path)


def _tables() -> dict[str, type[BaseModel]]:
    return {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _fields() -> Iterator[Path]:
    tables = _tables()
    for name in Settings.model_fields:
        if name == BUDGET:
            yield from _budget_fields((BUDGET,))
        elif name in tables:
            yield from ((name, field) for field in tables[name].model_fields)
        elif name not in NAMED:
            yield (name,)


def _budget_fields(table: Path) -> Iterator[Path]:
    """What can be set in a table of a budget: for a run, and for a day."""
    yield from ((*table, field) for field in _SPAN)
    yield from ((*table, DAY, field) for field in _SPAN)


TABLES = frozenset(_tables())
FIELDS = tuple(_fields())


def is_table(path: Path) -> bool:
    """Does a path lead to a table?"""
    match path:
        case ("providers",) | ("providers", _) | ("limits",) | ("limits", _) | ("partitions",):
            return True
        case ("providers", _, table) | ("providers", _, table, _):
            return table == MODELS
        case ("providers", _, table, _, below):
            return (table, below) == (MODELS, PRICES)
        case (first, table) if first == BUDGET:
            return table == DAY or table in SCOPES
        case (first, scope, _) if first == BUDGET:
            return scope in SCOPES
        case (first, scope, _, table) if first == BUDGET:
            return scope in SCOPES and table == DAY
        case _:
            return path in {(name,) for name in TABLES}


def is_field(path: Path) -> bool:
    """Does a path lead to a value?"""
    if path in FIELDS:
        return True
    if path[0] == "limits":
        return len(path) == 3
    if path[0] == "partitions":
        return len(path) == 2
    return path[-1] in fields_of(path[:-1])


def fields_of(table: Path) -> list[str]:
    """What can be set in a table whose name a user gave."""
    match table:
        case ("providers", _):
            return [name for name in ProviderSettings.model_fields if name != MODELS]
        case ("providers", _, below, _) if below == MODELS:
            return [name for name in ModelSettings.model_fields if name != PRICES]
        case ("providers", _, _, _, below) if below == PRICES:
            return list(PriceSettings.model_fields)
        case (first,) | (first, "day") if first == BUDGET:
            return list(_SPAN)
        case (first, scope, _) if first == BUDGET and scope in SCOPES:
            return list(_SPAN)
        case (first, scope, _, day) if first == BUDGET and scope in SCOPES and day == DAY:
            return list(_SPAN)
    return []


def paths_of(settings: Settings) -> Iterator[Path]:
    """Every setting that these settings have."""
    yield from FIELDS
    for dimension, names in settings.limits.items():
        yield from (("limits", dimension, name) for name in names)
    yield from (("partitions", name) for name in settings.partitions)
    yield from _provider_paths(settings)
    for scope in SCOPES:
        for name in getattr(settings.budget, scope):
            yield from _budget_fields((BUDGET, scope, name))
    yield from ((name,) for name in NAMED if not getattr(settings, name))


def _provider_paths(settings: Settings) -> Iterator[Path]:
    for name, provider in settings.providers.items():
        table: Path = ("providers", name)
        yield from ((*table, field) for field in fields_of(table))
        for model, said in provider.models.items():
            below = (*table, MODELS, model)
            yield from ((*below, field) for field in fields_of(below))
            prices = (*below, PRICES)
            if said.usd_per_million_tokens is None:
                yield prices
            else:
                yield from ((*prices, field) for field in fields_of(prices))


def is_below_given(path: Path) -> bool:
    """Does it lie in a table that a user named, or in one of the budgets?"""
    return len(path) > 1 and (path[0] == BUDGET or (len(path) > 2 and path[0] == "providers"))


def nearest_below_given(path: Path) -> str:
    """What a name in a table that a user named may have been meant to be."""
    table = path[:-1]
    while table and not fields_of(table):
        table = table[:-1]
    table = table or path[:-1]
    tables = [name for name in (MODELS, PRICES, DAY, *SCOPES) if is_table((*table, name))]
    known = [*fields_of(table), *tables]
    if not known:
        return f"write [{dotted((*table, 'NAME'))}]"
    near = difflib.get_close_matches(path[-1].lower(), known, 1)
    if near:
        return f"the nearest known name is {dotted((*table, near[0]))}"
    return f"known names in {dotted(table)} are {', '.join(known)}"

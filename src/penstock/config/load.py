# SPDX-License-Identifier: Apache-2.0
"""Loads settings from flags, environment, files and code, in this order of precedence."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.config.settings import (
    BEAT_TOO_SLOW,
    BudgetSettings,
    ModelSettings,
    PriceSettings,
    ProviderSettings,
    ScopeBudget,
    Settings,
    SpanBudget,
)
from penstock.errors import ConfigError, InternalError
from penstock.redaction.secrets import redacted

SettingPath = tuple[str, ...]

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


def _fields() -> Iterator[SettingPath]:
    tables = _tables()
    for name in Settings.model_fields:
        if name == BUDGET:
            yield from _budget_fields((BUDGET,))
        elif name in tables:
            yield from ((name, field) for field in tables[name].model_fields)
        elif name not in NAMED:
            yield (name,)


def _budget_fields(table: SettingPath) -> Iterator[SettingPath]:
    """What can be set in a table of a budget: for a run, and for a day."""
    yield from ((*table, field) for field in _SPAN)
    yield from ((*table, DAY, field) for field in _SPAN)


TABLES = frozenset(_tables())
FIELDS = tuple(_fields())


def is_table(path: SettingPath) -> bool:
    """Whether a path leads to a table."""
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


def is_field(path: SettingPath) -> bool:
    """Whether a path leads to a value."""
    if path in FIELDS:
        return True
    if path[0] == "limits":
        return len(path) == 3
    if path[0] == "partitions":
        return len(path) == 2
    return path[-1] in fields_of(path[:-1])


def fields_of(table: SettingPath) -> list[str]:
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


def paths_of(settings: Settings) -> Iterator[SettingPath]:
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


def _provider_paths(settings: Settings) -> Iterator[SettingPath]:
    for name, provider in settings.providers.items():
        table: SettingPath = ("providers", name)
        yield from ((*table, field) for field in fields_of(table))
        for model, said in provider.models.items():
            below = (*table, MODELS, model)
            yield from ((*below, field) for field in fields_of(below))
            prices = (*below, PRICES)
            if said.usd_per_million_tokens is None:
                yield prices
            else:
                yield from ((*prices, field) for field in fields_of(prices))


def is_below_given(path: SettingPath) -> bool:
    """Whether it lies in a table that a user named, or in one of the budgets."""
    return len(path) > 1 and (path[0] == BUDGET or (len(path) > 2 and path[0] == "providers"))


def nearest_below_given(path: SettingPath) -> str:
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


PENSTOCK_TOML = "penstock.toml"
PYPROJECT_TOML = "pyproject.toml"
CODE = "the app's code"
DEFAULT = "default"

VARIABLE_PREFIX = "PENSTOCK_"
#: Variables that tests and tools read; they are no settings.
OTHER_VARIABLES = frozenset({"PENSTOCK_PG_BIN"})
OTHER_VARIABLE_PREFIX = "PENSTOCK_TEST_"

VALUE_LENGTH_MAX = 80  # characters of a value in a message

_Path = tuple[str, ...]

#: Flags that set one field. `--limit DIMENSION=NAME:N` may be given several times.
FLAGS: dict[str, _Path] = {
    "--app": ("app",),
    "--store": ("store",),
    "--slots": ("runtime", "async_slots"),
    "--max-per-host": ("limits", "host", "*"),
}
LIMIT_FLAG = "--limit"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and for every field where its value came from."""

    settings: Settings
    sources: dict[str, str]  # dotted name → "default", "penstock.toml", "PENSTOCK_STORE", "--slots"


@dataclass(frozen=True, slots=True)
class _Said:
    value: object
    source: str


_Layer = dict[_Path, _Said]


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    folder: Path,
    code: Mapping[str, object],
) -> Loaded:
    """Merge what everybody says; the earlier of flag, environment, file, code and default wins.

    Args:
        flags: values by flag (`--slots`); None means that it was not given.
        environ: the environment.
        folder: where penstock.toml and pyproject.toml are looked for.
        code: what the app says, in tables as in a file; None means that it says nothing.

    Raises:
        ConfigError: one sentence about the first mistake.
    """
    said: _Layer = {}
    for layer in (
        _flatten(code, CODE),
        _flatten(_pyproject_table(folder), PYPROJECT_TOML),
        _flatten(_read_toml(folder / PENSTOCK_TOML), PENSTOCK_TOML),
        _from_environment(environ),
        _from_flags(flags),
    ):
        said.update(layer)
    try:
        settings = Settings.model_validate(_nest(said))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(_sentence(first, said)) from None
    return Loaded(settings, _sources(settings, said))


def overlaid(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Tables over tables: what both say, the upper one says."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            both[name] = overlaid(under, value)
        else:
            both[name] = value
    return both


_VARIABLES = {VARIABLE_PREFIX + "__".join(path).upper(): path for path in FIELDS}

# Reading each source


def _flatten(table: Mapping[str, object], source: str, above: _Path = ()) -> _Layer:
    layer: _Layer = {}
    for name, value in table.items():
        path = (*above, str(name))
        if value is None:
            continue
        if is_table(path):
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{dotted(path)} must be a table, got {_show(value)} (from {source})."
                )
            layer |= _flatten(value, source, path)
        elif is_field(path):
            layer[path] = _Said(value, source)
        else:
            raise ConfigError(_unknown_name(path, value, source))
    return layer


def _pyproject_table(folder: Path) -> Mapping[str, object]:
    tool = _read_toml(folder / PYPROJECT_TOML).get("tool", {})
    table = tool.get("penstock", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"tool.penstock must be a table, got {_show(table)} (in pyproject.toml).")
    return table


def _read_toml(path: Path) -> Mapping[str, object]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name}, line {line}, is not UTF-8; save it as UTF-8.") from None
    except RecursionError:
        raise ConfigError(f"{path.name} is nested too deeply; no setting is.") from None
    except ValueError as error:  # TOMLDecodeError, and numbers that Python refuses to read
        raise ConfigError(_syntax_sentence(path.name, content, str(error))) from None


def _syntax_sentence(file: str, content: bytes, problem: str) -> str:
    found = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", problem)
    if found:
        place = f"line {found[1]}, column {found[2]}"
        problem = problem[: found.start()]
    else:
        place = f"line {len(content.splitlines()) or 1}"
        problem = problem.replace(" (at end of document)", " at the end of the document")
    return f"{file}, {place}, is not valid TOML: {problem.rstrip('.')}."


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for name in sorted(environ):
        if not name.startswith(VARIABLE_PREFIX):
            continue
        if name in OTHER_VARIABLES or name.startswith(OTHER_VARIABLE_PREFIX):
            continue
        if name not in _VARIABLES:
            raise ConfigError(_unknown_variable(name))
        layer[_VARIABLES[name]] = _Said(environ[name], name)
    return layer


def _from_flags(flags: Mapping[str, object]) -> _Layer:
    layer: _Layer = {}
    for flag, value in flags.items():
        if value is None:
            continue
        if flag == LIMIT_FLAG:
            for text in [value] if isinstance(value, str) else _texts(value):
                layer |= _limit_from_flag(text)
        elif flag in FLAGS:
            layer[FLAGS[flag]] = _Said(value, flag)
        else:
            raise InternalError(f"No setting belongs to the flag {flag!r}.")
    return layer


def _texts(value: object) -> list[str]:
    if not isinstance(value, Iterable):
        raise InternalError(f"{LIMIT_FLAG} needs texts, got {value!r}.")
    return [str(text) for text in value]


def _limit_from_flag(text: str) -> _Layer:
    dimension, _, rest = text.partition("=")
    name, _, count = rest.rpartition(":")  # the last colon: a name may be host:port
    if not (dimension and name and count):
        raise ConfigError(
            f"{LIMIT_FLAG} must be DIMENSION=NAME:N, such as resolver=unpaywall:2, "
            f"got {_show(text)}."
        )
    return {("limits", dimension, name): _Said(count, LIMIT_FLAG)}


def _nest(said: _Layer) -> dict[str, object]:
    tree: dict[str, object] = {}
    for path, entry in said.items():
        table = tree
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InternalError(f"{dotted(path)} lies inside a value.")
            table = inner
        table[path[-1]] = entry.value
    return tree


def _sources(settings: Settings, said: _Layer) -> dict[str, str]:
    return {
        dotted(path): said[path].source if path in said else DEFAULT for path in paths_of(settings)
    }


# Messages about mistakes


def _sentence(problem: ErrorDetails, said: _Layer) -> str:
    context = problem.get("ctx", {})
    if problem["type"] == BEAT_TOO_SLOW:
        beat, ttl = ("runtime", "beat_seconds"), ("runtime", "lease_ttl_seconds")
        lease, every = context["lease_ttl_seconds"], context["beat_seconds"]
        return (
            f"{dotted(ttl)} is {lease:g} {_origin(ttl, said)} and {dotted(beat)} is {every:g} "
            f"{_origin(beat, said)}, but two beats must fit into a lease: raise {dotted(ttl)} "
            f"above {2 * every:g}, or set {dotted(beat)} below {lease / 2:g}."
        )
    path = tuple(str(part) for part in problem["loc"] if part != "[key]")
    rule = _rule(problem["type"], context, problem["msg"])
    return f"{dotted(path)} {rule}, got {_show(problem['input'])} {_origin(path, said)}."


def _rule(kind: str, context: Mapping[str, object], message: str) -> str:
    match kind:
        case "greater_than":
            return f"must be > {context['gt']:.0f}"
        case "greater_than_equal":
            return f"must be >= {context['ge']:.12g}"
        case "less_than_equal":
            return f"must be <= {context['le']:.0f}"
        case "less_than":
            return f"must be < {context['lt']:.0f}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "value_error":
            return str(context["error"])
        case "string_type":
            return "must be text"
        case "missing":
            return "must be said as well"
        case "string_too_short":
            return "must not be empty"
        case _:
            return f"is refused ({message[:1].lower()}{message[1:]})"


def _origin(path: _Path, said: _Layer) -> str:
    if path in said:
        return f"(from {said[path].source})"
    # A key of a table is to blame: its source is that of what lies below it.
    below = [entry.source for here, entry in said.items() if here[: len(path)] == path]
    return f"(from {below[-1]})" if below else "(the default)"


def _unknown_name(path: _Path, value: object, source: str) -> str:
    name = dotted(path)
    shown = "a hidden value" if is_secret(name) else _show(value)
    if is_below_given(path):
        near = nearest_below_given(path)
        return f"{name} is not a setting, got {shown} (from {source}); {near}."
    known = [dotted(field) for field in FIELDS] + sorted({*TABLES, *NAMED})
    last_parts = {field.rpartition(".")[2]: field for field in known}
    close = difflib.get_close_matches
    beside = [field[-1] for field in FIELDS if len(path) > 1 and field[:-1] == path[:-1]]
    if path[-1] in last_parts:  # the right name in the wrong table
        nearest = last_parts[path[-1]]
    elif beside and (found := close(path[-1], beside, 1)):
        nearest = dotted((*path[:-1], found[0]))
    elif not beside and (found := close(name, known, 1)):
        nearest = found[0]
    else:
        here = [dotted(field) for field in FIELDS if len(path) > 1 and field[0] == path[0]]
        return (
            f"{name} is not a setting, got {shown} (from {source}); "
            f"known names are {', '.join(here or known)}."
        )
    return (
        f"{name} is not a setting, got {shown} (from {source}); "
        f"the nearest known name is {nearest}."
    )


def _unknown_variable(name: str) -> str:
    # Its value is not shown: nobody knows what it is, and it may be a secret.
    if name.startswith(f"{VARIABLE_PREFIX}LIMITS"):
        return (
            f"The variable {name} cannot be used: limits are set by [limits.…] in {PENSTOCK_TOML} "
            f"or by {LIMIT_FLAG}."
        )
    if name.startswith(f"{VARIABLE_PREFIX}PARTITIONS"):
        return (
            f"The variable {name} cannot be used: partitions are set by [partitions] in "
            f"{PENSTOCK_TOML}."
        )
    if name.startswith(f"{VARIABLE_PREFIX}PROVIDERS"):
        return (
            f"The variable {name} cannot be used: providers are set by [providers.…] in "
            f"{PENSTOCK_TOML}."
        )
    if name.startswith(f"{VARIABLE_PREFIX}BUDGET__") and name.count("__") > 2:
        return (
            f"The variable {name} cannot be used: budgets of single names are set by [budget.…] in "
            f"{PENSTOCK_TOML}."
        )
    nearest = difflib.get_close_matches(name, _VARIABLES, 1) or difflib.get_close_matches(
        name.upper(), _VARIABLES, 1, 0.0
    )
    return f"The variable {name} is not a setting; the nearest known name is {nearest[0]}."


_SECRET_NAME = re.compile(r"token|secret|passw|credential|key", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def _show(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    text = redacted(repr(value))
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[:VALUE_LENGTH_MAX]}…"

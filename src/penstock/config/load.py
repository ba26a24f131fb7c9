# SPDX-License-Identifier: Apache-2.0
"""Loads settings from flags, environment, files and code, in this order of precedence."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.config.settings import BEAT_TOO_SLOW, Settings
from penstock.config.trust import is_trusted, refuse_untrusted
from penstock.errors import ConfigError, InternalError
from penstock.redaction.secrets import redacted
from penstock.sentences import command

SettingPath = tuple[str, ...]

BUDGET = "budget"
AMOUNTS = ("usd", "tokens")  # of a budget
PENSTOCK_TOML = "penstock.toml"
PYPROJECT_TOML = "pyproject.toml"
CODE = "the app's code"
DEFAULT = "default"
VARIABLE_PREFIX = "PENSTOCK_"
#: Variables that tests and tools read; they are no settings.
OTHER_VARIABLES = frozenset({"PENSTOCK_PG_BIN"})
OTHER_VARIABLE_PREFIX = "PENSTOCK_TEST_"
MISTAKES_SHOWN = 20  # in one message
VALUE_LENGTH_MAX = 80  # characters of a value in a message
#: Flags that set one field. `--limit DIMENSION=NAME:N` may be given several times.
FLAGS: dict[str, SettingPath] = {
    "--app": ("app",),
    "--store": ("store",),
    "--slots": ("runtime", "slots"),
    "--threads": ("runtime", "thread_slots"),
    "--process-slots": ("runtime", "process_slots"),
    "--out": ("datasets", "root"),
    "--limit-usd": ("budget", "run", "usd"),
    "--max-per-host": ("limits", "host", "*"),
}
LIMIT_FLAG = "--limit"

_RULES = {
    "greater_than": "must be > {gt:.0f}",
    "greater_than_equal": "must be >= {ge:.12g}",
    "less_than_equal": "must be <= {le:.0f}",
    "less_than": "must be < {lt:.0f}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
    "string_type": "must be text",
    "missing": "must be set as well",
    "string_too_short": "must not be empty",
}
_ONLY_IN_FILES = {
    "LIMITS": f"limits are set by [limits.…] in {PENSTOCK_TOML} or by {LIMIT_FLAG}",
    "PARTITIONS": f"partitions are set by [partitions] in {PENSTOCK_TOML}",
    "PROVIDERS": f"providers are set by [providers.…] in {PENSTOCK_TOML}",
    "BUDGET__": f"budgets of single names are set by [budget.…] in {PENSTOCK_TOML}",
}
#: What older tools call a setting.
_OTHER_NAMES: dict[str, SettingPath] = {
    "concurrency": ("runtime", "slots"),
    "max_workers": ("runtime", "thread_slots"),
}
_PROVIDER_NAMES = {  # what others call a setting of a provider, or of a model of one
    "concurrency": "max_parallel",
    "max_concurrency": "max_parallel",
    "requests_per_minute": "rpm",
    "requests_per_second": "rpm, a minute's worth",
    "rps": "rpm, a minute's worth",
    "tokens_per_minute": "tpm",
    "url": "base_url",
}
_SECRET_NAME = re.compile(r"token|secret|passw|credential|key", re.IGNORECASE)


def dotted(path: Iterable[str]) -> str:
    """Write a path as one name; a part with a dot or a space in it is quoted, as in TOML."""
    return ".".join(part if re.fullmatch(r"[^\s.\"']+", part) else f'"{part}"' for part in path)


def _plain_type(annotation: Any) -> Any:  # noqa: ANN401 (whatever a model is annotated with)
    """A type without its validators and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _plain_type(next(one for one in get_args(annotation) if one is not NoneType))
    return annotation


def _is_model(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@lru_cache(256)
def _type_at(path: SettingPath) -> Any:  # noqa: ANN401
    """The type of what a path leads to: a model or a `dict[...]` for a table; None: nowhere."""
    kind: Any = Settings
    for name in path:
        if _is_model(kind):
            field = kind.model_fields.get(name)
            kind = None if field is None else _plain_type(field.annotation)
        else:
            kind = _plain_type(get_args(kind)[1]) if get_origin(kind) is dict else None
    return kind


def is_table(path: SettingPath) -> bool:
    """Whether a path leads to a table."""
    kind = _type_at(path)
    return _is_model(kind) or get_origin(kind) is dict


def is_field(path: SettingPath) -> bool:
    """Whether a path leads to a value."""
    return _type_at(path) is not None and not is_table(path)


def _names_in(table: SettingPath) -> list[str]:
    """What can be set in a table, tables in it last; nothing where users give the names."""
    kind = _type_at(table)
    names = list(kind.model_fields) if _is_model(kind) else []
    return sorted(names, key=lambda name: is_table((*table, name)))


def _fields(table: SettingPath = ()) -> Iterator[SettingPath]:
    """Every setting that is not in a table whose name a user gives."""
    for name in _type_at(table).model_fields:
        path = (*table, name)
        if is_field(path):
            yield path
        elif _is_model(_type_at(path)):
            yield from _fields(path)


FIELDS = tuple(_fields())
TABLES = tuple(sorted(name for name in Settings.model_fields if is_table((name,))))


_NESTED = (BaseModel, dict)


def walk(
    settings: BaseModel | dict[str, object], above: SettingPath = ()
) -> Iterator[tuple[SettingPath, object]]:
    """Every value of some settings with its path, in the order of the model."""
    for name, value in settings.items() if isinstance(settings, dict) else iter(settings):
        if isinstance(value, _NESTED):
            yield from walk(value, (*above, name))
        else:
            yield (*above, name), value


def _nearest_in_named_table(path: SettingPath, value: object) -> str:
    """What a name in a table that a user named may have been meant to be."""
    table = path[:-1]
    while not _names_in(table):
        table = table[:-1]
    known = _names_in(table)
    if path[0] == "providers" and path[-1] in _PROVIDER_NAMES:
        return f"the nearest known name is {dotted(table)}.{_PROVIDER_NAMES[path[-1]]}"
    near = difflib.get_close_matches(path[-1].lower(), known, 1)
    if near:
        return f"the nearest known name is {dotted((*table, near[0]))}"
    if isinstance(value, Mapping) and path[0] == "providers" and path[2] == "models":
        whole = dotted((*path[:3], _joined(path[3:], value, known)))
        return f"a name with dots is written in quotes: {whole}"
    return f"known names in {dotted(table)} are {', '.join(known)}"


def _joined(pieces: SettingPath, value: Mapping[str, object], known: Collection[str]) -> str:
    """The name whose dots have made tables of it: what lies below is a piece, if it is no name."""
    (only, below), *others = [*value.items()] or [("", None)]
    if isinstance(below, Mapping) and only not in known and not others:
        return _joined((*pieces, only), below, known)
    return ".".join(pieces)


def nearest_known(name: str, known: Collection[str], definition: str = "") -> str:
    """A clause about an unknown name: the nearest one that the app has, or all of them.

    Args:
        definition: the code that would define one, if the app has none.
    """
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"the nearest known one is {near[0]!r}"
    if known:
        return f"known are {', '.join(map(repr, sorted(known)))}"
    return f"it has none: write {definition}" if definition else "it has none"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and for every field where its value came from."""

    settings: Settings
    sources: dict[str, str]  # dotted name → "default", "penstock.toml", "PENSTOCK_STORE", "--slots"


@dataclass(frozen=True, slots=True)
class _Said:
    value: object
    source: str


_Layer = dict[SettingPath, _Said]


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    folder: Path,
    code: Mapping[str, object],
) -> LoadedSettings:
    """Merge what everybody says; the earlier of flag, environment, file, code and default wins.

    Args:
        flags: values by flag (`--slots`); None means that it was not given.
        environ: the environment.
        folder: where penstock.toml and pyproject.toml are looked for.
        code: what the app says, in tables as in a file; None means that it says nothing.

    Raises:
        AppNotFound: another user may have written a file, and the app that was named is elsewhere.
        ConfigError: a sentence about the mistake, or a line for each of several.
    """
    named = flags.get("--app") or environ.get(f"{VARIABLE_PREFIX}APP")
    found = [*_TABLES] if is_trusted(folder, named) else refuse_untrusted(folder, _TABLES)
    said: _Layer = {}
    mistakes: list[str] = []
    for layer in (
        _flatten(code, CODE, mistakes),
        *(_flatten(_TABLES[name](folder / name), name, mistakes) for name in found),
        _from_environment(environ, mistakes),
        _from_flags(flags),
    ):
        said.update(layer)
    settings = None
    try:
        settings = Settings.model_validate(_nest(said))
    except ValidationError as error:
        mistakes += _refusals(error.errors(include_url=False), said)
    if settings is None or mistakes:
        raise ConfigError(_together(mistakes))
    return LoadedSettings(settings, _sources(settings, said))


def merge_tables(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Tables over tables: what both say, the upper one says."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            both[name] = merge_tables(under, value)
        else:
            both[name] = value
    return both


_VARIABLES = {VARIABLE_PREFIX + "__".join(path).upper(): path for path in FIELDS}

# Reading each source


def _flatten(
    table: Mapping[str, object], source: str, mistakes: list[str], above: SettingPath = ()
) -> _Layer:
    """What a table says; sentences about what is none of ours go to the mistakes."""
    layer: _Layer = {}
    for name, value in table.items():
        path = (*above, str(name))
        if value is None:
            continue
        if is_table(path):
            if isinstance(value, Mapping):
                layer |= _flatten(value, source, mistakes, path)
            else:
                mistakes.append(
                    f"{dotted(path)} must be a table, got {_show(value)} (from {source})."
                )
        elif is_field(path):
            layer[path] = _Said(value, source)
        else:
            mistakes.append(_unknown_name(path, value, source))
    return layer


def _pyproject_table(path: Path) -> Mapping[str, object]:
    tool = _read_toml(path).get("tool", {})
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
        raise ConfigError(f"{path.name} is nested too deeply to be read.") from None
    except ValueError as error:  # TOMLDecodeError, and numbers that Python refuses to read
        raise ConfigError(_syntax_sentence(path.name, content, str(error))) from None


#: What each file says; the later one wins.
_TABLES = {PYPROJECT_TOML: _pyproject_table, PENSTOCK_TOML: _read_toml}


def _syntax_sentence(file: str, content: bytes, problem: str) -> str:
    found = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", problem)
    if found:
        place = f"line {found[1]}, column {found[2]}"
        problem = problem[: found.start()]
    else:
        place = f"line {len(content.splitlines()) or 1}"
        problem = problem.replace(" (at end of document)", " at the end of the document")
    return f"{file}, {place}, is not valid TOML: {problem.rstrip('.')}."


def _from_environment(environ: Mapping[str, str], mistakes: list[str]) -> _Layer:
    layer: _Layer = {}
    for name in sorted(environ):
        if not name.startswith(VARIABLE_PREFIX):
            continue
        if name in OTHER_VARIABLES or name.startswith(OTHER_VARIABLE_PREFIX):
            continue
        if name in _VARIABLES:
            layer[_VARIABLES[name]] = _Said(environ[name], name)
        else:
            mistakes.append(_unknown_variable(name))
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
    empty = [((name,), None) for name in TABLES if getattr(settings, name) == {}]
    return {
        dotted(path): said[path].source if path in said else DEFAULT
        for path, _ in chain(walk(settings), empty)
    }


# Messages about mistakes


def _together(mistakes: list[str]) -> str:
    """One sentence, or a line for each; those beyond what is shown are counted."""
    if len(mistakes) == 1:
        return mistakes[0]
    more = len(mistakes) - MISTAKES_SHOWN
    lines = [*mistakes[:MISTAKES_SHOWN], *([f"and {more:,} more."] if more > 0 else [])]
    told = "\n".join(f"- {line}" for line in lines)
    return f"The settings have {len(mistakes):,} problems:\n{told}"


def _refusals(problems: Iterable[ErrorDetails], said: _Layer) -> list[str]:
    """A sentence for each setting that is refused: the first rule that its value breaks."""
    sentences = {problem["loc"]: _sentence(problem, said) for problem in reversed([*problems])}
    return [*reversed(sentences.values())]


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
    if kind in _RULES:
        return _RULES[kind].format(**context)
    return f"is refused ({message[:1].lower()}{message[1:]})"


def _origin(path: SettingPath, said: _Layer) -> str:
    if path in said:
        return f"(from {said[path].source})"
    # A key of a table is to blame: its source is that of what lies below it.
    below = [entry.source for here, entry in said.items() if here[: len(path)] == path]
    return f"(from {below[-1]})" if below else "(the default)"


def _unknown_name(path: SettingPath, value: object, source: str) -> str:
    name = dotted(path)
    shown = "a hidden value" if is_secret(name) else _show(value)
    if path[0] == BUDGET and path[-1] in AMOUNTS:
        return f"{name} does not say over what it counts (from {source}): {_spans(path)}."
    if path[:2] == (BUDGET, "table"):
        return f"{name} is not a setting (from {source}): there are no tables yet."
    if path[0] == BUDGET or (path[0] == "providers" and len(path) > 2):
        near = _nearest_in_named_table(path, value)
        return f"{name} is not a setting, got {shown} (from {source}); {near}."
    known = [*map(dotted, FIELDS), *TABLES]
    last_parts = {field.rpartition(".")[2]: field for field in known}
    close = difflib.get_close_matches
    beside = [field[-1] for field in FIELDS if len(path) > 1 and field[:-1] == path[:-1]]
    if path[-1] in _OTHER_NAMES:
        nearest = dotted(_OTHER_NAMES[path[-1]])
    elif path[-1] in last_parts:  # the right name in the wrong table
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


def _spans(path: SettingPath) -> str:
    """The remedy for a budget of older files."""
    total, run, day = (dotted((*path[:-1], span, path[-1])) for span in ("total", "run", "day"))
    return (
        f"set {total} (over restarts, until it is raised or '{command('budget', 'reset')}'), "
        f"{run} (each "
        f"start anew, as it was) or {day}"
    )


def _unknown_variable(name: str) -> str:
    # Its value is not shown: nobody knows what it is, and it may be a secret.
    start = name.removeprefix(VARIABLE_PREFIX)
    if start in ("BUDGET__USD", "BUDGET__TOKENS"):
        total = f"{VARIABLE_PREFIX}BUDGET__TOTAL__{start.rpartition('__')[2]}"
        return (
            f"The variable {name} does not say over what it counts: set {total} (over restarts), "
            "or the same with RUN or DAY instead of TOTAL."
        )
    for table, where in _ONLY_IN_FILES.items():
        if start.startswith(table) and (table != "BUDGET__" or start.count("__") > 2):
            return f"The variable {name} cannot be used: {where}."
    other = _OTHER_NAMES.get(start.rpartition("__")[2].lower())
    if other is not None:
        meant = VARIABLE_PREFIX + "__".join(other).upper()
        return f"The variable {name} is not a setting; the nearest known name is {meant}."
    nearest = difflib.get_close_matches(name, _VARIABLES, 1) or difflib.get_close_matches(
        name.upper(), _VARIABLES, 1, 0.0
    )
    return f"The variable {name} is not a setting; the nearest known name is {nearest[0]}."


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def _show(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    text = redacted(repr(value))
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[:VALUE_LENGTH_MAX]}…"

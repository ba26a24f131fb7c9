# SPDX-License-Identifier: Apache-2.0
"""docs/reference/configuration.md: what can be set, of which kind, and what if nobody does?"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.config.settings import Settings, available_cores
from tools.reference.remarks import members, remarks, table

HEAD = """# Configuration

Made from the code by `make reference`; do not edit by hand. `penstock config show` lists what
holds in a folder, and who said so.

Settings stand in `penstock.toml`, or under `[tool.penstock]` in `pyproject.toml`, of the folder a
command runs in. A flag beats the environment beats `penstock.toml` beats `pyproject.toml` beats
the app's code beats the default. A variable is named after its setting, `runtime.beat_seconds` is
`PENSTOCK_RUNTIME__BEAT_SECONDS`; what stands under a name that you choose (limits, partitions,
providers, budgets of one name) cannot come from the environment. A name that does not exist is
refused, and the nearest one is told.

A *duration* is a number of seconds, or a text such as `"90s"`, `"10m"`, `"12h"`, `"30d"`, `"2w"`.
"""

#: What the names of settings.py mean to who writes a file.
KINDS = {
    "Text": "text",
    "Name": "text",
    "StoreUrl": "URL",
    "BaseUrl": "URL",
    "Header": "name of a header",
    "Truth": "true or false",
    "Count": "whole number, at least 1",
    "Cap": "whole number",
    "Bytes": "bytes",
    "Tokens": "tokens",
    "Usd": "dollars",
    "UsdPrice": "dollars",
    "Rate": "number",
    "Factor": "number between 0 and 1",
    "Seconds": "duration",
    "SecondsOrZero": "duration, or 0",
}
FACTORIES: dict[object, str] = {available_cores: "the cores"}
UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def page() -> str:
    """The whole page."""
    places: dict[type[BaseModel], list[str]] = {}
    for path, section in _sections(Settings, ()):
        places.setdefault(section, []).append(f"`[{'.'.join(path)}]`")
    parts = [HEAD]
    for section, (first, *others) in places.items():
        is_all = section is Settings
        parts.append(f"## {'Without a section' if is_all else first}\n\n{_about(section)}")
        if others:
            parts.append(f"The same under {', '.join(others)}.")
        parts.append(_settings(section))
        if is_all:
            parts += [_limits(), _partitions()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _about(section: type[BaseModel]) -> str:
    """What its docstring says, but for the place that the heading names."""
    first, _, _ = inspect.cleandoc(section.__doc__ or "").partition("\n")
    says = _as_read(re.sub(r"^`[^`]+`: ", "", first))
    return says[0].upper() + says[1:]


def _as_read(says: str) -> str:
    """For people who write TOML, where None cannot be written."""
    return says.replace("None: ", "not set: ")


def _sections(
    section: type[BaseModel], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    yield path, section
    for name, field in section.model_fields.items():
        for inner, is_named in _inner(field.annotation):
            yield from _sections(inner, (*path, name, *(("NAME",) if is_named else ())))


def _inner(annotation: object) -> Iterator[tuple[type[BaseModel], bool]]:
    """The sections that a field opens, and whether under names that people choose."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, False
        return
    is_named = getattr(annotation, "__origin__", None) is dict
    for inside in get_args(annotation):
        for section, _ in _inner(inside):
            yield section, is_named


def _settings(section: type[BaseModel]) -> str:
    written = {
        member.name: member
        for owner in reversed(section.__mro__)
        if issubclass(owner, BaseModel) and owner is not BaseModel
        for member in members(owner)
    }
    rows = []
    for name, field in section.model_fields.items():
        if name in ("limits", "partitions") or any(_inner(field.annotation)):
            continue
        kind = _kind(written[name].annotation)
        says = _as_read(written[name].remark or _said_elsewhere(name))
        rows.append((f"`{name}`", kind, _default(field, kind), says))
    return table(("setting", "kind", "default", "means"), rows) if rows else ""


def _limits() -> str:
    says = remarks(Settings)["limits"]
    return f"## `[limits.DIMENSION]`\n\nKeyed limits: {says}. See [limits](../guide/limits.md)."


def _partitions() -> str:
    says = remarks(Settings)["partitions"]
    return f"## `[partitions]`\n\n{says[0].upper()}{says[1:]}."


def _kind(annotation: str) -> str:
    names = [name for name in annotation.split(" | ") if name != "None"]
    (name,) = names
    if name.startswith("Literal["):
        return " or ".join(f"`{word}`" for word in re.findall(r"'([^']+)'", name))
    return KINDS[name]


def _default(field: FieldInfo, kind: str) -> str:
    if field.default_factory is not None:
        return FACTORIES[field.default_factory]
    value = field.default
    if value is PydanticUndefined:
        return "must be said"
    if value is None:
        return "–"
    if kind.startswith("duration"):
        return f'`"{_duration(value)}"`' if value else "`0`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:,}`".replace(",", "_") if isinstance(value, int) else f"`{value}`"


def _duration(seconds: float) -> str:
    for size, unit in UNITS[:-1]:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _said_elsewhere(name: str) -> str:
    """What another section says of a setting of the same name."""
    for _, section in _sections(Settings, ()):
        if says := remarks(section).get(name):
            return says
    return ""

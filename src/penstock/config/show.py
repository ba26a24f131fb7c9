# SPDX-License-Identifier: Apache-2.0
"""Lists every setting with its value, its source and the line of the file, for `config show`."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from penstock.config.load import PENSTOCK_TOML, PYPROJECT_TOML, Loaded, dotted, is_secret, walk
from penstock.config.settings import micros_of
from penstock.model.spending import usd
from penstock.redaction.secrets import REDACTED, redacted

LIST_LENGTH_MAX = 100  # characters of a list that are shown

_HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_ENTRY = re.compile(r"^\s*([^=#\[]+?)\s*=")
_ABOVE: dict[str, tuple[str, ...]] = {PENSTOCK_TOML: (), PYPROJECT_TOML: ("tool", "penstock")}


@dataclass(frozen=True, slots=True)
class Listed:
    """One setting as it may be shown: without secrets."""

    name: str
    value: str | int | float | None
    source: str
    line: int | None  # in the file that is the source, where it could be found


def list_settings(loaded: Loaded, folder: Path) -> list[Listed]:
    """Every setting, in the order of the model."""
    texts = {name: _text(folder / name) for name in _ABOVE}
    listed = []
    for path, value in walk(loaded.settings):
        name = dotted(path)
        source = loaded.sources[name]
        text = texts.get(source)
        line = None if text is None else line_of(text, (*_ABOVE[source], *path))
        listed.append(Listed(name, _shown(name, value), source, line))
    return listed


def _shown(name: str, value: object) -> str | int | float | None:
    if isinstance(value, int | float) or value is None:
        return value
    if isinstance(value, Decimal):
        return usd(micros_of(value))
    if isinstance(value, list):
        value = _listed(value)
    return REDACTED if is_secret(name) else redacted(str(value))


def _listed(values: list[object]) -> str:
    """The values of a dimension, as in a file, as far as a line can hold them."""
    text = json.dumps(values, default=str, ensure_ascii=False)
    return text if len(text) <= LIST_LENGTH_MAX else f"{text[:LIST_LENGTH_MAX]}… ({len(values):,})"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line that sets a name, if it is written as one; None if there is none or a doubt."""
    table: tuple[str, ...] | None = ()
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(f"[{header[1]}]")
        elif table is not None and (entry := _ENTRY.match(line)):
            parts = _parts(f"{entry[1]} = 0")
            if parts is not None and (*table, *parts) == path:
                found.append(number)
    return found[0] if len(found) == 1 else None


def _parts(text: str) -> tuple[str, ...] | None:
    """The parts of the one key of a TOML text, whatever its dots and quotes."""
    try:
        tree: object = tomllib.loads(text)
    except ValueError:
        return None
    parts = []
    while isinstance(tree, dict) and tree:
        name, tree = next(iter(tree.items()))
        parts.append(name)
    return tuple(parts)

# SPDX-License-Identifier: Apache-2.0
"""What does an app file say without being run?

Completion and the doctor must not execute what a user wrote: one has no time for it, the other
is asked because it does not work. What is written as a constant can be read all the same.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from penstock.config.find_app import DEFAULT_FILE

APP_CLASS = "Penstock"
SOURCE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AppOutline:
    """What could be read; empty where nothing could."""

    name: str | None = None
    tasks: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


def outline_of(named: str | None, folder: Path) -> AppOutline:
    """Read the app named by a file or `module:attribute` as text."""
    name = named or DEFAULT_FILE
    if not name.endswith(".py"):
        name = name.partition(":")[0].replace(".", "/") + ".py"
    try:
        if not (folder / name).is_file():  # a pipe would be waited for
            return AppOutline()
        with (folder / name).open("rb") as file:
            tree = ast.parse(file.read(SOURCE_BYTES_MAX))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return AppOutline()
    tasks, datasets = (tuple(_marked(tree, mark)) for mark in ("task", "dataset"))
    return AppOutline(_app_name(tree), tasks, datasets)


def _app_name(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_part(node.func) == APP_CLASS and node.args:
            return _text(node.args[0])
    return None


def _marked(tree: ast.Module, decorator: str) -> list[str]:
    """The names of functions that a decorator of the app makes something of."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and _last_part(mark.func) == decorator:
                given = [_text(word.value) for word in mark.keywords if word.arg == "name"]
                found.append((given and given[0]) or node.name)
    return found


def _last_part(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cli.md: which commands are there, and what do they take?"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from penstock.cli.lazy_command import LazyCommand
from penstock.cli.main import app
from tools.reference.remarks import table

Command = Any  # typer exports no name for what its groups hold

HEAD = """# Commands

Made from the code by `make reference`; do not edit by hand. `penstock COMMAND --help` says the
same. How commands end is in [errors.md](errors.md#exit-codes), how the app and the store are
found in [configuration.md](configuration.md).
"""


#: Options that many commands have, with the same meaning.
SHARED = {"--app": "`--app APP`", "--store": "`--store URL`", "--json": "`--json`"}

COMMON = """Many commands also take these; they are only named below:

| option | means |
| --- | --- |
| `--app APP` | The app: a file, or module:attribute. |
| `--store URL` | The store, such as sqlite:///path or postgresql://host/db. |
| `--json` | Print one JSON document on stdout and nothing else. |
"""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    parts = [HEAD, "## Options of every command\n\n" + _parameters(root, "penstock")]
    parts += [COMMON, _index(root)]
    for name, command in _walk(root, "penstock"):
        parts.append(
            f"## {name}\n\n{_words(command.help)}\n\n```text\n{_usage(command, name)}\n```"
        )
        if rows := _parameters(command, name):
            parts.append(rows)
        shared = [SHARED[option] for option in SHARED if option in _options(command)]
        if shared:
            parts.append(f"Also {', '.join(shared)}.")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _walk(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    """Every command that does something, with the words that name it."""
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    for word, inner in command.commands.items():
        if isinstance(inner, LazyCommand):
            inner = inner.loaded
        if not inner.hidden:
            yield from _walk(inner, f"{name} {word}")


def _index(root: Command) -> str:
    rows = []
    for name, command in _walk(root, "penstock"):
        anchor = name.replace(" ", "-")
        first, _, _ = _words(command.help).partition(". ")
        rows.append((f"[`{name}`](#{anchor})", first.rstrip(".")))
    return "## All commands\n\n" + table(("command", "does"), rows)


def _usage(command: Command, name: str) -> str:
    context = typer.Context(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context))
    return re.sub(r"\{(\S+)\}", r"\1", f"{name} {pieces}").replace("[[", "[").replace("]]", "]")


def _options(command: Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def _parameters(command: Command, name: str) -> str:
    context = typer.Context(command, info_name=name)
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and not SHARED.keys() & set(parameter.opts):
            what, says = record
            if parameter.param_type_name == "argument":
                what, _, _ = what.partition(" <")
            rows.append((f"`{what}`", _words(says).replace("[default:", "[default")))
    return table(("option", "means"), rows) if rows else ""


def _words(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split())

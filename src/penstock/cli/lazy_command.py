# SPDX-License-Identifier: Apache-2.0
"""Typer commands whose modules are imported on first use, and the global options they share.

A short command would otherwise spend most of its time on importing what other commands need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli.app_command import AppCommand

#: By name: where a command is written (`module:attribute`), and the first line of its help.
CommandTable = Mapping[str, tuple[str, str]]


class LazyCommand(TyperCommand):
    """A name and a line of help for lists; whatever else is asked for, the command itself gives."""

    def __init__(self, name: str, place: str, line: str) -> None:
        super().__init__(name, help=line)
        self._place = place

    @cached_property
    def loaded(self) -> Any:  # noqa: ANN401 (typer exports no name for what its groups hold)
        """The command or group itself, as typer would have made it."""
        module, _, attribute = self._place.partition(":")
        found = getattr(import_module(module), attribute)
        around = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=self.name)
        else:
            around.command(self.name, cls=AppCommand)(found)
        return typer.main.get_group(around).commands[str(self.name)]

    def make_context(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 (passed on)
        return self.loaded.make_context(*args, **options)


class LazyGroup(TyperGroup):
    """A group of such commands, in the order of their table."""

    table: ClassVar[CommandTable] = {}

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (passed on)
        super().__init__(**options)
        for name, (place, line) in self.table.items():
            self.add_command(LazyCommand(name, place, line))


def import_typed(table: CommandTable, words: Iterable[str]) -> None:
    """Import the command that these words name, if they name one; options may stand between.

    A module of a group has a table of its own, `COMMANDS`.
    """
    for word in words:
        if word in table:
            place, _ = table[word]
            table = getattr(import_module(place.partition(":")[0]), "COMMANDS", {})


@dataclass(frozen=True, slots=True)
class Invocation:
    """The global options, as commands find them in `context.obj`."""

    debug: bool = False
    log_level: str = "info"
    log_format: str = "text"

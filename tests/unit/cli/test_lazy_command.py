# SPDX-License-Identifier: Apache-2.0
"""Is a command that was not imported yet listed as what it is?"""

from __future__ import annotations

import typer

from penstock.cli import main
from penstock.cli.commands import queue
from penstock.cli.lazy_command import LazyCommand


def test_the_lines_of_lists_are_those_of_the_commands_themselves() -> None:
    groups = (typer.main.get_group(one) for one in (main.app, queue.commands))

    for group, table in zip(groups, (main.COMMANDS, queue.COMMANDS), strict=True):
        assert group.list_commands(typer.Context(group)) == list(table)
        for name, (place, line) in table.items():
            loaded = LazyCommand(name, place, line).loaded
            assert (loaded.name, loaded.help.partition("\n")[0]) == (name, line)

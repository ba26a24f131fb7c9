# SPDX-License-Identifier: Apache-2.0
"""`penstock config show`: every setting with its value and its source."""

from __future__ import annotations

from dataclasses import replace

import typer

from penstock.cli.app_command import AppCommand
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.config.find_app import DEFAULT_FILE
from penstock.config.load import DEFAULT
from penstock.config.settings import PLAIN_NUMBERS
from penstock.config.show import ListedSetting, list_settings
from penstock.errors import AppNotFound
from penstock.terminal_text import escaped, format_table, one_line, print_document, say, warn

commands = typer.Typer(help="Look at the settings.", no_args_is_help=True, rich_markup_mode=None)


@commands.callback()
def _group() -> None:
    """Look at the settings."""


@commands.command("show", cls=AppCommand)
def show(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show every setting with its value and where it comes from."""
    settings = listed(Target.named(app=app, store=store))
    if as_json:
        print_document(
            {
                "settings": {
                    one.name: {"value": one.value, "source": one.source, "line": one.line}
                    for one in settings
                }
            }
        )
        return
    rows = [[one.name, _value(one), _source(one)] for one in settings]
    for line in format_table(["setting", "value", "from"], rows, left=3):
        say(line)


def listed(target: Target) -> list[ListedSetting]:
    """All settings; what the app says in code is among them if it can be imported."""
    loaded, url = target.configured(), None
    named = loaded.settings.app
    try:
        app = target.app()
    except AppNotFound as error:
        if named is not None or (target.folder / DEFAULT_FILE).exists():
            warn(f"The app's own settings are not shown: {one_line(str(error))}")
    else:
        loaded = app.load(target.flags, folder=target.folder)
        url = app.store_url(loaded)
    settled = {"app": DEFAULT_FILE, "store": url}
    return [
        replace(one, value=settled[one.name])
        if one.source == DEFAULT and one.name in settled
        else one
        for one in list_settings(loaded, target.folder)
    ]


def _value(one: ListedSetting) -> str:
    if one.value is None:
        return "-"
    if isinstance(one.value, float):
        unit = "" if one.name.rpartition(".")[2] in PLAIN_NUMBERS else " s"
        return f"{one.value:.15g}{unit}"
    return escaped(str(one.value))


def _source(one: ListedSetting) -> str:
    return one.source if one.line is None else f"{one.source}, line {one.line}"

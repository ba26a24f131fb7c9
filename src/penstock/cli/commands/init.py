# SPDX-License-Identifier: Apache-2.0
"""`penstock init`: writes a small working project."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import UsageError
from penstock.terminal_text import escaped, say

FILES = ("pipeline.py", "jobs.jsonl", "penstock.toml", "test_pipeline.py")
NAME_LENGTH_MAX = 64  # characters of the app's name
FALLBACK_NAME = "pipeline"

_PLACEHOLDER = "@NAME@"


def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where; it may be new.")],
) -> None:
    """Write a small working project and say what to type next."""
    path = Path(folder)
    name = app_name(path)
    _refuse_overwriting(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            template = files("penstock.cli").joinpath("templates", f"{file}.tmpl")
            text = template.read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
            with (path / file).open("x", encoding="utf-8") as stream:
                stream.write(text)
    except OSError as error:
        raise UsageError(
            f"The project cannot be written to {folder!r}: {error.strerror}. Name another folder."
        ) from None
    say(f"{escaped(folder)} holds {', '.join(FILES)}. Next:")
    say()
    for command in next_commands(folder):
        say(f"  {escaped(command)}")


def app_name(path: Path) -> str:
    """A name for the app, made of its folder's."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.resolve().name).strip("-")
    return name[:NAME_LENGTH_MAX] or FALLBACK_NAME


def next_commands(folder: str) -> list[str]:
    """The commands to type after `init`."""
    enter = [] if Path(folder).resolve() == Path.cwd() else [f"cd {shlex.quote(folder)}"]
    return [
        *enter,
        "penstock queue import jobs.jsonl",
        "penstock queue run --drain",
        "penstock queue stats --json",
    ]


def _refuse_overwriting(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"{str(path)!r} is not a folder. Name another.")
    there = [file for file in FILES if (path / file).exists()]
    if there:
        raise UsageError(
            f"The folder {str(path)!r} holds {', '.join(there)} already; nothing is overwritten. "
            "Name another folder."
        )

# SPDX-License-Identifier: Apache-2.0
"""Every command takes its app as its first argument, and never a key for the app."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from penstock.cli import main
from penstock.cli.lazy_command import LazyCommand
from penstock.errors import UsageError
from tests.unit.cli.conftest import Command


def _leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    found = command.loaded if isinstance(command, LazyCommand) else command
    if not isinstance(found, TyperGroup):
        yield name, found
        return
    for word, inner in found.commands.items():
        yield from _leaves(inner, f"{name} {word}".strip())


LEAVES = dict(_leaves(typer.main.get_command(main.app)))
OF_AN_APP = {
    name: leaf for name, leaf in LEAVES.items() if any("--app" in one.opts for one in leaf.params)
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hello.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _parsed(name: str, *typed: str) -> dict[str, Any]:
    params: dict[str, Any] = LEAVES[name].make_context(name, list(typed)).params
    return params


def _required(leaf: Any) -> tuple[list[str], list[str]]:
    """What a command cannot do without: words, and options with values."""
    needed = [one for one in leaf.params if one.required]
    words = [f"w{n}" for n, one in enumerate(needed) if one.param_type_name == "argument"]
    options = [one.opts[0] for one in needed if one.param_type_name == "option"]
    return words, [text for option in options for text in (option, "2024-01-01")]


def test_only_commands_without_an_app_take_none() -> None:
    assert LEAVES.keys() - OF_AN_APP.keys() == {"init", "demo"}


@pytest.mark.parametrize("name", OF_AN_APP)
def test_the_first_argument_that_is_a_python_file_is_the_app(name: str, folder: Path) -> None:
    words, options = _required(OF_AN_APP[name])

    first = _parsed(name, "hello.py", *words, *options)
    later = _parsed(name, *options, "--store", "sqlite:///x.db", "hello.py", *words)
    by_option = _parsed(name, "--app", "hello.py", *words, *options)

    assert first == by_option
    assert (first["app"], later["app"]) == ("hello.py", "hello.py")


@pytest.mark.parametrize(
    ("name", "typed", "parameter", "value"),
    [
        ("queue show", ["hello.py"], "key", "hello.py"),  # the key that it cannot do without
        ("queue cancel", ["--", "hello.py"], "keys", ["hello.py"]),
        ("queue cancel", ["--app", "m:app", "hello.py"], "keys", ["hello.py"]),
        ("queue cancel", ["--app=m:app", "hello.py"], "keys", ["hello.py"]),
        ("queue cancel", ["gone.py", "hello.py"], "keys", ["gone.py", "hello.py"]),
        ("queue cancel", ["m:app", "hello.py"], "keys", ["m:app", "hello.py"]),
        ("queue cancel", ["--task", "hello.py"], "task", "hello.py"),
        ("backup", ["hello.py"], "file", "hello.py"),
        ("queue stats", ["m:app"], "app", "m:app"),
        ("queue stats", ["gone.py"], "app", "gone.py"),
    ],
)
def test_what_may_be_a_key_is_one(
    name: str, typed: list[str], parameter: str, value: object, folder: Path
) -> None:
    assert _parsed(name, *typed)[parameter] == value


def test_a_word_that_is_no_app_is_refused_also_where_no_app_is_needed(command: Command) -> None:
    ended = command("queue", "list", "failed", "--store", "sqlite:///x.db")

    assert ended.code == 2
    assert ended.sentence.startswith("'failed' is not an app; name a file such as pipeline.py")


def test_an_app_that_is_named_twice_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"named twice: 'hello\.py' and --app 'm:app'"):
        _parsed("queue stats", "hello.py", "--app", "m:app")


def test_the_help_shows_where_the_app_stands(command: Command) -> None:
    assert (
        "Usage: penstock queue show [OPTIONS] [APP] {KEY}" in command("queue", "show", "--help").out
    )


def test_commands_that_are_suggested_name_the_app_that_stood_first(
    project: Path, command: Command
) -> None:
    (project / "pipeline.py").rename(project / "shop.py")
    assert command("queue", "enqueue", "shop.py", "visit", "k", '{"host": "h"}').code == 0

    ended = command("why", "shop.py", "k")

    assert "penstock queue run --app shop.py" in ended.out

# SPDX-License-Identifier: Apache-2.0
"""Does a shell get what may stand at the cursor, quietly and without harm?"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from penstock.cli import completion
from penstock.cli.app_inspect import AppOutline, outline_of
from penstock.cli.completion import KEYS_MAX, complete_state
from penstock.model.job import JobState, NewJob
from penstock.stores.sqlite.store import SqliteStore
from tests.forked import run_forked
from tests.postgres_modules import put_module
from tests.unit.cli.conftest import PIPELINE, Command


def complete(folder: Path, typed: str, shell: str = "bash") -> list[str]:
    """What a shell is told; the last word is the one at the cursor."""
    environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    words = typed.split(" ")
    if shell == "bash":
        environ |= {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    else:
        environ |= {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environ["_PENSTOCK_COMPLETE"] = f"complete_{shell}"
    done = run_forked(
        [sys.executable, "-m", "penstock.cli.main"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


def fill(folder: Path, *keys: str) -> Path:
    path = folder / ".penstock/shop.db"
    store = SqliteStore.open(path, durability="normal")
    jobs = [NewJob(key=key, task="visit", payload="{}", group="g") for key in keys]
    store.enqueue(jobs).result()
    store.close()
    return path


@pytest.mark.acceptance
def test_commands_options_tasks_and_keys_are_completed(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE + "\nraise SystemExit('never run')\n")
    path = fill(tmp_path, "doi:1", "doi:2", "x; rm -rf $(y)", "`id`", "a\nb", "other")
    before = (path.read_bytes(), sorted(entry.name for entry in path.parent.iterdir()))

    assert complete(tmp_path, "penstock do") == ["doctor"]
    assert "--full" in complete(tmp_path, "penstock doctor --")
    assert complete(tmp_path, "penstock queue enqueue v") == ["visit"]
    assert complete(tmp_path, "penstock queue show ") == ["doi:1", "doi:2", "other"]
    assert complete(tmp_path, "penstock queue show o", "fish") == ["other"]
    assert complete(tmp_path, "penstock queue show o", "zsh") == ["_arguments '*: :((\"other\"))'"]
    assert (path.read_bytes(), sorted(entry.name for entry in path.parent.iterdir())) == before


@pytest.mark.acceptance
def test_completion_is_silent_where_nothing_can_be_read(tmp_path: Path) -> None:
    assert complete(tmp_path, "penstock queue show ") == []
    (tmp_path / "penstock.toml").write_text("stroe = 1\n")
    assert complete(tmp_path, "penstock queue show ") == []
    assert complete(tmp_path, "penstock queue enqueue ") == []


def test_keys_come_by_their_beginning_and_are_few(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    fill(project, *(f"k{n:03d}" for n in range(200)), "ä1", "ä2")
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params = {}

    assert completion.complete_key(context, "ä") == ["ä1", "ä2"]
    assert completion.complete_key(context, "k19") == [f"k19{n}" for n in range(10)]
    assert len(completion.complete_key(context, "")) == KEYS_MAX
    context.params = {"store": "sqlite:///elsewhere.db"}
    assert completion.complete_key(context, "") == []
    assert sorted(entry.name for entry in project.iterdir()) == [".penstock", "pipeline.py"]


def test_a_shell_waits_only_a_moment_for_the_keys_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    url = "postgresql://me@h/db"
    put_module(monkeypatch, "open", keys_with_prefix=lambda url, start, limit: [start, "b"])
    assert completion.known_keys(url, "a", 5, folder=Path()) == ["a", "b"]

    put_module(monkeypatch, "open", keys_with_prefix=lambda *_: gate.wait(60))
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        completion.known_keys(url, "a", 5, folder=Path())
    gate.set()


def test_states_are_completed() -> None:
    assert complete_state("") == [state.value for state in JobState]
    assert complete_state("do") == ["done"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(
    shell: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", f"source_{shell}")

    ended = command()

    assert ended.code == 0
    assert f"_PENSTOCK_COMPLETE=complete_{shell}" in ended.out


@pytest.mark.parametrize(
    ("source", "outline"),
    [
        (PIPELINE, AppOutline("shop", ("visit", "broken"))),
        ("import penstock\napp = penstock.Penstock('x')\n", AppOutline("x")),
        ("@app.task(name='old')\ndef new(ctx): pass\n", AppOutline(None, ("old",))),
        ("app = Penstock(NAME)\n", AppOutline()),
        ("def\n", AppOutline()),
    ],
)
def test_an_app_file_is_read_without_being_run(
    source: str, outline: AppOutline, tmp_path: Path
) -> None:
    (tmp_path / "some.py").write_text(source)

    assert outline_of("some.py", tmp_path) == outline
    assert outline_of("some:app", tmp_path) == outline
    assert outline_of(None, tmp_path) == AppOutline()

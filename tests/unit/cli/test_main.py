# SPDX-License-Identifier: Apache-2.0
"""Is an error one sentence, and is its code the right one?"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import typer

from penstock.cli import main
from penstock.errors import InternalError, StoreFull, UsageError
from tests.unit.cli.conftest import PIPELINE, Command


def ends_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("It is wrong.\nDo better."), 2, "It is wrong. Do better."),
        (StoreFull("No space."), 1, "No space."),
        (InternalError("Broken."), 1, "Broken."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (typer.Abort(), 130, "Interrupted."),
        (
            ZeroDivisionError("by \x1b zero."),
            1,
            "ZeroDivisionError: by \\x1b zero. This is our bug: run with --debug, and report "
            "what it prints.",
        ),
    ],
)
def test_errors_are_one_sentence_with_a_code(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str,
) -> None:
    ends_with(error, monkeypatch)

    ended = command("queue", "stats")

    assert ended.code == code
    assert ended.sentence == said
    assert ended.out == ""


def test_debug_shows_the_traceback_before_the_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_with(StoreFull("No space."), monkeypatch)

    ended = command("queue", "stats", "--debug")

    assert ended.err.startswith("Traceback")
    assert ended.err.endswith("\nNo space.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["queue", "stat"], "No such command 'stat'"),
        (["queue", "stats", "--jsn"], "No such option"),
        (["queue", "show"], "Missing argument 'KEY'"),
        (["queue", "run", "--processes", "0"], "'--processes'"),
        (["queue", "import", "x", "--on-error", "explode"], "'--on-error'"),
        (["--log-level", "loud", "queue", "stats"], "'--log-level'"),
    ],
)
def test_a_slip_of_the_pen_is_told_with_where_to_look(
    command: Command, arguments: list[str], said: str
) -> None:
    ended = command(*arguments)

    assert ended.code == 2
    assert said in ended.sentence
    assert re.search(r"[^.?][.?] See '.* --help'\.", ended.sentence)


def test_no_command_shows_the_help(command: Command) -> None:
    for arguments in ([], ["queue"]):
        ended = command(*arguments)

        assert ended.code == 2
        assert "Commands:" in ended.err


def test_the_version_is_told(command: Command) -> None:
    ended = command("--version")

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("penstock 0.")


def test_global_options_may_stand_anywhere_before_a_double_dash() -> None:
    first = main._globals_first

    assert first(["queue", "run", "--debug"]) == ["--debug", "queue", "run"]
    assert first(["a", "--log-level", "debug", "b"]) == ["--log-level", "debug", "a", "b"]
    assert first(["a", "--log-format=json"]) == ["--log-format=json", "a"]
    assert first(["a", "--", "--debug"]) == ["a", "--", "--debug"]
    assert first(["a", "--log-level"]) == ["--log-level", "a"]


@pytest.mark.parametrize("words", [("queue", "stats"), ("queue", "list"), ("config", "show")])
@pytest.mark.parametrize("name", ["pipeline.py", "penstock.toml"])
def test_f88_a_file_that_everybody_may_write_is_not_used_unasked(
    command: Command, project: Path, words: tuple[str, ...], name: str
) -> None:
    command("queue", "enqueue", "broken", "k")
    (project / name).touch()
    (project / name).chmod(0o666)

    ended = command(*words)

    assert ended.code == 2
    assert f"{name}' may be written by every user (mode 0666)" in ended.sentence
    assert "--app" in ended.sentence
    assert command(*words, "--app", "pipeline.py").code == 0


def test_a_folder_in_which_everybody_may_replace_files_is_not_used_unasked(
    command: Command, project: Path
) -> None:
    command("queue", "enqueue", "broken", "k")
    project.chmod(0o777)
    refused = command("queue", "stats")
    project.chmod(0o1777)  # as /tmp: others cannot replace what is ours, but put modules beside it
    beside = command("queue", "stats")

    assert (refused.code, "may be written by every user" in refused.sentence) == (2, True)
    assert (beside.code, "may be written by every user" in beside.sentence) == (2, True)
    assert command("queue", "stats", "--app", "pipeline.py").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_f88_the_app_of_another_user_is_not_imported_unasked(
    command: Command, project: Path
) -> None:
    (project / "pipeline.py").write_text("raise SystemExit('was imported')")
    os.chown(project / "pipeline.py", 12_345, -1)

    ended = command("queue", "stats")

    assert ended.code == 2
    assert "pipeline.py' belongs to another user (number 12345)" in ended.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("given", ["pipeline.py", "."])
def test_a_link_to_my_app_that_another_user_may_have_made_is_not_followed_unasked(
    command: Command, project: Path, given: str
) -> None:
    """Modules beside the link would be imported by what it leads to."""
    shared = project / "shared"
    shared.mkdir()
    (shared / "pipeline.py").symlink_to(project / "pipeline.py")
    os.chown(shared / given, 12_345, -1, follow_symlinks=False)
    os.chdir(shared)

    ended = command("queue", "stats")

    assert ended.code == 2
    assert "belongs to another user (number 12345)" in ended.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_app_that_is_named_elsewhere_gets_nothing_from_a_folder_of_another_user(
    command: Command, project: Path
) -> None:
    (project / "pipeline.py").write_text("import beside_it\n" + PIPELINE)
    shared = project / "shared"
    shared.mkdir()
    (shared / "beside_it.py").write_text("raise SystemExit('was imported')")
    os.chown(shared, 12_345, -1)
    os.chdir(shared)
    elsewhere = str(project / "pipeline.py")

    lacking = command("queue", "run", "--drain", "--app", elsewhere)
    (project / "pipeline.py").write_text(PIPELINE)
    (shared / "penstock.toml").write_text('[providers.ai]\nbase_url = "http://127.0.0.1:1"')
    refused = command("queue", "stats", "--app", elsewhere)

    assert "No module named 'beside_it'" in lacking.sentence
    assert f"{str(shared)!r} belongs to another user (number 12345)" in refused.sentence
    assert "Run this in the folder of your app" in refused.sentence

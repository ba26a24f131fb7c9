# SPDX-License-Identifier: Apache-2.0
"""Is a new project whole, and is nothing overwritten?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.commands.init import FILES, app_name, next_commands
from tests.unit.cli.conftest import Command


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_writes_the_files_and_says_what_is_next(command: Command, tmp_path: Path) -> None:
    ended = command("init", "my shop/new")

    assert ended.code == 0
    assert sorted(path.name for path in (tmp_path / "my shop/new").iterdir()) == sorted(FILES)
    assert [line.strip() for line in ended.out.splitlines()[2:]] == [
        "cd 'my shop/new'",
        "penstock queue import jobs.jsonl",
        "penstock queue run --drain",
        "penstock queue stats --json",
    ]
    assert 'Penstock("new")' in (tmp_path / "my shop/new/pipeline.py").read_text()
    assert "@NAME@" not in "".join((tmp_path / "my shop/new" / name).read_text() for name in FILES)
    assert len((tmp_path / "my shop/new/jobs.jsonl").read_text().splitlines()) == 10


def test_init_overwrites_nothing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("mine")

    ended = command("init", ".")

    assert ended.code == 2
    assert "holds pipeline.py already" in ended.sentence
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.py"]
    assert (tmp_path / "pipeline.py").read_text() == "mine"


def test_init_refuses_a_file_and_a_place_that_cannot_be_written(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    onto = command("init", "file")
    below = command("init", "file/inside")

    assert (onto.code, below.code) == (2, 2)
    assert onto.sentence == "'file' is not a folder. Name another."
    assert "cannot be written to 'file/inside': Not a directory" in below.sentence


def test_names_of_apps_are_made_of_folders() -> None:
    assert app_name(Path("/x/hello")) == "hello"
    assert app_name(Path("/x/my 'shop'!")) == "my-shop"
    assert app_name(Path("/x/…")) == "pipeline"
    assert app_name(Path("/")) == "pipeline"
    assert next_commands(".")[0] == "penstock queue import jobs.jsonl"

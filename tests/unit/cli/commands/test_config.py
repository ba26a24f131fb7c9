# SPDX-License-Identifier: Apache-2.0
"""Does `penstock config show` tell what holds, whatever the app does?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command


def test_every_setting_stands_with_its_source(project: Path, command: Command) -> None:
    (project / "penstock.toml").write_text("[runtime]\nbeat_seconds = 2\n")

    ended = command("config", "show")

    assert (ended.code, ended.err) == (0, "")
    lines = {line.split()[0]: line.split(None, 1)[1] for line in ended.out.splitlines()}
    assert lines["app"].split() == ["pipeline.py", "default"]
    assert lines["store"].split() == ["sqlite:///.penstock/shop.db", "default"]
    assert lines["runtime.beat_seconds"].split(None, 2)[2] == "penstock.toml, line 2"
    assert lines["retention"].startswith("2592000 s")


def test_the_document_has_values_and_sources(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", "postgresql://me:secret@db/x")

    ended = command("config", "show", "--json")

    assert ended.document["settings"]["store"] == {
        "value": "postgresql://[redacted]@db/x",
        "source": "PENSTOCK_STORE",
        "line": None,
    }
    assert "secret" not in ended.out + ended.err


def test_what_an_app_says_in_code_is_named_so(project: Path, command: Command) -> None:
    (project / "pipeline.py").write_text(
        "from penstock import Penstock\napp = Penstock('x', store='sqlite:///mine.db')\n"
    )

    store = command("config", "show", "--json").document["settings"]["store"]

    assert store == {"value": "sqlite:///mine.db", "source": "the app's code", "line": None}


def test_an_app_that_does_not_import_is_told_and_the_rest_is_shown(
    project: Path, command: Command
) -> None:
    (project / "pipeline.py").write_text("1 / 0\n")

    ended = command("config", "show")

    assert ended.code == 0
    assert ended.sentence.startswith("The app's own settings are not shown: ")
    assert "durability" in ended.out


def test_without_an_app_there_is_nothing_to_tell(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = command("config", "show")

    assert (ended.code, ended.err) == (0, "")


def test_a_wrong_setting_is_a_usage_error(project: Path, command: Command) -> None:
    (project / "penstock.toml").write_text("stroe = 1\n")

    ended = command("config", "show")

    assert ended.code == 2
    assert "the nearest known name is store" in ended.sentence

# SPDX-License-Identifier: Apache-2.0
"""What the benchmark's command takes, writes and answers with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as command
from benchmarks.runner import Check, Outcome, Scenario, Section, Sense


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section `fake`, of which a full run misses a bound and a smoke run does not."""
    module = ModuleType("fake_section")
    check = Check("speed", 0.6, Sense.AT_LEAST, 1.0)
    module.SECTION = Section(  # type: ignore[attr-defined]
        "fake", (Scenario("slow", lambda setup: Outcome((check,))),)
    )
    monkeypatch.setitem(sys.modules, "fake_section", module)
    monkeypatch.setitem(command.SECTIONS, "fake", "fake_section")


@pytest.mark.usefixtures("fake")
def test_the_exit_code_and_the_json_file_tell_of_a_missed_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    assert command.main(["fake", "--json", str(path)]) == 1
    document = json.loads(path.read_text())
    assert document["checks"] == [
        {"name": "speed", "value": 0.6, "bound": 1.0, "kind": "bound", "ok": False}
    ]
    assert document["command"] == f"python -m benchmarks fake --json {path}"
    assert "Missed bound: speed" in capsys.readouterr().out


@pytest.mark.usefixtures("fake")
def test_a_smoke_run_has_wider_bounds() -> None:
    assert command.main(["fake", "--smoke"]) == 0


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "arguments",
    [
        ["peers"],
        [],
        ["fake", "--only", "fast"],
        ["fake", "--only", "slow", "--save"],
        ["fake", "--smoke", "--save"],
    ],
)
def test_a_wrong_command_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "python -m benchmarks" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "count"), [("queue", 10), ("postgres", 6)])
def test_every_known_section_can_be_loaded(name: str, count: int) -> None:
    (section,) = command._load([name], None)
    assert section.name == name
    assert len({scenario.name for scenario in section.scenarios}) == count


def test_what_is_too_long_for_a_smoke_run_is_left_out_unless_it_is_named() -> None:
    (whole,) = command._load(["postgres"], None, smoke=True)
    (named,) = command._load(["postgres"], ["peers"], smoke=True)
    assert "peers" not in {scenario.name for scenario in whole.scenarios}
    assert [scenario.name for scenario in named.scenarios] == ["peers"]

# SPDX-License-Identifier: Apache-2.0
"""Is every setting listed with its value and its source, and no secret with it?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.load import is_secret, load_settings
from penstock.config.settings import Settings
from penstock.config.show import ListedSetting, line_of, list_settings


def listed(folder: Path, **flags: object) -> dict[str, ListedSetting]:
    environ = {"PENSTOCK_RUNTIME__BEAT_SECONDS": "3"}
    names = {f"--{name}": value for name, value in flags.items()}
    loaded = load_settings(names, environ, folder, {"tasks": {"max_attempts": 9}})
    return {one.name: one for one in list_settings(loaded, folder)}


def test_every_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        '# mine\nretention = "1d"\n\n[limits.host]\n"a.org" = 2\n"*" = 4\n'
        '[providers.ai.models."m 1"]\nrpm = 50\n'
        '[partitions]\nregion = ["eu", "us"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[tool.penstock]\ndurability = "normal"\nruntime.thread_slots = 7\n'
    )

    found = listed(tmp_path, slots=5)

    assert found["runtime.slots"] == ListedSetting("runtime.slots", 5, "--slots", None)
    beat = found["runtime.beat_seconds"]
    assert (beat.value, beat.source) == (3.0, "PENSTOCK_RUNTIME__BEAT_SECONDS")
    assert found["retention"] == ListedSetting("retention", 86_400.0, "penstock.toml", 2)
    assert found['limits.host."a.org"'] == ListedSetting(
        'limits.host."a.org"', 2, "penstock.toml", 5
    )
    assert found["limits.host.*"] == ListedSetting("limits.host.*", 4, "penstock.toml", 6)
    model = 'providers.ai.models."m 1"'
    assert found[f"{model}.rpm"] == ListedSetting(f"{model}.rpm", 50.0, "penstock.toml", 8)
    assert found[f"{model}.tpm"] == ListedSetting(f"{model}.tpm", None, "default", None)
    assert found["providers.ai.algorithm"].value == "adaptive"
    values = ListedSetting("partitions.region", '["eu", "us"]', "penstock.toml", 10)
    assert found["partitions.region"] == values
    assert found["durability"] == ListedSetting("durability", "normal", "pyproject.toml", 4)
    threads = found["runtime.thread_slots"]
    assert (threads.value, threads.source, threads.line) == (7, "pyproject.toml", 5)
    assert found["tasks.max_attempts"].source == "the app's code"
    assert found["tasks.timeout"] == ListedSetting("tasks.timeout", 3600.0, "default", None)
    for name in Settings.model_fields:
        assert any(one == name or one.startswith(f"{name}.") for one in found), name


def test_the_password_of_a_url_is_not_listed(tmp_path: Path) -> None:
    found = listed(tmp_path, store="postgresql://me:pa55@db:5432/x?password=w0rd&a=b")

    assert found["store"].value == "postgresql://[redacted]@db:5432/x?password=[redacted]&a=b"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[a]\nb = 1\n", 2),
        ("a.b = 1\n", 1),
        ("[ a ] # table\n'b' = 1\n", 2),
        ("a = { b = 1 }\n", None),  # inside a line
        ("[a]\nc = '''\nb = 2\n'''\nb = 1\n", None),  # a doubt
        ("[x]\nb = 1\n", None),
        ("[[a]]\nb = 1\n", None),
        ("", None),
    ],
)
def test_the_line_of_a_setting_is_found_or_left_out(text: str, line: int | None) -> None:
    assert line_of(text, ("a", "b")) == line


def test_what_is_secret_is_known_by_its_name() -> None:
    assert is_secret("providers.openai.api_key")
    assert not is_secret("runtime.async_slots")

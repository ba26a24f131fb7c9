# SPDX-License-Identifier: Apache-2.0
"""Are limits refused that can only be a mistake?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Context, Penstock
from penstock.app import wiring
from penstock.config.load import load_settings
from penstock.errors import ConfigError


def make_app(*dimensions: str) -> Penstock:
    app = Penstock("a")

    @app.task(limits=dict.fromkeys(dimensions, "x"))
    async def visit(ctx: Context) -> None: ...

    return app


@pytest.mark.parametrize(
    ("flags", "toml", "said"),
    [
        (
            {"--limit": "resolvr=x:1"},
            "",
            "limits.resolvr is a dimension that no task has (from --limit); the nearest known one "
            "is 'resolver'.",
        ),
        (
            {},
            "[limits.resolvers]\n'*' = 2\n",
            "limits.resolvers is a dimension that no task has (from penstock.toml); the nearest "
            "known one is 'resolver'.",
        ),
    ],
)
def test_a_dimension_that_no_task_has_is_refused_with_the_nearest(
    tmp_path: Path, flags: dict[str, object], toml: str, said: str
) -> None:
    (tmp_path / "penstock.toml").write_text(toml)

    with pytest.raises(ConfigError) as refused:
        wiring.check_dimensions(load_settings(flags, {}, tmp_path, {}), make_app("resolver").tasks)

    assert str(refused.value) == said


def test_a_file_may_have_limits_of_another_app(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "penstock.toml").write_text("[limits.host]\n'*' = 2\n[limits.resolver]\nx = 1\n")
    loaded = load_settings({}, {}, tmp_path, {})

    wiring.check_dimensions(loaded, make_app("resolver").tasks)
    wiring.check_dimensions(loaded, {})

    assert caplog.records == []


@pytest.mark.parametrize(
    ("flags", "dimensions", "said"),
    [
        (
            {"--limit": "zzz=x:1"},
            ["resolver"],
            "it limits nothing, known are 'resolver'.",
        ),
        (
            {"--max-per-host": 4},
            ["resolver"],
            "limits.host is a dimension that no task has",
        ),
        ({"--limit": "host=a:1"}, [], "(from --limit); it limits nothing, no task has limits."),
    ],
)
def test_a_typed_limit_that_limits_nothing_is_told(
    tmp_path: Path,
    flags: dict[str, object],
    dimensions: list[str],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wiring.check_dimensions(load_settings(flags, {}, tmp_path, {}), make_app(*dimensions).tasks)

    (record,) = caplog.records
    assert said in record.getMessage()

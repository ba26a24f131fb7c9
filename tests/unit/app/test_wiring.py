# SPDX-License-Identifier: Apache-2.0
"""Are settings and definitions put together as they are meant, or refused as a mistake?"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock, SchedulingMetadata
from penstock.app import wiring
from penstock.app.build import build_scope
from penstock.calendars import Daily
from penstock.config.load import load_settings
from penstock.errors import ConfigError
from penstock.outputs.root import OutputRoot


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


def test_the_group_of_a_dataset_is_the_named_one_its_identity_or_its_name() -> None:
    app, model = Penstock("a"), SchedulingMetadata.local("model")

    def slices(name: str, **options: Any) -> None:
        @app.dataset(calendar=Daily(), name=name, **options)
        async def build(ctx: Context, at: datetime) -> list[Any]:
            return []

    slices("plain")
    slices("shared", metadata=model)
    slices("named", metadata=model, group="g")

    scope = build_scope(app.name, app.datasets, OutputRoot("out", "1"))

    groups = {name: place.group for name, place in scope.placements.items()}
    assert groups == {"plain": "plain", "shared": "local:model", "named": "g"}

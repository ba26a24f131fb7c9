# SPDX-License-Identifier: Apache-2.0
"""What does a daemon do, when definitions and settings are taken together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock, SchedulingMetadata, TickContext
from penstock.config.settings import Settings
from penstock.errors import ConfigError, UsageError
from penstock.planning.units import DaemonPlan

NOW = 1_700_000_000_000_000


@dataclass(frozen=True)
class Repo:
    owner: str
    name: str


def plan(app: Penstock, partitions: Mapping[str, Any] | None = None) -> DaemonPlan:
    return app.plan_daemon(Settings(partitions=dict(partitions or {})), NOW)


def watch() -> Penstock:
    app = Penstock("watch")
    repos = app.partitions("repo", of=Repo)
    regions = app.partitions("region", lambda: ["eu", "us"])

    @app.preflight(over=repos)
    async def exists(ctx: Context, repo: Repo) -> None: ...

    @app.preflight()
    async def token(ctx: Context) -> None: ...

    @app.every(10, over=repos, limits={"owner": lambda repo: repo.owner})
    async def poll(ctx: TickContext, repo: Repo) -> None: ...

    @app.every("0 3 * * *", over=(repos, regions), tz="Europe/Berlin")
    async def mirror(ctx: TickContext, repo: Repo, region: str) -> None: ...

    @app.every(2)
    async def sweep(ctx: TickContext) -> None: ...

    return app


TWO = {"repo": [{"owner": "o", "name": "a"}, {"owner": "o", "name": "b/c"}]}


def test_an_app_without_a_daemon_has_an_empty_plan() -> None:
    found = plan(Penstock("a"))

    assert (found.preflights, found.schedules, found.shares) == ((), (), {})


def test_everything_is_multiplied_and_named() -> None:
    found = plan(watch(), TWO)

    assert [one.unit for one in found.preflights] == [
        "preflight:exists:o/a",
        "preflight:exists:o/b%2Fc",
        "preflight:token",
    ]
    assert [one.partition for one in found.preflights][1:] == [
        "o/b%2Fc",
        "",
    ]
    assert [one.key for one in found.schedules] == [
        "schedule:poll:o/a",
        "schedule:poll:o/b%2Fc",
        "schedule:mirror:o/a/eu",
        "schedule:mirror:o/a/us",
        "schedule:mirror:o/b%2Fc/eu",
        "schedule:mirror:o/b%2Fc/us",
        "schedule:sweep",
    ]


def test_a_unit_says_what_a_store_needs() -> None:
    poll, *_, sweep = plan(watch(), TWO).schedules

    assert poll.task == "schedule:poll"
    assert poll.payload == '{"repo":{"owner":"o","name":"a"}}'
    assert (poll.group, poll.partition, poll.limit_keys) == ("o/a", "o/a", ("owner:o",))
    assert poll.timing == "every 10 s"
    assert NOW <= poll.first_at < NOW + 20_000
    assert (sweep.group, sweep.partition, sweep.payload) == ("schedule:sweep", None, "{}")


def test_a_unit_without_a_partition_stands_in_the_group_of_its_metadata() -> None:
    app = Penstock("watch")
    regions = app.partitions("region", ["eu"])
    crawl = SchedulingMetadata.local("crawl")

    @app.every(2, metadata=crawl)
    async def sweep(ctx: TickContext) -> None: ...

    @app.every(2, over=regions, metadata=crawl)
    async def mirror(ctx: TickContext, region: str) -> None: ...

    groups = {unit.task: unit.group for unit in plan(app).schedules}

    assert groups == {"schedule:sweep": "local:crawl", "schedule:mirror": "eu"}


def test_the_same_definitions_give_the_same_plan() -> None:
    assert plan(watch(), TWO) == plan(watch(), TWO)


def test_shares_say_in_which_partitions_one_lies() -> None:
    shares = plan(watch(), TWO).shares

    assert shares[""] == ("",)
    assert shares["o/a"] == ("", "o/a")
    assert shares["o/a/eu"] == ("", "o/a", "eu", "eu/o/a", "o/a/eu")


def test_a_function_is_called_once_for_a_plan_and_only_if_it_is_used() -> None:
    app = Penstock("a")
    calls: list[str] = []

    def regions() -> list[str]:
        calls.append("regions")
        return ["eu"]

    used = app.partitions("region", regions)
    app.partitions("unused", lambda: [calls.append("unused")])  # type: ignore[func-returns-value]
    for name in ("one", "two"):

        @app.every(1, over=used, name=name)
        def tick(ctx: TickContext, region: str) -> None: ...

    assert len(plan(app).schedules) == 2
    assert calls == ["regions"]


def _fail() -> list[str]:
    raise OSError("no list")


def test_every_mistake_is_told_at_once() -> None:
    app = Penstock("a")
    names = app.partitions("name", ["a", "", "a"])
    broken = app.partitions("broken", _fail)
    missing = app.partitions("missing", of=str)
    numbers = app.partitions("number", [1, 2])

    @app.preflight(over=names)
    def one(ctx: Context, name: str) -> None: ...

    @app.every(1, over=broken)
    def two(ctx: TickContext, broken: str) -> None: ...

    @app.every(1, over=missing)
    def three(ctx: TickContext, missing: str) -> None: ...

    @app.every(1, over=numbers)  # type: ignore[arg-type]
    def four(ctx: TickContext, number: str) -> None: ...

    with pytest.raises(UsageError) as refused:
        plan(app)
    assert str(refused.value).splitlines() == [
        "The plan has 6 problems:",
        "- Partitions 'broken': their function raised OSError: no list.",
        "- Partitions 'missing': the configuration does not list them; write missing = [...] "
        "under [partitions] in penstock.toml.",
        "- Partitions 'name': '' has an empty name, or an empty part in it.",
        "- Partitions 'name': two values are named 'a'.",
        "- schedule:four:1: Task 'schedule:four', argument 'number': expected `str`, got `int`.",
        "- schedule:four:2: Task 'schedule:four', argument 'number': expected `str`, got `int`.",
    ]


def test_ten_thousand_units_are_spread_and_distinct() -> None:
    app = Penstock("a")
    many = app.partitions("n", range(10_000))

    @app.every(60, over=many)
    def tick(ctx: TickContext, n: int) -> None: ...

    units = plan(app).schedules
    firsts = sorted(unit.first_at - NOW for unit in units)

    assert len({unit.key for unit in units}) == 10_000
    assert firsts[0] >= 0
    assert firsts[-1] < 30_000_000
    # Every second of the thirty has its part.
    seconds = [0] * 30
    for first in firsts:
        seconds[first // 1_000_000] += 1
    assert min(seconds) > 200
    assert max(seconds) < 500


# Settings


def load(app: Penstock, folder: Path, text: str, **environ: str) -> Settings:
    (folder / "penstock.toml").write_text(text)
    return app.load({}, environ, folder).settings


def test_values_come_from_a_file(tmp_path: Path) -> None:
    settings = load(
        watch(),
        tmp_path,
        '[partitions]\nrepo = [{owner = "o", name = "a"}]\n[runtime]\npreflight_timeout = "5s"\n',
    )

    assert [one.unit for one in watch().plan_daemon(settings, NOW).preflights] == [
        "preflight:exists:o/a",
        "preflight:token",
    ]
    assert settings.runtime.preflight_timeout == 5.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "[partitions]\nrepos = []\n",
            r"partitions.repos is a dimension that the app does not define \(from penstock.toml\); "
            "the nearest known one is 'repo'",
        ),
        ("[partitions]\nxyz = []\n", "known are 'region', 'repo'"),
        ('[partitions]\nregion = ["eu"]\n', "the app has its values in code"),
        ("[partitions]\nrepo = 5\n", "partitions.repo must be a list of values"),
        ("[partitions.repo]\na = 5\n", "partitions.repo must be a list of values"),
        ("partitions = 5\n", "partitions must be a table"),
        ("[partition]\nrepo = []\n", "the nearest known name is partitions"),
    ],
)
def test_settings_about_nothing_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(watch(), tmp_path, text)


def test_an_app_without_dimensions_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has none: write app.partitions\('x', of=TYPE\)"):
        load(Penstock("a"), tmp_path, "[partitions]\nx = []\n")


def test_partitions_cannot_come_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"partitions are set by \[partitions\] in penstock.toml"):
        load(watch(), tmp_path, "", PENSTOCK_PARTITIONS__REPO="a,b")


def test_a_schedule_of_an_unknown_provider_is_refused(tmp_path: Path) -> None:
    app = Penstock("a")

    @app.every(1, uses="github")
    def tick(ctx: TickContext) -> None: ...

    with pytest.raises(UsageError, match="'schedule:tick' uses the provider 'github'"):
        load(app, tmp_path, "")

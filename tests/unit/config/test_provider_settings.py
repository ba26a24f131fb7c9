# SPDX-License-Identifier: Apache-2.0
"""Can providers be set in files, over what the app says, and is every mistake told?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Context, Penstock
from penstock.admission.requests.policy import ProcessShare, RequestCaps
from penstock.config.load import load_settings
from penstock.config.provider_policy import provider_policies, unserved_tasks
from penstock.errors import ConfigError, UsageError

WHOLE = """
[providers.ai]
base_url = "https://ai.example/v1"
algorithm = "aimd"
max_parallel = 64
rpm = 600
tpm = 90_000.5
initial_limit = 4
decrease_factor = 0.5
successes_until_increase = 10
cooldown_seconds = "1m"
startup_ramp_seconds = 3
[providers.ai.models."gpt-5"]
max_parallel = 32
rpm = 5000
tpm = 2_000_000
"""


def mistake(folder: Path, toml: str) -> str:
    (folder / "penstock.toml").write_text(toml)
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {}, folder, {})
    return str(caught.value)


def shop() -> Penstock:
    app = Penstock("shop")
    app.provider("ai", base_url="https://old.example", max_parallel=8, rpm=60)
    return app


def test_a_file_says_all_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(WHOLE)
    app = shop()

    loaded = app.load(environ={}, folder=tmp_path)

    policy = provider_policies(loaded.settings, app.providers)["ai"]
    assert policy.caps == RequestCaps(64, 600.0, 90_000.5)
    assert policy.model_caps("gpt-5") == RequestCaps(32, 5000.0, 2_000_000.0)
    assert policy.algorithm == "aimd"
    assert policy.aimd.initial_limit == 4
    assert policy.aimd.decrease_factor == 0.5
    assert policy.aimd.successes_until_increase == 10
    assert policy.aimd.cooldown_seconds == 60.0
    assert policy.aimd.startup_ramp_seconds == 3.0
    assert loaded.settings.providers["ai"].base_url == "https://ai.example/v1"


def test_settings_override_single_things_that_the_app_says(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[providers.ai]\nmax_parallel = 2\n")
    app = shop()

    loaded = app.load(environ={}, folder=tmp_path)

    said = loaded.settings.providers["ai"]
    assert (said.max_parallel, said.rpm, said.base_url) == (2, 60.0, "https://old.example")
    assert loaded.sources["providers.ai.max_parallel"] == "penstock.toml"
    assert loaded.sources["providers.ai.rpm"] == "the app's code"
    assert loaded.sources["providers.ai.tpm"] == "default"


def test_a_provider_of_which_nothing_is_said_has_the_defaults(tmp_path: Path) -> None:
    app = Penstock("shop")
    app.provider("ai")

    policy = provider_policies(app.load(environ={}, folder=tmp_path).settings, app.providers)["ai"]

    assert policy.caps == RequestCaps()
    assert policy.algorithm == "adaptive"
    assert policy.aimd.cooldown_seconds == 2.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("max_paralel = 2", "nearest known name is providers.ai.max_parallel"),
        ("fun = true", "providers.ai.fun is not a setting, got True (from penstock.toml); known"),
        ('paid = "yes"', "providers.ai.paid must be true or false, got 'yes'"),
        ("in_doubt = 'wait'", "providers.ai.in_doubt must be 'resend' or 'hold', got 'wait'"),
        ("idempotency_header = 'a b'", "providers.ai.idempotency_header must be the name of a"),
        ("max_parallel = 0", "providers.ai.max_parallel must be > 0, got 0 (from penstock.toml)"),
        ("max_parallel = 1.5", "providers.ai.max_parallel must be a whole number"),
        ("rpm = 0", "providers.ai.rpm must be >= 1e-09, got 0.0 (from penstock.toml)"),
        ("rpm = 5e-324", "providers.ai.rpm must be >= 1e-09, got 5e-324"),
        (f"rpm = 1{'0' * 400}", "providers.ai.rpm must be a number"),
        ('models."a\\nb".rpm = 3', "must not hold control characters"),
        ("rpm = nan", "providers.ai.rpm"),
        ("rpm = inf", "providers.ai.rpm must be <= "),
        ("tpm = true", "providers.ai.tpm must be a number, got True"),
        ("decrease_factor = 1", "providers.ai.decrease_factor must be < 1, got 1"),
        ("decrease_factor = 0.0", "providers.ai.decrease_factor must be > 0, got 0.0"),
        ("cooldown_seconds = -1", "providers.ai.cooldown_seconds"),
        ('algorithm = "magic"', "providers.ai.algorithm must be 'adaptive' or 'aimd', got 'magic'"),
        ('base_url = "ai.example"', "base_url must begin with http:// or https://, got"),
        ('base_url = "https://"', "base_url must name a host, got"),
        ('base_url = "https://a/x?y=1"', "base_url must end with its path, without ? and #"),
        ('base_url = "http://a:99999"', "base_url is no URL"),
        ("base_url = 7", "base_url must be text, got 7"),
        ("models = 3", "providers.ai.models must be a table, got 3"),
        ("models.x.rmp = 3", "the nearest known name is providers.ai.models.x.rpm"),
        ("models.x.base_url = 'y'", "known names in providers.ai.models.x are max_parallel"),
        ("models.x.tpm = -1", "providers.ai.models.x.tpm must be >= 1e-09, got -1"),
    ],
)
def test_a_mistake_is_told_with_its_name(tmp_path: Path, line: str, says: str) -> None:
    assert says in mistake(tmp_path, f"[providers.ai]\n{line}\n")


def test_other_mistakes_about_providers(tmp_path: Path) -> None:
    assert "providers must be a table" in mistake(tmp_path, "providers = 1\n")
    assert "providers.ai must be a table" in mistake(tmp_path, "[providers]\nai = 1\n")
    assert "must not contain '/'" in mistake(tmp_path, '[providers."a/b"]\nrpm = 1\n')
    assert "must not hold control characters" in mistake(tmp_path, '[providers."a\\nb"]\nrpm = 1\n')
    with pytest.raises(ConfigError, match=r"providers are set by \[providers"):
        load_settings({}, {"PENSTOCK_PROVIDERS__AI__RPM": "1"}, tmp_path, {})


def test_settings_about_a_provider_that_the_app_does_not_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[providers.aii]\nrpm = 1\n")

    with pytest.raises(ConfigError) as caught:
        shop().load(environ={}, folder=tmp_path)

    assert str(caught.value) == (
        "providers.aii is about a provider that the app does not define (from penstock.toml); the "
        "nearest known one is 'ai'."
    )


@pytest.mark.parametrize(
    ("uses", "says"),
    [("aii", "nearest known one is 'ai'"), ("zz/gpt", "known are 'ai'"), (["ai", "b"], "'b'")],
)
def test_a_task_of_an_unknown_provider_is_refused_when_the_app_is_loaded(
    tmp_path: Path, uses: str | list[str], says: str
) -> None:
    app = shop()

    @app.task(uses=uses)  # type: ignore[arg-type]  # as somebody without a type checker writes it
    async def ask(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match=f"Task 'ask' uses the provider .*{says}"):
        app.load(environ={}, folder=tmp_path)


def test_a_process_without_a_slot_leaves_the_tasks_of_a_provider_to_others(tmp_path: Path) -> None:
    app = Penstock("shop")
    one = app.provider("one", max_parallel=2, models={"m": {"max_parallel": 1}})
    free = app.provider("free")

    @app.task(uses=one)
    async def whole(ctx: Context) -> None: ...

    @app.task(uses="one/m")
    async def part(ctx: Context) -> None: ...

    @app.task(uses=[free])
    async def other(ctx: Context) -> None: ...

    policies = provider_policies(app.load(environ={}, folder=tmp_path).settings, app.providers)
    left = [unserved_tasks(app.tasks, policies, ProcessShare(index, 3)) for index in range(3)]

    assert left == [frozenset(), {"part"}, {"whole", "part"}]

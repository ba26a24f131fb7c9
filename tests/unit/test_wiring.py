# SPDX-License-Identifier: Apache-2.0
"""Are limits refused that can only be a mistake, and stores named without their passwords?"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Context, Penstock, wiring
from penstock.config.load import load_settings
from penstock.errors import ConfigError, StoreUnavailable
from penstock.model.finding import Finding, well
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing import ManualClock
from tests.postgres_modules import put_module, without_psycopg


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


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_store_on_a_server_is_opened_with_what_was_configured(
    monkeypatch: pytest.MonkeyPatch, scheme: str, durability: str
) -> None:
    asked: list[tuple[str, str, bool, bool]] = []
    store = InProcessStore(ManualClock())

    def open_postgres(
        url: str, *, durability: str, reading_will_do: bool, make: bool
    ) -> InProcessStore:
        asked.append((url, durability, reading_will_do, make))
        return store

    put_module(monkeypatch, "opening", open_postgres=open_postgres)
    url = f"{scheme}://me:hunter2@h:5432/db?sslmode=require"

    assert wiring.open_store(url, durability=durability, reading_will_do=True) is store

    assert asked == [(url, durability, True, True)]


def test_nobody_needs_psycopg_for_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import penstock.cli.main, penstock.cli.worker_process\n"
        "from penstock import wiring\n"
        "wiring.open_store('sqlite:///x.db').close()\n"
        "print([name for name in sys.modules if name.startswith('penstock.stores.postgres')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "call",
    [
        wiring.open_store,
        lambda url: wiring.store_checkup(url, folder=Path(), full=False),
        lambda url: wiring.keys_beginning(url, "", 1, folder=Path()),
    ],
)
def test_without_psycopg_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[str], object]
) -> None:
    without_psycopg(monkeypatch)

    with pytest.raises(ConfigError) as refused:
        call("postgresql://me:hunter2@h/db")

    said = str(refused.value)
    assert said.startswith("The store postgresql://[redacted]@h/db needs psycopg, which cannot be")
    assert said.endswith("; install it with pip install 'penstock[postgres]'.")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgress://me:hunter2@h/db",
            "The store 'postgress://[redacted]@h/db' is not known; write it as "
            "postgresql://user@host:5432/database.",
        ),
        (
            "postgresql:me:hunter2@h/db",
            "is not known; write it as postgresql://user@host:5432/database.",
        ),
        ("sqlit:///x.db", "is not known; write it as sqlite:///.penstock/app.db."),
        (
            "sqlite://?password=hunter2",
            "The store 'sqlite://?password=[redacted]' is not known; write it as "
            "sqlite:///.penstock/app.db.",
        ),
        ("redis://:hunter2@h/0", "is not known; write sqlite:///path, for example "),
        ("app.db", "The store 'app.db' is not known; write sqlite:///path, for example "),
    ],
)
def test_a_store_that_is_not_known_is_refused_with_the_nearest_and_without_its_password(
    url: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        wiring.open_store(url)

    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_checkup_of_a_server_tells_what_the_server_says_or_why_it_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "postgresql://me@h/db"
    put_module(
        monkeypatch,
        "checkup",
        postgres_findings=lambda url, full: [well("server", f"{url}, {full}")],
        postgres_facts=lambda url: None,
    )
    for full in (False, True):
        checkup = wiring.store_checkup(url, folder=Path(), full=full)
        assert list(checkup.findings()) == [well("server", f"{url}, {full}")]
    assert checkup.facts is None

    def gone(url: str, *, full: bool) -> list[Finding]:
        raise StoreUnavailable("The server cannot be reached.")

    put_module(monkeypatch, "checkup", postgres_findings=gone, postgres_facts=lambda url: None)
    (found,) = wiring.store_checkup(url, folder=Path(), full=False).findings()
    assert (found.ok, found.text) == (False, "The server cannot be reached.")


def test_a_shell_waits_only_a_moment_for_the_keys_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    url = "postgresql://me@h/db"
    put_module(monkeypatch, "looking", keys_with_prefix=lambda url, start, limit: [start, "b"])
    assert wiring.keys_beginning(url, "a", 5, folder=Path()) == ["a", "b"]

    put_module(monkeypatch, "looking", keys_with_prefix=lambda *_: gate.wait(60))
    monkeypatch.setattr(wiring, "COMPLETION_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        wiring.keys_beginning(url, "a", 5, folder=Path())
    gate.set()

# SPDX-License-Identifier: Apache-2.0
"""Is the store opened that a URL names, and named without its password?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError, StoreUnavailable
from penstock.model.views import Finding, healthy
from penstock.stores.doctor import store_checkup
from penstock.stores.open import keys_beginning, open_store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing import ManualClock
from tests.postgres_modules import put_module, without_psycopg


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

    put_module(monkeypatch, "open", open_postgres=open_postgres)
    url = f"{scheme}://me:hunter2@h:5432/db?sslmode=require"

    assert open_store(url, durability=durability, reading_will_do=True) is store

    assert asked == [(url, durability, True, True)]


def test_nobody_needs_psycopg_for_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import penstock.cli.main, penstock.processes.worker\n"
        "from penstock.stores.open import open_store\n"
        "open_store('sqlite:///x.db').close()\n"
        "print([name for name in sys.modules if name.startswith('penstock.stores.postgres')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "call",
    [
        open_store,
        lambda url: store_checkup(url, folder=Path(), full=False),
        lambda url: keys_beginning(url, "", 1, folder=Path()),
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
    assert said.endswith("; install it with 'pip install psycopg[binary]'.")


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
        open_store(url)

    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_checkup_of_a_server_tells_what_the_server_says_or_why_it_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "postgresql://me@h/db"
    put_module(
        monkeypatch,
        "doctor",
        postgres_findings=lambda url, full: [healthy("server", f"{url}, {full}")],
        postgres_facts=lambda url: None,
    )
    for full in (False, True):
        checkup = store_checkup(url, folder=Path(), full=full)
        assert list(checkup.findings()) == [healthy("server", f"{url}, {full}")]
    assert checkup.facts is None

    def gone(url: str, *, full: bool) -> list[Finding]:
        raise StoreUnavailable("The server cannot be reached.")

    put_module(monkeypatch, "doctor", postgres_findings=gone, postgres_facts=lambda url: None)
    (found,) = store_checkup(url, folder=Path(), full=False).findings()
    assert (found.ok, found.text) == (False, "The server cannot be reached.")

# SPDX-License-Identifier: Apache-2.0
"""Is a URL understood as libpq does, and never shown with its password?"""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.stores.postgres.connection import Address

PASSWORD = "hunter22"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://me:{PASSWORD}@h:5433/db", "postgresql://me@h:5433/db"),
        (f"postgres://me:{PASSWORD}@h/db", "postgresql://me@h/db"),
        (f"postgresql://me@h/db?password={PASSWORD}", "postgresql://me@h/db"),
        (f"postgresql://h/db?user=me&password={PASSWORD}", "postgresql://me@h/db"),
        (f"postgresql://h/db?sslpassword={PASSWORD}", "postgresql://h/db"),
        (f"postgresql://me:{PASSWORD}@a:1,b:2/db", "postgresql://me@a,b:1,2/db"),
        (
            f"postgresql:///db?host=/run/x&password={PASSWORD}",
            "postgresql:///db?host=/run/x",
        ),
        (f"postgresql://a%40b:{PASSWORD}@h/d%2Fb", "postgresql://a%40b@h/d%2Fb"),
        (f"host=h user=me password={PASSWORD} dbname=db", "postgresql://me@h/db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    address = Address.of(url)

    assert address.shown == shown
    assert PASSWORD not in address.shown
    assert PASSWORD in address.conninfo.values()


def test_a_url_that_libpq_cannot_read_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError) as refusal:
        Address.of(f"postgresql://me:{PASSWORD}%zz@h/db")

    assert PASSWORD not in str(refusal.value)
    assert "percent-encoded" in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_silence_is_bounded_unless_the_url_says_otherwise() -> None:
    assert Address.of("postgresql://h/db").conninfo["connect_timeout"] == "5"
    assert Address.of("postgresql://h/db?connect_timeout=60").conninfo["connect_timeout"] == "60"


def test_the_server_is_told_who_we_are_unless_the_url_says_otherwise() -> None:
    given = "postgresql://h/db?application_name=shop"

    assert Address.of("postgresql://h/db").conninfo["application_name"] == "penstock"
    assert Address.of(given).conninfo["application_name"] == "shop"

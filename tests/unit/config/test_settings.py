# SPDX-License-Identifier: Apache-2.0
"""Are the defaults the documented ones, and are wrong values refused by the models themselves?"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.config.settings import RuntimeSettings, Settings, TaskSettings, available_cores
from penstock.model.lease import ConfiguredCaps


def test_defaults_are_the_documented_ones() -> None:
    assert Settings().model_dump() == {
        "app": None,
        "store": None,
        "durability": "full",
        "retention": 30 * 86_400.0,
        "journal_retention": None,
        "runtime": {
            "slots": None,
            "async_slots": 256,
            "thread_slots": 32,
            "process_slots": available_cores(),
            "lease_ttl_seconds": 30.0,
            "beat_seconds": 10.0,
            "grace_seconds": 25.0,
            "statistics_seconds": 60.0,
            "preflight_timeout": 60.0,
        },
        "tasks": {
            "max_attempts": 3,
            "timeout": 3600.0,
            "max_crashes": 3,
            "give_up_after": 86_400.0,
        },
        "datasets": {"root": "datasets"},
        "limits": {},
        "providers": {},
        "budget": {
            "total": {"usd": None, "tokens": None},
            "run": {"usd": None, "tokens": None},
            "day": {"usd": None, "tokens": None},
            "provider": {},
            "model": {},
            "task": {},
        },
        "partitions": {},
    }


def test_paid_calls_are_kept_as_long_as_their_jobs_unless_it_is_said_otherwise() -> None:
    assert Settings().calls_kept() == 30 * 86_400.0
    assert Settings.model_validate({"retention": "2d"}).calls_kept() == 2 * 86_400.0
    both = Settings.model_validate({"retention": "2d", "journal_retention": "90d"})
    assert both.calls_kept() == 90 * 86_400.0


def test_settings_do_not_change_once_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().durability = "normal"  # type: ignore[misc]


@pytest.mark.parametrize("model", [Settings, RuntimeSettings, TaskSettings])
def test_unknown_names_are_forbidden_everywhere(model: type[Settings]) -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        model.model_validate({"no_such_name": 1})


@pytest.mark.parametrize("value", [True, 1.0, 1.5, "1.0", "", "x", "１", None, [1], 0, -1, 10**7])
def test_counts_are_whole_numbers_above_zero(value: object) -> None:
    with pytest.raises(ValidationError):
        TaskSettings.model_validate({"max_attempts": value})


@pytest.mark.parametrize(("beat", "lease"), [(15, 30), (20, 30), (5, 10), (100, 1)])
def test_beat_must_fit_twice_into_a_lease(beat: float, lease: float) -> None:
    with pytest.raises(ValidationError, match="half of"):
        RuntimeSettings(beat_seconds=beat, lease_ttl_seconds=lease)


def test_grace_may_be_zero_and_a_lease_may_not() -> None:
    assert RuntimeSettings(grace_seconds=0).grace_seconds == 0.0
    with pytest.raises(ValidationError, match="greater_than"):
        RuntimeSettings(lease_ttl_seconds=0)


def test_caps_are_keyed_as_stores_ask_for_them() -> None:
    settings = Settings.model_validate(
        {"limits": {"host": {"*": 4, "example.org:8080": 2}, "resolver": {"crossref": 3}}}
    )
    caps = ConfiguredCaps(settings.caps())

    assert caps.cap("host:example.org:8080", {}) == 2
    assert caps.cap("host:other.org", {}) == 4
    assert caps.cap("resolver:crossref", {}) == 3
    assert caps.cap("resolver:other", {}) is None


def test_a_cap_may_be_zero_but_not_below() -> None:
    assert Settings.model_validate({"limits": {"host": {"a": 0}}}).caps() == {"host:a": 0}
    with pytest.raises(ValidationError, match="greater_than_equal"):
        Settings.model_validate({"limits": {"host": {"a": -1}}})


def test_settings_never_show_the_password_of_a_store() -> None:
    settings = Settings.model_validate({"store": "postgresql://me:hunter2@host/db"})

    for shown in (repr(settings), str(settings), settings.model_dump_json(), f"{settings.store}"):
        assert "hunter2" not in shown
        assert "postgresql://[redacted]@host/db" in shown
    assert settings.store is not None
    assert settings.store.reveal() == "postgresql://me:hunter2@host/db"

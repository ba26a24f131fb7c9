# SPDX-License-Identifier: Apache-2.0
"""Who wins, where did a value come from, and is every mistake told in one sentence?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.config.load import CODE, FLAGS, LoadedSettings, dotted, load_settings
from penstock.config.settings import Settings
from penstock.errors import AppNotFound, ConfigError, InternalError
from penstock.redaction.secrets import SecretUrl


def load(
    folder: Path,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    toml: str | None = None,
    pyproject: str | None = None,
    code: Mapping[str, object] | None = None,
) -> LoadedSettings:
    if toml is not None:
        (folder / "penstock.toml").write_text(toml, encoding="utf-8")
    if pyproject is not None:
        (folder / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    return load_settings(flags or {}, environ or {}, folder, code or {})


def mistake(folder: Path, **said: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, **said)  # type: ignore[arg-type]
    return str(caught.value)


def test_nobody_says_anything(tmp_path: Path) -> None:
    loaded = load(tmp_path)

    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}
    assert set(loaded.sources) == {
        "app",
        "store",
        "durability",
        "retention",
        "journal_retention",
        "runtime.slots",
        "runtime.async_slots",
        "runtime.thread_slots",
        "runtime.process_slots",
        "runtime.lease_ttl_seconds",
        "runtime.beat_seconds",
        "runtime.grace_seconds",
        "runtime.statistics_seconds",
        "runtime.preflight_timeout",
        "tasks.max_attempts",
        "tasks.timeout",
        "tasks.max_crashes",
        "tasks.give_up_after",
        "datasets.root",
        "limits",
        "partitions",
        "providers",
        "budget.total.usd",
        "budget.total.tokens",
        "budget.run.usd",
        "budget.run.tokens",
        "budget.day.usd",
        "budget.day.tokens",
    }


def test_the_earlier_of_flag_environment_files_code_and_default_wins(tmp_path: Path) -> None:
    """Goal: the whole order. Method: take away the strongest voice, one after the other."""
    voices: dict[str, object] = {
        "flags": {"--threads": 6},
        "environ": {"PENSTOCK_RUNTIME__THREAD_SLOTS": "5"},
        "toml": "[runtime]\nthread_slots = 4\n",
        "pyproject": "[tool.penstock.runtime]\nthread_slots = 3\n",
        "code": {"runtime": {"thread_slots": 2}},
    }
    silent: dict[str, object] = {"toml": "", "pyproject": ""}
    seen = []

    for name in [*voices]:
        loaded = load(tmp_path, **voices)  # type: ignore[arg-type]
        slots = loaded.settings.runtime.thread_slots
        seen.append((slots, loaded.sources["runtime.thread_slots"]))
        del voices[name]
        voices |= {name: silent[name]} if name in silent else {}

    assert seen == [
        (6, "--threads"),
        (5, "PENSTOCK_RUNTIME__THREAD_SLOTS"),
        (4, "penstock.toml"),
        (3, "pyproject.toml"),
        (2, CODE),
    ]
    assert load(tmp_path).settings.runtime.async_slots == 256


def test_fields_of_one_table_may_come_from_everywhere(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        flags={"--store": "sqlite:///flag.db", "--app": None},
        environ={"PENSTOCK_APP": "env.py", "PENSTOCK_TASKS__TIMEOUT": "10m", "HOME": "/root"},
        toml='durability = "normal"\n[tasks]\nmax_attempts = 7\n[limits.host]\n"*" = 4\n',
        pyproject='[tool.penstock]\nretention = "7d"\n[tool.penstock.limits.host]\n"a.org" = 2\n',
        code={"tasks": {"max_crashes": 9, "give_up_after": timedelta(hours=1), "timeout": None}},
    )

    settings = loaded.settings
    assert (settings.store, settings.app) == (SecretUrl("sqlite:///flag.db"), "env.py")
    assert (settings.durability, settings.retention) == ("normal", 7 * 86_400.0)
    assert settings.tasks.model_dump() == {
        "max_attempts": 7,
        "timeout": 600.0,
        "max_crashes": 9,
        "give_up_after": 3600.0,
    }
    assert settings.limits == {"host": {"*": 4, "a.org": 2}}
    assert loaded.sources["store"] == "--store"
    assert loaded.sources["app"] == "PENSTOCK_APP"
    assert loaded.sources["tasks.timeout"] == "PENSTOCK_TASKS__TIMEOUT"
    assert loaded.sources["tasks.max_crashes"] == CODE
    assert loaded.sources["limits.host.*"] == "penstock.toml"
    assert loaded.sources['limits.host."a.org"'] == "pyproject.toml"
    assert loaded.sources["runtime.beat_seconds"] == "default"
    assert "limits" not in loaded.sources


def test_limits_may_be_given_by_flags(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        flags={
            "--limit": ["resolver=unpaywall:2", "resolver=*:8", "host=example.org:8080:1"],
            "--max-per-host": 4,
        },
        toml="[limits.resolver]\nunpaywall = 9\ncrossref = 3\n",
    )

    assert loaded.settings.limits == {
        "resolver": {"unpaywall": 2, "*": 8, "crossref": 3},
        "host": {"example.org:8080": 1, "*": 4},
    }
    assert loaded.sources["limits.resolver.unpaywall"] == "--limit"
    assert loaded.sources["limits.resolver.crossref"] == "penstock.toml"
    assert loaded.sources["limits.host.*"] == "--max-per-host"


def test_every_flag_names_a_setting_that_exists(tmp_path: Path) -> None:
    numbers = ("--slots", "--threads", "--process-slots", "--max-per-host")
    values = {
        "--app": "a.py",
        "--store": "sqlite:///a",
        "--out": "out",
        "--limit-usd": "5",
        **dict.fromkeys(numbers, 1),
    }

    loaded = load(tmp_path, flags=values)

    assert set(values) == set(FLAGS)
    assert {dotted(path) for path in FLAGS.values()} == {
        name for name, source in loaded.sources.items() if source.startswith("--")
    }


def test_flag_without_a_setting_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="--slot'"):
        load(tmp_path, flags={"--slot": 1})


def test_pyproject_of_others_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, pyproject="[project]\nname = 'x'\n[tool.ruff]\n").settings == Settings()


def test_variables_of_tests_and_tools_are_let_through(tmp_path: Path) -> None:
    environ = {"PENSTOCK_PG_BIN": "/usr/lib", "PENSTOCK_TEST_SEED": "1", "PENSTOCKED": "x"}

    assert load(tmp_path, environ=environ).settings == Settings()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"environ": {"PENSTOCK_RUNTIME__LEASE_TTL_SECONDS": "-5"}},
            "runtime.lease_ttl_seconds must be > 0, got -5.0 "
            "(from PENSTOCK_RUNTIME__LEASE_TTL_SECONDS).",
        ),
        (
            {"flags": {"--slots": 0}},
            "runtime.slots must be > 0, got 0 (from --slots).",
        ),
        (
            {"toml": "[runtime]\nasync_slots = 2000000\n"},
            "runtime.async_slots must be <= 1000000, got 2000000 (from penstock.toml).",
        ),
        (
            {"pyproject": "[tool.penstock.runtime]\nthread_slots = true\n"},
            "runtime.thread_slots must be a whole number, got True (from pyproject.toml).",
        ),
        (
            {"code": {"tasks": {"max_attempts": 2.5}}},
            "tasks.max_attempts must be a whole number, got 2.5 (from the app's code).",
        ),
        (
            {"toml": 'durability = "ful"\n'},
            "durability must be 'full' or 'normal', got 'ful' (from penstock.toml).",
        ),
        (
            {"toml": 'retention = "30 days"\n'},
            'retention must be a number of seconds or a text such as "90s", "10m", "1h", "30d", '
            "got '30 days' (from penstock.toml).",
        ),
        (
            {"toml": "store = 5\n"},
            "store must be text, got 5 (from penstock.toml).",
        ),
        (
            {"environ": {"PENSTOCK_STORE": ""}},
            "store must not be empty, got '' (from PENSTOCK_STORE).",
        ),
        (
            {"toml": "runtime = 5\n"},
            "runtime must be a table, got 5 (from penstock.toml).",
        ),
        (
            {"toml": "[limits]\nhost = 4\n"},
            "limits.host must be a table, got 4 (from penstock.toml).",
        ),
        (
            {"toml": '[limits.host]\n"a.org" = -1\n'},
            'limits.host."a.org" must be >= 0, got -1 (from penstock.toml).',
        ),
        (
            {"toml": '[limits."a:b"]\nx = 1\n'},
            "limits.a:b must not contain ':', which ends a dimension's name in a limit key, "
            "got 'a:b' (from penstock.toml).",
        ),
        (
            {"flags": {"--limit": ["host=4"]}},
            "--limit must be DIMENSION=NAME:N, such as resolver=unpaywall:2, got 'host=4'.",
        ),
        (
            {"flags": {"--limit": "host=a.org:many"}},
            "limits.host.\"a.org\" must be a whole number, got 'many' (from --limit).",
        ),
        (
            {"pyproject": "[tool]\npenstock = 3\n"},
            "tool.penstock must be a table, got 3 (in pyproject.toml).",
        ),
        (
            {"toml": "[runtime]\nbeat_second = 10\n"},
            "runtime.beat_second is not a setting, got 10 (from penstock.toml); "
            "the nearest known name is runtime.beat_seconds.",
        ),
        (
            {"toml": "[tasks]\nparallel = 2\n"},  # no name, though its table is one
            "tasks.parallel is not a setting, got 2 (from penstock.toml); known names are "
            "tasks.max_attempts, tasks.timeout, tasks.max_crashes, tasks.give_up_after.",
        ),
        (
            {"toml": "beat_seconds = 10\n"},
            "beat_seconds is not a setting, got 10 (from penstock.toml); "
            "the nearest known name is runtime.beat_seconds.",
        ),
        (
            {"code": {"task": {"timeout": 3}}},
            "task is not a setting, got a table (from the app's code); "
            "the nearest known name is tasks.",
        ),
        (
            {"pyproject": "[tool.penstock.tasks]\nfrobnicate_all = 1\n"},
            "tasks.frobnicate_all is not a setting, got 1 (from pyproject.toml); known names are "
            "tasks.max_attempts, tasks.timeout, tasks.max_crashes, tasks.give_up_after.",
        ),
        (
            {"environ": {"PENSTOCK_RUNTIME_BEAT_SECONDS": "5"}},
            "The variable PENSTOCK_RUNTIME_BEAT_SECONDS is not a setting; "
            "the nearest known name is PENSTOCK_RUNTIME__BEAT_SECONDS.",
        ),
        (
            {"environ": {"PENSTOCK_Store": "x"}},
            "The variable PENSTOCK_Store is not a setting; "
            "the nearest known name is PENSTOCK_STORE.",
        ),
        (
            {"environ": {"PENSTOCK_LIMITS__HOST__X": "4"}},
            "The variable PENSTOCK_LIMITS__HOST__X cannot be used: limits are set by [limits.…] "
            "in penstock.toml or by --limit.",
        ),
        (
            {"toml": "[runtime]\nbeat_seconds = 15\n"},
            "runtime.lease_ttl_seconds is 30 (the default) and runtime.beat_seconds is 15 (from "
            "penstock.toml), but two beats must fit into a lease: raise runtime.lease_ttl_seconds "
            "above 30, or set runtime.beat_seconds below 15.",
        ),
        (
            {"toml": "[runtime]\nlease_ttl_seconds = 20\n"},
            "runtime.lease_ttl_seconds is 20 (from penstock.toml) and runtime.beat_seconds is 10 "
            "(the default), but two beats must fit into a lease: raise runtime.lease_ttl_seconds "
            "above 20, or set runtime.beat_seconds below 10.",
        ),
    ],
)
def test_mistake_is_told_in_one_sentence(
    tmp_path: Path, said: dict[str, object], sentence: str
) -> None:
    assert mistake(tmp_path, **said) == sentence


def test_unknown_name_is_found_even_where_a_stronger_source_speaks(tmp_path: Path) -> None:
    text = mistake(tmp_path, flags={"--store": "sqlite:///x"}, toml='stor = "sqlite:///y"\n')

    assert "the nearest known name is store." in text


@pytest.mark.parametrize(
    ("content", "start"),
    [
        (b'app = "a.py"\nstore = \n', "penstock.toml, line 2, column "),
        (b'app = "a.py"\napp = "b.py"\n', "penstock.toml, line 2, column "),
        (b'app = "a.py"\n\n[runtime', "penstock.toml, line 3"),
        (b'app = "a.py"\n\xff = 1\n', "penstock.toml, line 2, is not UTF-8"),
        (b"retention = " + b"9" * 5000, "penstock.toml, line 1"),
        (b"retention = " + b"[" * 5000, "penstock.toml is nested too deeply"),
    ],
)
def test_broken_file_is_named_with_its_line(tmp_path: Path, content: bytes, start: str) -> None:
    (tmp_path / "penstock.toml").write_bytes(content)

    text = mistake(tmp_path)

    assert text.startswith(start)
    assert text.count("\n") == 0


def test_broken_pyproject_is_named_too(tmp_path: Path) -> None:
    assert mistake(tmp_path, pyproject="[tool.penstock\n").startswith("pyproject.toml, line 1")


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").mkdir()

    assert "penstock.toml cannot be read: Is a directory." in mistake(tmp_path)


@pytest.mark.parametrize(
    "toml",
    [
        'stor = "postgresql://me:hunter2@host/db"\n',
        'stor = "postgresql://me:hun@hunter2@host/db"\n',
        'stor = "postgresql://host/db?user=me&password=hunter2"\n',
        'api_token = "hunter2"\n',
    ],
)
def test_secrets_stay_out_of_messages(tmp_path: Path, toml: str) -> None:
    text = mistake(tmp_path, toml=toml)

    assert "hunter2" not in text
    assert "is not a setting" in text


def test_value_of_an_unknown_variable_stays_out_of_messages(tmp_path: Path) -> None:
    assert "hunter2" not in mistake(tmp_path, environ={"PENSTOCK_TOKEN": "hunter2"})


def test_long_values_are_cut(tmp_path: Path) -> None:
    assert len(mistake(tmp_path, environ={"PENSTOCK_RETENTION": "x" * 10_000})) < 300


@example("RUNTIME__BEAT_SECONDS", "15")  # a beat that does not fit into a lease
@given(
    st.sampled_from(["RUNTIME__ASYNC_SLOTS", "RUNTIME__BEAT_SECONDS", "TASKS__TIMEOUT", "STORE"]),
    st.text(),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_of_a_variable_is_read_or_refused_by_name(
    tmp_path: Path, field: str, text: str
) -> None:
    name = f"PENSTOCK_{field}"
    refusal = f"(from {name})."

    try:
        load_settings({}, {name: text}, tmp_path, {})
    except ConfigError as error:
        refusal = str(error)

    assert f"(from {name})" in refusal


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ({}, (256, 32)),
        ({"slots": 2}, (2, 2)),
        ({"slots": 1_000}, (1_000, 32)),
        ({"slots": 1_000, "async_slots": 4}, (4, 32)),
        ({"slots": 8, "thread_slots": 2}, (8, 2)),
    ],
)
def test_slots_bound_every_kind(
    tmp_path: Path, runtime: dict[str, int], expected: tuple[int, int]
) -> None:
    counts = load(tmp_path, code={"runtime": runtime}).settings.runtime.slots_by_kind()

    assert (counts["async"], counts["thread"]) == expected


def test_the_name_of_older_tools_is_answered_with_ours(tmp_path: Path) -> None:
    for table in ("[runtime]\n", ""):
        with pytest.raises(ConfigError, match=r"known name is runtime\.thread_slots\.$"):
            load(tmp_path, toml=f"{table}max_workers = 4\n")
    for name in ("PENSTOCK_MAX_WORKERS", "PENSTOCK_RUNTIME__MAX_WORKERS"):
        with pytest.raises(ConfigError, match=r"name is PENSTOCK_RUNTIME__THREAD_SLOTS\.$"):
            load(tmp_path, toml="", environ={name: "4"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["penstock.toml", "pyproject.toml", "."])
def test_a_script_does_not_read_settings_of_another_user_where_it_happens_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    load(tmp_path, toml="[tasks]\nmax_attempts = 7", pyproject="")
    os.chown(tmp_path / name, 12_345, -1)

    with pytest.raises(AppNotFound, match=r"belongs to another user \(number 12345\)"):
        load(tmp_path)

    monkeypatch.syspath_prepend(tmp_path)  # what runs lies in that folder
    assert load(tmp_path).settings.tasks.max_attempts == 7
    monkeypatch.undo()
    assert load(tmp_path, environ={"PENSTOCK_APP": "of.it:app"}).settings.tasks.max_attempts == 7

# SPDX-License-Identifier: Apache-2.0
"""Is a file that was removed, replaced or moved told from the one that is still there?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.stores.sqlite import session
from penstock.stores.sqlite.session import FileIdentity


@pytest.fixture(params=["statx", "stat"], autouse=True)
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stat":
        monkeypatch.setattr(session, "_statx", None)
    elif session._statx is None:
        pytest.skip("this system has no statx")


def test_a_file_that_only_grows_is_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log-ä"
    log.write_text("1")
    named = FileIdentity(str(log))

    log.write_text("12")

    assert named.is_the_same()


def test_a_file_that_was_removed_and_made_again_is_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1")
    with log.open():  # or its number may be given to the next one
        named = FileIdentity(str(log))

        log.unlink()
        assert not named.is_the_same()
        log.write_text("1")
        assert not named.is_the_same()


def test_a_file_that_another_was_renamed_over_is_another(tmp_path: Path) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    log.write_text("1")
    other.write_text("1")
    named = FileIdentity(str(log))

    other.rename(log)

    assert not named.is_the_same()


def test_a_file_that_was_moved_away_is_missed_until_it_is_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1")
    named = FileIdentity(str(log))

    log.rename(tmp_path / "away")
    assert not named.is_the_same()
    (tmp_path / "away").rename(log)
    assert named.is_the_same()


def test_a_file_that_was_never_there_is_not_the_same(tmp_path: Path) -> None:
    named = FileIdentity(str(tmp_path / "log"))

    assert not named.is_the_same()
    (tmp_path / "log").write_text("1")
    assert not named.is_the_same()

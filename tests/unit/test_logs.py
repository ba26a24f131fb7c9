# SPDX-License-Identifier: Apache-2.0
"""Does every log line name its layer, on one line?"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from penstock.logs import (
    HTTP_LIBRARIES,
    MARGIN,
    SHOWN_LENGTH,
    layer_of,
    set_up_logging,
)
from penstock.redaction.content_guard import LOG_ATTRIBUTE, QUOTED


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for library in HTTP_LIBRARIES:
        logging.getLogger(library).setLevel(logging.NOTSET)


def test_text_lines_name_time_level_and_layer(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "text")

    logging.getLogger("penstock.worker").warning("job %r\n\x1b[2J", "k")
    logging.getLogger("penstock.worker").debug("not shown")
    logging.getLogger("boto3").info("another's")

    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("Z WARNING worker: job 'k'\\n\\x1b[2J")
    assert lines[1].endswith("INFO boto3: another's")


@pytest.mark.parametrize(("level", "shown"), [("info", 1), ("debug", 2)])
def test_a_line_for_every_request_is_shown_only_to_who_asks_for_everything(
    capsys: pytest.CaptureFixture[str], level: str, shown: int
) -> None:
    set_up_logging(level, "text")

    logging.getLogger("httpx2").info("HTTP Request: GET ...")
    logging.getLogger("httpx2").warning("something is wrong")

    assert len(capsys.readouterr().err.splitlines()) == shown


def test_json_lines_are_documents(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug", "json")

    try:
        raise ValueError("why\ud800")
    except ValueError:
        logging.getLogger("penstock.task").exception("it failed")

    document = json.loads(capsys.readouterr().err)
    assert document["layer"] == "task"
    assert document["level"] == "error"
    assert document["message"] == "it failed"
    assert "ValueError: why" in document["error"]


def test_a_traceback_keeps_its_lines_and_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "text")

    try:
        raise ValueError("\x1b[31m")
    except ValueError:
        logging.getLogger("penstock.task").exception("it failed")

    err = capsys.readouterr().err
    assert "\nValueError: \\x1b[31m\n" in err
    assert "\x1b" not in err


@pytest.mark.parametrize("glue", [" ", ""])
def test_of_a_huge_message_no_more_is_looked_at_than_its_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, glue: str
) -> None:
    set_up_logging("info", "text")
    key = "k" * 4_000
    monkeypatch.setenv("HUGE_KEY", key)
    looked_at = []

    def without(text: str) -> str:
        looked_at.append(len(text))
        return text.replace("é" * 4_000, QUOTED)

    for shift in (0, 2_000, 4_000, MARGIN, MARGIN + 2_000):  # where the key is cut, if it is
        beside = "é" * (SHOWN_LENGTH + MARGIN - shift)
        pieces = [beside, key, "é" * 1_000_000, key, beside]
        try:
            raise ValueError(glue.join(pieces))
        except ValueError:
            logging.getLogger("penstock.task").exception("failed", extra={LOG_ATTRIBUTE: without})

    err = capsys.readouterr().err
    assert max(looked_at) <= SHOWN_LENGTH + MARGIN
    assert "kkk" not in err
    assert err.count("characters …") == 5
    assert len(err) <= 5 * (2 * SHOWN_LENGTH + 200)
    assert err.count("Traceback (most recent call last)") == 5


def test_setting_up_twice_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "text")
    set_up_logging("info", "text")

    logging.getLogger("penstock.run").info("once")

    assert capsys.readouterr().err.count("once") == 1


def test_layers_are_named_without_the_package() -> None:
    assert layer_of("penstock.runtime.x") == "runtime.x"
    assert layer_of("root") == "root"


def test_quotes_are_looked_for_only_in_what_is_shown_of_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging("info", "text")
    looked_at: list[int] = []

    def without(text: str) -> str:
        looked_at.append(len(text))
        return text.replace("yellow", "[content]")

    try:
        raise ValueError("yellow bird " * 100_000)
    except ValueError:
        logging.getLogger("penstock.worker").exception("boom", extra={LOG_ATTRIBUTE: without})

    assert "yellow" not in capsys.readouterr().err
    assert max(looked_at) < 4 * SHOWN_LENGTH

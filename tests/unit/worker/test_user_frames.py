# SPDX-License-Identifier: Apache-2.0
"""A traceback has the user's frames and the classes of errors, and no value."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from penstock.retry.classify import Classified, FailureClass, RemoteError
from penstock.worker.user_frames import TRACEBACK_BYTES_MAX, traceback_of, where_of

SECRET = "zq-value-that-nobody-may-read"


def raised_by(body: Callable[[], object]) -> BaseException:
    try:
        body()
    except BaseException as error:
        error.add_note(SECRET)
        return error
    raise AssertionError("it has not raised")


def _price(record: dict[str, int]) -> int:
    return record[SECRET]


def _deep(n: int) -> int:
    return _deep(n - 1) if n else _price({})


def _caused() -> None:
    try:
        _price({})
    except KeyError as error:
        raise ValueError(SECRET) from error


def _while_handling() -> None:
    try:
        _price({})
    except KeyError:
        int(SECRET)


def _grouped() -> None:
    raise BaseExceptionGroup(SECRET, [raised_by(_caused) for _ in range(9)])


def lines_of(body: Callable[[], object]) -> list[str]:
    text = traceback_of(raised_by(body))
    assert text is not None
    assert SECRET not in text
    return [line.partition(":")[2].lstrip("0123456789") or line for line in text.split("\n")]


def test_frames_name_file_line_and_function_and_the_last_is_where_it_was_raised() -> None:
    error = raised_by(lambda: _price({}))

    head, *frames = (traceback_of(error) or "").split("\n")

    assert head == "KeyError"
    assert frames[-1].startswith("  worker/test_user_frames.py:")
    assert frames[-1].endswith(" in _price")
    assert where_of(error) == frames[-1].strip().removeprefix("worker/")


def test_frames_of_libraries_are_left_out() -> None:
    text = traceback_of(raised_by(lambda: json.loads("{")))

    assert text is not None
    assert "decoder" not in text


def test_a_cause_and_what_was_handled_follow_with_their_frames() -> None:
    assert " caused by KeyError" in " ".join(["", *lines_of(_caused)])
    assert "while handling KeyError" in lines_of(_while_handling)


def test_of_a_group_some_members_are_told() -> None:
    lines = lines_of(_grouped)

    assert lines[0] == "ExceptionGroup"
    assert sum("ValueError" in line for line in lines) == 3


@pytest.mark.parametrize("depth", [3, 900])
def test_a_recursion_is_counted_and_not_written_out(depth: int) -> None:
    text = traceback_of(raised_by(lambda: _deep(depth))) or ""

    assert f" in _deep ({depth} times)" in text or f" in _deep ({depth + 1} times)" in text
    assert len(text.split("\n")) < 9


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    one, other = raised_by(_caused), raised_by(_caused)
    one.__cause__, other.__cause__ = other, one

    assert (traceback_of(one) or "").count("ValueError") == 2


def test_no_traceback_is_longer_than_its_bound() -> None:
    def named(n: int) -> Callable[[], object]:
        found: dict[str, Callable[[], object]] = {}
        exec(f"def {'f' * 190}{n}(g=None):\n g() if g else 1/0", found)
        return found[f"{'f' * 190}{n}"]

    body: Callable[[], object] = named(0)
    for n in range(1, 60):
        body = _calls(named(n), body)

    assert len((traceback_of(raised_by(body)) or "").encode()) <= TRACEBACK_BYTES_MAX


def _calls(outer: Callable[..., object], inner: Callable[[], object]) -> Callable[[], object]:
    return lambda: outer(inner)


def test_an_error_without_a_frame_of_the_user_has_none() -> None:
    assert traceback_of(ValueError("never raised")) is None


def test_an_error_from_elsewhere_brings_its_traceback() -> None:
    found = RemoteError("E", "m", "w", Classified(FailureClass.UNKNOWN), "E\n  a.py:1 in f")

    assert traceback_of(found) == "E\n  a.py:1 in f"

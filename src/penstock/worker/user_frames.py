# SPDX-License-Identifier: Apache-2.0
"""Where an error was raised in the user's code, and its traceback: frames without values.

Of frames only file, line and function are told, of errors only the class: neither the code nor what
variables held can quote a payload, a prompt or a key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby, islice

from penstock.model.job import NAME_LENGTH_MAX
from penstock.redaction.secrets import storable_text
from penstock.retry.classify import RemoteError

FRAMES_SHOWN = 20  # of one error, the last ones
FRAMES_WALKED = 2_000  # a recursion may have left more
ERRORS_SHOWN = 8  # causes, and members of groups
MEMBERS_SHOWN = 3  # of a group
TRACEBACK_BYTES_MAX = 8 * 1024

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def where_of(error: BaseException) -> str | None:
    """The last frame that is not a library's."""
    if isinstance(error, RemoteError):
        return error.where
    found = None
    for path, line, function in _user_frames(error):
        found = f"{os.path.basename(path)}:{line} in {function}"
    return None if found is None else storable_text(found)[:NAME_LENGTH_MAX]


def traceback_of(error: BaseException) -> str | None:
    """The user's frames of an error and of what it came from, the last call last; None: none."""
    if isinstance(error, RemoteError):
        return error.traceback
    lines, has_frames = [], False
    for relation, one in islice(_family(error, "", set()), ERRORS_SHOWN):
        frames = _frame_lines(one)
        has_frames = has_frames or bool(frames)
        lines += [f"{relation}{type(one).__qualname__[:NAME_LENGTH_MAX]}", *frames]
    if not has_frames:
        return None
    text = storable_text("\n".join(lines)).encode()[:TRACEBACK_BYTES_MAX]
    return text.decode(errors="ignore")


def _family(
    error: BaseException, relation: str, seen: set[int]
) -> Iterator[tuple[str, BaseException]]:
    """An error, members of it if it is a group, and what it came from; each once."""
    if id(error) in seen:
        return
    seen.add(id(error))
    yield relation, error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions[:MEMBERS_SHOWN]:
            yield from _family(member, "one of its errors: ", seen)
    if error.__cause__ is not None:
        yield from _family(error.__cause__, "caused by ", seen)
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _family(error.__context__, "while handling ", seen)


def _frame_lines(error: BaseException) -> list[str]:
    """A line for each frame; what a recursion repeats is counted."""
    places = [_place(*frame) for frame in islice(_user_frames(error), FRAMES_WALKED)]
    lines = []
    for place, same in groupby(places):
        count = sum(1 for _ in same)
        lines.append(f"  {place}" if count == 1 else f"  {place} ({count} times)")
    if len(lines) > FRAMES_SHOWN:
        lines = [f"  … {len(lines) - FRAMES_SHOWN} more", *lines[-FRAMES_SHOWN:]]
    return lines


def _place(path: str, line: int, function: str) -> str:
    """A frame, its file with the folder that it is in."""
    short = os.sep.join(path.split(os.sep)[-2:])
    return f"{short}:{line} in {function[:NAME_LENGTH_MAX]}"


def _user_frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not _is_library(code.co_filename):
            yield code.co_filename, step.tb_lineno or 0, code.co_name
        step = step.tb_next


def _is_library(path: str) -> bool:
    return path.startswith((_OURS, "<", _STANDARD)) or "site-packages" in path

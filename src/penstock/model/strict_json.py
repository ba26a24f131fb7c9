# SPDX-License-Identifier: Apache-2.0
"""Strict JSON: the values that payloads and results may have, as every store can keep them.

No NaN or infinity, no lone surrogates, no NUL, no duplicate keys, depth at most 64, integers within
64 bits. A refusal names the path inside the document.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from penstock.errors import NotJson, PayloadError, StrictJsonError

DEPTH_MAX = 64
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1

_encoder = msgspec.json.Encoder()

PATH_LENGTH_MAX = 200  # characters of a path in a message
STEP_LENGTH_MAX = 40  # characters of one key in it

#: Where in a document: the way to the container, and the last step. Written out only in an error.
_Way = tuple[Any, str | int] | None
#: What to do about values that are often meant to be something else, by the name of their type.
_HINTS = {
    "coroutine": "did you forget 'await'?",
    "generator": "collect it with list(...)",
    "async_generator": "collect it with [x async for x in ...]",
    "bytes": "decode it, or write it to a file and return its name",
    "Response": "return reply.json() or reply.text",
    "ndarray": "give its .tolist()",
    "Series": "give its .to_list()",
    "DataFrame": "return its rows, or write it to a file and return its name",
}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class _Twice(dict[str, Any]):
    """An object of a document that names one key twice."""

    key = ""


class NotPlain(StrictJsonError):
    """A value of another type, which may still become plain: a dataclass, a date, an enum."""


class TooLarge(StrictJsonError):
    """A document is longer than what is kept."""


def check(value: object, *, limit_bytes: int | None = None) -> None:
    """Raise StrictJsonError unless `value` is strict JSON made of plain Python values.

    With a limit, a document that must be longer is refused before it is written out: a value that
    holds the same list many times over may be small in memory and endless as text.
    """
    todo: list[tuple[object, _Way, int]] = [(value, None, 0)]
    seen = 0
    while todo:
        item, way, depth = todo.pop()
        kind = type(item)
        if item is None or kind is bool:
            continue
        if kind is str:
            _check_text(item, way)  # type: ignore[arg-type]
        elif kind is int:
            if not INTEGER_MIN <= item <= INTEGER_MAX:  # type: ignore[operator]
                raise StrictJsonError(_written(way), "an integer outside 64 bits")
        elif kind is float:
            if not math.isfinite(item):  # type: ignore[arg-type]
                problem = f"{_NOT_FINITE[str(item)]} is not JSON; null (None) is"
                raise StrictJsonError(_written(way), problem)
        elif kind is dict or kind is _Twice:
            if depth == DEPTH_MAX:
                raise StrictJsonError(*_too_deep(way, value))
            if kind is _Twice:
                problem = f"the key {_short(item.key)!r} occurs twice in one object"  # type: ignore[attr-defined]
                raise StrictJsonError(_written(way), problem)
            for name, inner in item.items():  # type: ignore[attr-defined]
                if type(name) is not str:
                    problem = f"a key of type {type(name).__name__}, not str"
                    raise NotPlain(_written(way), problem)
                _check_text(name, way)
                todo.append((inner, (way, name), depth + 1))
        elif kind is list or kind is tuple:
            if depth == DEPTH_MAX:
                raise StrictJsonError(*_too_deep(way, value))
            for index, inner in enumerate(item):  # type: ignore[arg-type]
                todo.append((inner, (way, index), depth + 1))
        else:
            raise NotPlain(_written(way), _no_type_of_json(kind))
        seen += 1
        if limit_bytes is not None and seen + len(todo) > limit_bytes:  # each has a byte at least
            raise TooLarge("$", f"more than {limit_bytes:,} bytes, the most that are kept")


def _check_text(text: str, way: _Way) -> None:
    if "\x00" in text:
        raise StrictJsonError(_written(way), "text with a NUL character")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StrictJsonError(_written(way), "text with a lone surrogate") from None


def _written(way: _Way) -> str:
    """A path such as `$.items[3]["a key"]`, bounded and printable."""
    steps: list[str] = []
    while way is not None:
        way, step = way
        if isinstance(step, int):
            steps.append(f"[{step}]")
        elif step.isidentifier() and len(step) <= STEP_LENGTH_MAX:
            steps.append(f".{step}")
        else:
            steps.append(f"[{json.dumps(_short(step))}]")
    path = "$" + "".join(reversed(steps))
    return path if len(path) <= PATH_LENGTH_MAX else f"{path[:PATH_LENGTH_MAX]}…"


def _short(text: str) -> str:
    return text if len(text) <= STEP_LENGTH_MAX else f"{text[:STEP_LENGTH_MAX]}…"


def _too_deep(way: _Way, value: object) -> tuple[str, str]:
    """What is nested too deep: without end, if it holds itself."""
    steps: list[str | int] = []
    while way is not None:
        way, step = way
        steps.append(step)
    above: dict[int, _Way] = {}
    item: Any = value
    for step in reversed(steps):
        if id(item) in above:
            return _written(way), f"holds {_written(above[id(item)])} again: a circle"
        above[id(item)] = way
        item, way = item[step], (way, step)
    if id(item) in above:
        return _written(way), f"holds {_written(above[id(item)])} again: a circle"
    return _written(way), f"nested deeper than {DEPTH_MAX} levels"


def plain(value: object) -> Any:  # noqa: ANN401 (JSON is dynamic)
    """Turn dataclasses, structs, dates, enums and the like into plain JSON values.

    Bytes are left as they are, so that `check` refuses them instead of encoding them silently.
    """
    return msgspec.to_builtins(
        value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_unknown
    )


def _unknown(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # a pydantic model, without importing pydantic
    if callable(dump):
        return dump(mode="json")
    raise StrictJsonError("$", _no_type_of_json(type(value)))


def _no_type_of_json(kind: type) -> str:
    name = kind.__name__
    said = "give its .item()" if kind.__module__ == "numpy" and hasattr(kind, "item") else None
    said = _HINTS.get(name, said)
    hint = f"; {said}" if said else ""
    return f"a value of type {name}, which JSON does not have{hint}"


def dumps(value: object, *, limit_bytes: int, at_once: bool = False) -> str:
    """Turn a value into strict JSON text, or say where it is not.

    With `at_once` no code of its classes is run, which may block: NotPlain, if that would have to.
    """
    if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:
        return str(value)
    try:
        check(value, limit_bytes=limit_bytes)
    except NotPlain:
        if at_once:
            raise
        value = _made_plain(value)
        _check_plain(value, limit_bytes)
    text = _encoder.encode(value)
    if len(text) > limit_bytes:
        raise TooLarge("$", f"{len(text):,} bytes; at most {limit_bytes:,} are kept")
    return text.decode()


def _check_plain(value: object, limit_bytes: int) -> None:
    try:
        check(value, limit_bytes=limit_bytes)
    except NotPlain as final:
        raise StrictJsonError(final.path, final.problem) from None


def _made_plain(value: object) -> object:
    """The value in plain types, or a refusal that knows the place."""
    problem = _hindrance(value)
    if problem is None:
        return plain(value)
    todo: list[tuple[Any, _Way, int]] = [(value, None, 0)]
    while todo:
        item, way, depth = todo.pop()
        steps = _steps(item) if depth < DEPTH_MAX else None
        if steps is not None:
            todo += [(inner, (way, step), depth + 1) for step, inner in steps]
        elif (found := _hindrance(item)) is not None:
            raise StrictJsonError(_written(way), found)
    raise StrictJsonError("$", problem)


def _steps(item: object) -> list[tuple[str | int, Any]] | None:
    """What a container holds; None for everything that must be looked at as a whole."""
    if type(item) is dict and all(type(name) is str for name in item):
        return list(item.items())
    return list(enumerate(item)) if type(item) is list or type(item) is tuple else None


def _hindrance(value: object) -> str | None:
    """Why a value cannot be made plain."""
    try:
        plain(value)
    except StrictJsonError as error:
        return error.problem
    except RecursionError:
        return f"nested deeper than {DEPTH_MAX} levels, or a circle"
    except Exception as error:  # what a user's own model raises while it is dumped
        return str(error) or type(error).__name__
    return None


def is_same(one: str, other: str) -> bool:
    """Whether two documents have the same value, however it is written; both are strict."""
    return one == other or _is_same(msgspec.json.decode(one), msgspec.json.decode(other))


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(v, other[k]) for k, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def loads(text: str | bytes) -> Any:  # noqa: ANN401 (JSON is dynamic)
    """Read strict JSON text from outside, or say where it is not."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise StrictJsonError("$", f"nested deeper than {DEPTH_MAX} levels") from None
    except json.JSONDecodeError as error:
        raise NotJson(error.msg.lower(), error.lineno, error.colno) from None
    except UnicodeDecodeError as error:
        raise PayloadError(f"byte {error.start + 1}: not UTF-8") from None
    except ValueError as error:  # an integer of thousands of digits
        raise PayloadError(str(error)) from None
    check(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    twice = _Twice(found)
    twice.key = name
    return twice

# SPDX-License-Identifier: Apache-2.0
"""Which values may cross into a store?

JSON as every store can keep it: no NaN or infinity, no lone surrogates, no NUL, no duplicate keys,
depth at most 64, integers within 64 bits. A refusal names the path inside the document.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from penstock.errors import PayloadError, StrictJsonError

DEPTH_MAX = 64
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1

_encoder = msgspec.json.Encoder()
_sorting_encoder = msgspec.json.Encoder(order="deterministic")


def check(value: object, path: str = "$") -> None:
    """Raise StrictJsonError unless `value` is strict JSON made of plain Python values."""
    todo: list[tuple[object, str, int]] = [(value, path, 0)]
    while todo:
        item, where, depth = todo.pop()
        kind = type(item)
        if item is None or kind is bool:
            continue
        if kind is str:
            _check_text(item, where)  # type: ignore[arg-type]
        elif kind is int:
            if not INTEGER_MIN <= item <= INTEGER_MAX:  # type: ignore[operator]
                raise StrictJsonError(where, "an integer outside 64 bits")
        elif kind is float:
            if not math.isfinite(item):  # type: ignore[arg-type]
                raise StrictJsonError(where, f"{item} is not JSON")
        elif kind is dict:
            if depth == DEPTH_MAX:
                raise StrictJsonError(where, f"nested deeper than {DEPTH_MAX} levels")
            for name, inner in item.items():  # type: ignore[attr-defined]
                if type(name) is not str:
                    raise StrictJsonError(where, f"a key of type {type(name).__name__}, not str")
                _check_text(name, where)
                todo.append((inner, f"{where}.{name}", depth + 1))
        elif kind is list or kind is tuple:
            if depth == DEPTH_MAX:
                raise StrictJsonError(where, f"nested deeper than {DEPTH_MAX} levels")
            for index, inner in enumerate(item):  # type: ignore[arg-type]
                todo.append((inner, f"{where}[{index}]", depth + 1))
        else:
            raise StrictJsonError(where, f"a value of type {kind.__name__}, which JSON has not")


def _check_text(text: str, where: str) -> None:
    if text.isascii():
        if "\x00" in text:
            raise StrictJsonError(where, "text with a NUL character")
        return
    if "\x00" in text:
        raise StrictJsonError(where, "text with a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StrictJsonError(where, "text with a lone surrogate") from None


def plain(value: object) -> Any:  # noqa: ANN401 (JSON is dynamic)
    """Turn dataclasses, structs, dates, enums and the like into plain JSON values.

    Bytes are left as they are, so that `check` refuses them instead of encoding them silently.
    """
    if type(value) in _PLAIN:
        return value
    return msgspec.to_builtins(
        value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_unknown
    )


_PLAIN = frozenset({type(None), bool, int, float, str})


def _unknown(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # a pydantic model, without importing pydantic
    if callable(dump):
        return dump(mode="json")
    raise StrictJsonError("$", f"a value of type {type(value).__name__}, which JSON has not")


def dumps(value: object, *, limit_bytes: int, deterministic: bool = False) -> str:
    """Turn a value into strict JSON text, or say where it is not."""
    if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:
        return str(value)
    try:
        value = plain(value)
    except StrictJsonError:
        raise
    except Exception as error:  # what a user's own model raises while it is dumped
        raise StrictJsonError("$", _sentence(error)) from None
    check(value)
    text = (_sorting_encoder if deterministic else _encoder).encode(value)
    if len(text) > limit_bytes:
        raise StrictJsonError("$", f"{len(text):,} bytes; at most {limit_bytes:,} are kept")
    return text.decode()


def _sentence(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return f"nested deeper than {DEPTH_MAX} levels, or a circle"
    return str(error) or type(error).__name__


def loads(text: str | bytes) -> Any:  # noqa: ANN401 (JSON is dynamic)
    """Read strict JSON text from outside, or say where it is not."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise StrictJsonError("$", f"nested deeper than {DEPTH_MAX} levels") from None
    except json.JSONDecodeError as error:
        raise PayloadError(f"not JSON at column {error.colno}: {error.msg.lower()}") from None
    except UnicodeDecodeError as error:
        raise PayloadError(f"byte {error.start + 1}: not UTF-8") from None
    except ValueError as error:  # an integer of thousands of digits
        raise PayloadError(str(error)) from None
    check(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError("$", f"the key {name!r} stands twice in one object")
            seen.add(name)
    return found


def _constant(name: str) -> None:
    raise StrictJsonError("$", f"{name} is not JSON")

# SPDX-License-Identifier: Apache-2.0
"""What is a value of a partition called?

Text is its own name, numbers, dates and enums have their text, and what consists of parts
(dataclasses, structs, tuples) has the names of its parts with a `/` in between. Inside a part `/`
and `%` are percent-encoded, so two values have one name only if their parts are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from enum import Enum
from uuid import UUID

import msgspec

from penstock.definitions.request import check_name
from penstock.errors import UsageError

DEPTH_MAX = 8  # of parts inside parts
SHOWN_MAX = 100  # characters of a value in a sentence


def name_of(value: object) -> str:
    """The name of a value; UsageError, a sentence about the value, if it has none."""
    parts = list(_parts(value, 0))
    if not parts or not all(parts):
        raise UsageError(f"{shown(value)} has an empty name, or an empty part in it")
    name = "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)
    try:
        check_name("partition name", name)
    except UsageError as error:
        raise UsageError(f"{shown(value)} cannot be used: {str(error)[:200].rstrip('.')}") from None
    return name


def shown(value: object) -> str:
    """A value in a sentence, bounded."""
    try:
        text = repr(value)
    except Exception:  # a user's own method
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _parts(value: object, depth: int) -> Iterable[str]:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, str | int | float | Decimal | UUID):
        yield str(value)
    elif isinstance(value, date | time):
        yield value.isoformat()
    else:
        inner = _inside(value)
        if inner is None or depth == DEPTH_MAX:
            raise UsageError(
                f"{shown(value)} is of type {type(value).__name__}, which has no name of its own; "
                "name its values with key="
            )
        for part in inner:
            yield from _parts(part, depth + 1)


def _inside(value: object) -> list[object] | None:
    """The parts of a value; None if it has none."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    fields = getattr(type(value), "model_fields", None)  # a pydantic model, without importing it
    return [getattr(value, name) for name in fields] if isinstance(fields, dict) else None

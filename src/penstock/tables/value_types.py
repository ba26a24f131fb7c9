# SPDX-License-Identifier: Apache-2.0
"""Types of the values of columns: found in values, in JSON schemas and in annotations.

A part of a table is a file of its own, and all parts of a table have one schema. So the type of a
column is known before its first value is made: it follows from how the column is declared, and of
a seed from all of its records. What no column of one type can hold is kept as JSON text.
"""

from __future__ import annotations

import base64
import enum
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec

from penstock.model.strict_json import INTEGER_MAX, INTEGER_MIN
from penstock.outputs.parquet import arrow

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal[
    "null", "bool", "int", "float", "text", "date", "time", "utc", "bytes", "json",
    "list", "record", "arrow",
]  # fmt: skip


class NoType(Exception):
    """A value or an annotation has no type that a column can have; the text says which."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """What the values of a column, or of a field, are; each may be missing."""

    kind: Kind
    fields: tuple[tuple[str, ValueType], ...] = ()  # of a record, by name
    element: ValueType | None = None  # of a list
    known: Any = None  # a type of Arrow that was given

    @property
    def is_json(self) -> bool:
        """Whether values are kept as JSON text."""
        return self.kind == "json"

    @property
    def is_stored_as_is(self) -> bool:
        """Whether Arrow takes its values as they are."""
        if self.kind == "list":
            return self.element is None or self.element.is_stored_as_is
        if self.kind == "record":
            return all(inner.is_stored_as_is for _, inner in self.fields)
        return self.kind not in ("json", "float")

    @property
    def arrow(self) -> pa.DataType:
        """The same, as a column of a file has it."""
        pa = arrow()
        if self.kind == "arrow":
            return self.known
        if self.kind == "list":
            return pa.list_((self.element or NULL).arrow)
        if self.kind == "record":
            return pa.struct([(name, inner.arrow) for name, inner in self.fields])
        simple = {
            "null": pa.null(),
            "bool": pa.bool_(),
            "int": pa.int64(),
            "float": pa.float64(),
            "text": pa.string(),
            "json": pa.string(),
            "date": pa.date32(),
            "time": pa.timestamp("us"),
            "utc": pa.timestamp("us", tz="UTC"),
            "bytes": pa.binary(),
        }
        return simple[self.kind]

    @property
    def settled(self) -> ValueType:
        """The same with a place for every value: nothing but missing ones are texts."""
        if self.kind == "null":
            return TEXT
        if self.kind == "list":
            element = (self.element or NULL).settled
            return JSON if element.is_json else list_of(element)
        if self.kind == "record":
            fields = {name: inner.settled for name, inner in self.fields}
            return record_of(fields) if fields else JSON
        return self

    def canonical(self, value: Any) -> Any:  # noqa: ANN401
        """A value that fits, as it will be when it is read again from a part."""
        if value is None or self.kind == "arrow":
            return value
        if self.kind == "json":
            return msgspec.json.decode(msgspec.json.encode(value))
        if self.kind == "list" and self.element is not None:
            return [self.element.canonical(one) for one in value]
        if self.kind == "record":
            return {name: inner.canonical(value.get(name)) for name, inner in self.fields}
        return float(value) if self.kind == "float" else value

    def stored(self, value: Any) -> Any:  # noqa: ANN401
        """A value that fits, as Arrow takes it."""
        if value is None or self.kind == "arrow":
            return value
        if self.kind == "json":
            return msgspec.json.encode(value).decode()
        if self.kind == "list" and self.element is not None:
            return [self.element.stored(one) for one in value]
        if self.kind == "record":
            return {name: inner.stored(value.get(name)) for name, inner in self.fields}
        return float(value) if self.kind == "float" else value

    def restored(self, value: Any) -> Any:  # noqa: ANN401
        """A value from what Arrow has."""
        if value is None or self.is_stored_as_is:
            return value
        if self.kind == "json":
            return msgspec.json.decode(value)
        if self.kind == "list" and self.element is not None:
            return [self.element.restored(one) for one in value]
        if self.kind == "record":
            return {name: inner.restored(value.get(name)) for name, inner in self.fields}
        return value

    def to_json(self, value: Any) -> str | None:  # noqa: ANN401
        """A value as a text that `from_json` reads; None: it would not come back as it was."""
        try:
            text = json.dumps(value, default=_json_text, ensure_ascii=False, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            return None
        if self is ANYTHING and json.loads(text) != value:  # such as a tuple
            return None
        return text

    def from_json(self, text: str) -> Any:  # noqa: ANN401
        """A value from such a text; ValueError if it is none of this type."""
        value = self._read(json.loads(text))
        if self.problem(value) is not None:
            raise ValueError(f"a value that {self.problem(value)}")
        return value

    def _read(self, value: Any) -> Any:  # noqa: ANN401
        read = _FROM_JSON.get(self.kind)
        if read is not None and isinstance(value, str):
            return read(value)
        if self.kind == "list" and self.element is not None and isinstance(value, list):
            return [self.element._read(one) for one in value]
        if self.kind == "record" and isinstance(value, dict):
            return {name: inner._read(value.get(name)) for name, inner in self.fields}
        return float(value) if self.kind == "float" and type(value) is int else value

    def problem(self, value: Any) -> str | None:  # noqa: ANN401
        """Why a value does not fit; it is not quoted."""
        if value is None or self.kind == "arrow":
            return None
        if self.kind == "json":
            return _json_problem(value)
        if not isinstance(value, _PYTHON[self.kind]) or (
            isinstance(value, bool) and self.kind != "bool"
        ):
            return f"is a {type(value).__name__}, not {_WORDS[self.kind]}"
        if self.kind == "int" and not INTEGER_MIN <= value <= INTEGER_MAX:
            return "is a whole number outside 64 bits"
        if self.kind == "float" and type(value) is int and abs(value) > sys.float_info.max:
            return "is a number that is too large"
        if self.kind == "text":
            return _text_problem(value)
        if self.kind == "list":
            problems = (self.element.problem(one) for one in value if self.element is not None)
            return next((f"has an element that {problem}" for problem in problems if problem), None)
        for name, inner in self.fields:
            if problem := inner.problem(value.get(name)):
                return f"has a field {name!r} that {problem}"
        return None


def _json_text(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)


_FROM_JSON: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "time": datetime.fromisoformat,
    "utc": datetime.fromisoformat,
    "bytes": base64.b64decode,
}
_PYTHON: dict[str, Any] = {
    "null": (),
    "bool": bool,
    "int": int,
    "float": (int, float, Decimal),
    "text": str,
    "date": date,
    "time": datetime,
    "utc": datetime,
    "bytes": bytes,
    "list": (list, tuple),
    "record": Mapping,
}
_WORDS = {
    "null": "nothing",
    "bool": "True or False",
    "int": "a whole number",
    "float": "a number",
    "text": "a text",
    "date": "a date",
    "time": "a time",
    "utc": "a time",
    "bytes": "bytes",
    "list": "a list",
    "record": "a mapping",
}


def _text_problem(value: str) -> str | None:
    if value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return "is a text with a lone surrogate"
    return None


def _json_problem(value: object) -> str | None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return f"cannot be kept as JSON ({type(error).__name__})"
    return None


NULL, BOOL, INT, FLOAT = (
    ValueType("null"),
    ValueType("bool"),
    ValueType("int"),
    ValueType("float"),
)
ANYTHING = ValueType("arrow")  # of a column that no file has
TEXT, JSON, BYTES = ValueType("text"), ValueType("json"), ValueType("bytes")
DATE, TIME, UTC_TIME = ValueType("date"), ValueType("time"), ValueType("utc")

_SIMPLE: dict[Any, ValueType] = {
    type(None): NULL,
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: TEXT,
    bytes: BYTES,
    date: DATE,
}
_OPEN = (Any, object, dict, list, tuple)  # annotations that say nothing of what is inside


def list_of(element: ValueType) -> ValueType:
    return ValueType("list", element=element)


def record_of(fields: Mapping[str, ValueType]) -> ValueType:
    return ValueType("record", tuple(fields.items()))


def type_of(value: object) -> ValueType:
    """The type of one value; NoType for what is no plain data."""
    simple = _SIMPLE.get(type(value))
    if simple is INT and not INTEGER_MIN <= value <= INTEGER_MAX:  # type: ignore[operator]
        raise NoType("a whole number outside 64 bits")
    if simple is not None:
        return simple
    if isinstance(value, datetime):
        return TIME if value.tzinfo is None else UTC_TIME
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise NoType("a mapping whose keys are no texts")
        return record_of({name: type_of(inner) for name, inner in value.items()})
    if isinstance(value, list | tuple):
        return list_of(joined(type_of(one) for one in value))
    if isinstance(value, Decimal):
        return FLOAT
    raise NoType(f"a value of type {type(value).__name__}")


def joined(found: typing.Iterable[ValueType]) -> ValueType:
    """The one type that values of several have."""
    result = NULL
    for one in found:
        result = join(result, one)
    return result


def join(one: ValueType, other: ValueType) -> ValueType:
    """The one type that values of two have; JSON if there is no other."""
    if one == other or other is NULL:
        return one
    if one is NULL:
        return other
    kinds = {one.kind, other.kind}
    if kinds == {"int", "float"}:
        return FLOAT
    if kinds == {"arrow"}:
        return _join_arrow(one, other)
    if kinds == {"list"}:
        return list_of(join(one.element or NULL, other.element or NULL))
    if kinds == {"record"}:
        fields = dict(one.fields)
        for name, inner in other.fields:
            fields[name] = join(fields.get(name, NULL), inner)
        return record_of(fields)
    return JSON


def _join_arrow(one: ValueType, other: ValueType) -> ValueType:
    pa = arrow()
    schemas = [pa.schema([("value", side.known)]) for side in (one, other)]
    try:
        found = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException:
        return JSON
    return ValueType("arrow", known=found.field("value").type)


def type_of_schema(schema: Mapping[str, Any]) -> ValueType:
    """The type of the values that fit a JSON schema; JSON where they have several."""
    return _of_schema(schema, schema, 0)


def _of_schema(schema: object, root: Mapping[str, Any], depth: int) -> ValueType:
    if not isinstance(schema, Mapping) or depth > 20:  # a schema that holds itself
        return JSON
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found: object = root
        for step in reference.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        return _of_schema(found, root, depth + 1)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return joined(map(type_of, values)) if isinstance(values, list) else JSON
    for several in ("anyOf", "oneOf"):
        if isinstance(schema.get(several), list):
            return joined(_of_schema(one, root, depth + 1) for one in schema[several])
    kind = schema.get("type")
    if isinstance(kind, list):
        return joined(_of_schema({**schema, "type": one}, root, depth + 1) for one in kind)
    if kind == "object":
        fields = schema.get("properties")
        if not isinstance(fields, Mapping) or not fields:
            return JSON
        return record_of({name: _of_schema(one, root, depth + 1) for name, one in fields.items()})
    if kind == "array":
        return list_of(_of_schema(schema.get("items"), root, depth + 1))
    simple = {"string": TEXT, "integer": INT, "number": FLOAT, "boolean": BOOL, "null": NULL}
    return simple.get(str(kind), JSON)


def type_of_annotation(kind: Any) -> ValueType:  # noqa: ANN401 (an annotation)
    """The type of what a function returns; NoType for what is no plain data."""
    if kind is None:
        return NULL
    if kind is datetime:
        return UTC_TIME
    if kind in _OPEN:
        return JSON
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_of_annotation(parts[0])
    if origin is Literal:
        return joined(map(type_of, parts))
    if origin in (Union, types.UnionType):
        return joined(map(type_of_annotation, parts))
    if origin in (list, Sequence):
        return list_of(type_of_annotation(parts[0]))
    if origin is tuple or origin in (dict, Mapping):
        return JSON
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return joined(type_of(one.value) for one in kind)
    make = getattr(kind, "model_json_schema", None)
    if callable(make):  # a pydantic model
        return type_of_schema(make())
    if isinstance(kind, type) and (
        typing.is_typeddict(kind) or hasattr(kind, "__dataclass_fields__")
    ):
        hints = typing.get_type_hints(kind)
        return record_of({name: type_of_annotation(inner) for name, inner in hints.items()})
    raise NoType(getattr(kind, "__name__", str(kind)))

# SPDX-License-Identifier: Apache-2.0
"""How do a task's arguments become JSON, and JSON its arguments?

The function's signature is turned into a struct once; msgspec checks and rebuilds. So a bad
payload is refused when a job is accepted, with the argument and what was expected, and not when
it runs.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.definitions.context import Context, TickContext
from penstock.errors import PayloadError, StrictJsonError, UsageError
from penstock.model import strict_json
from penstock.model.job import PAYLOAD_BYTES_MAX

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_ARGUMENT = re.compile(r"^\$\.?(?P<name>[^.\[]*(?:\[\d+\])*)\.?(?P<inner>.*)$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]+)`$")
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _given(value: Any) -> Any:  # noqa: ANN401 (a default of the user's)
    return value


class ArgumentCodec:
    """Owns the shape of one task's arguments, the context left out."""

    def __init__(
        self, task: str, function: Callable[..., Any], context: type[Context] = Context
    ) -> None:
        """Read a signature; `context` is what its first parameter will be given."""
        self.task = task
        self._context = context
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (
            _POSITIONAL,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise UsageError(
                f"Task {task!r} takes no context; its first parameter must be "
                f"`ctx: {context.__name__}`."
            )
        self._refuse_other_context(parameters[0], function)
        self._parameters = parameters[1:]
        for parameter in self._parameters:
            if parameter.kind not in (_POSITIONAL, _KEYWORD):
                raise UsageError(
                    f"Task {task!r} has the parameter {str(parameter)!r}; a job's arguments "
                    f"have names, so write them out one by one."
                )
        self.names = tuple(parameter.name for parameter in self._parameters)
        self._name_set = frozenset(self.names)
        self._keyword_only = tuple(p.name for p in self._parameters if p.kind is _KEYWORD)
        self._positional_count = len(self.names) - len(self._keyword_only)
        self._struct = self._build(function)
        self._decoder = msgspec.json.Decoder(self._struct, dec_hook=self._rebuild)

    def _refuse_other_context(self, first: inspect.Parameter, function: Callable[..., Any]) -> None:
        """The first parameter is the context: by its annotation, or without one by its name."""
        kind = self._hints(function).get(first.name)
        if kind is None and first.name in ("ctx", "context"):
            return
        fits = isinstance(kind, type) and issubclass(kind, Context)
        if kind is TickContext and self._context is not TickContext:
            fits = False
        if not fits:
            raise UsageError(
                f"The first parameter of task {self.task!r} is {str(first)!r}; it must be "
                f"`ctx: {self._context.__name__}`."
            )

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return typing.get_type_hints(function, include_extras=True)
        except Exception as error:
            raise UsageError(
                f"The annotations of task {self.task!r} cannot be resolved: {error}. Names that "
                f"are only imported for type checking must be imported for real."
            ) from None

    def _build(self, function: Callable[..., Any]) -> type[msgspec.Struct]:
        hints = self._hints(function)
        fields: list[Any] = []
        for parameter in self._parameters:
            kind = hints.get(parameter.name, Any)
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, kind))
            else:
                default = msgspec.field(default_factory=partial(_given, parameter.default))
                fields.append((parameter.name, kind, default))
        try:
            return msgspec.defstruct(
                f"{self.task}_arguments", fields, forbid_unknown_fields=True, kw_only=True, gc=False
            )
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"The parameters of task {self.task!r} cannot come from JSON: {error}."
            ) from None

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Turn a call into strict JSON text; refused with the argument and what was expected."""
        if args:
            if len(args) > self._positional_count:
                raise PayloadError(
                    f"Task {self.task!r} takes {self._positional_count} positional arguments, got "
                    f"{len(args)}."
                )
            values = dict(zip(self.names, args, strict=False))
            for name in kwargs:
                if name in values:
                    raise PayloadError(f"Task {self.task!r} got the argument {name!r} twice.")
            values.update(kwargs)
        else:
            values = kwargs
        if not self._name_set.issuperset(values):
            unknown = next(name for name in values if name not in self._name_set)
            raise PayloadError(self._unknown(unknown))
        try:
            return strict_json.dumps(values, limit_bytes=PAYLOAD_BYTES_MAX)
        except StrictJsonError as error:
            raise self._refusal(error.problem, error.path) from None

    def decode(self, payload: str | bytes) -> msgspec.Struct:
        """Rebuild the arguments; refused with the argument and what was expected."""
        try:
            return self._decoder.decode(payload)
        except msgspec.ValidationError as error:
            match = _AT.match(str(error))
            problem, path = (match["problem"], match["path"]) if match else (str(error), None)
            raise self._refusal(problem, path or "$") from None
        except msgspec.DecodeError as error:
            raise PayloadError(f"Task {self.task!r}: the payload is not JSON: {error}.") from None

    def call_arguments(self, payload: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of one attempt, as the function takes them."""
        values = msgspec.structs.astuple(self.decode(payload))
        if not self._keyword_only:
            return values, {}
        named = dict(zip(self.names, values, strict=True))
        keyword = {name: named.pop(name) for name in self._keyword_only}
        return tuple(named.values()), keyword

    def named_arguments(self, payload: str) -> dict[str, Any]:
        """The same by name, in the order of the signature."""
        return dict(zip(self.names, msgspec.structs.astuple(self.decode(payload)), strict=True))

    def select(self, arguments: msgspec.Struct, names: tuple[str, ...]) -> list[Any]:
        """Some of the rebuilt arguments, by name."""
        return [getattr(arguments, name) for name in names]

    def _refusal(self, problem: str, path: str) -> PayloadError:
        place = _ARGUMENT.match(path)
        name, inner = (place["name"], place["inner"]) if place else (path, "")
        if match := _MISSING.match(problem):
            where = f" of {path!r}" if path != "$" else ""
            return PayloadError(f"Task {self.task!r} misses the argument {match['name']!r}{where}.")
        if match := _UNKNOWN.match(problem):
            if path == "$":
                return PayloadError(self._unknown(match["name"]))
            return PayloadError(
                f"Task {self.task!r}, argument {name!r}: unknown field {match['name']!r}."
            )
        if not problem.startswith(("NaN", "Infinity")):
            problem = problem[:1].lower() + problem[1:]
        if not name:
            return PayloadError(f"Task {self.task!r}: the payload: {problem}.")
        where = f" (at {inner!r})" if inner else ""
        return PayloadError(f"Task {self.task!r}, argument {name!r}{where}: {problem}.")

    def _unknown(self, name: str) -> str:
        known = ", ".join(repr(known) for known in self.names) or "none"
        return f"Task {self.task!r} has no argument {name!r}; it takes: {known}."

    def _rebuild(self, kind: Any, value: Any) -> Any:  # noqa: ANN401 (a hook of msgspec)
        validate = getattr(kind, "model_validate", None)  # a pydantic model
        if callable(validate):
            try:
                return validate(value)
            except ValueError as error:
                first = str(error).splitlines()
                raise ValueError(
                    "; ".join(line.strip() for line in first[1:3]) or first[0]
                ) from None
        raise ValueError(f"a {getattr(kind, '__name__', kind)} cannot be rebuilt from JSON")

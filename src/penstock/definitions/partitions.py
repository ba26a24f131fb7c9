# SPDX-License-Identifier: Apache-2.0
"""Partitions: the values that preflights and schedules are multiplied over, and their names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import date, time
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from penstock.definitions.context import Context
from penstock.definitions.request import JobRequest
from penstock.definitions.task import P, R, Task, TaskOptions, parameters_of, rebuild_model
from penstock.errors import PayloadError, UsageError
from penstock.model.names import check_name

DEPTH_MAX = 8  # of parts inside parts
SHOWN_MAX = 100  # characters of a value in a sentence

T = TypeVar("T")

VALUES_MAX = 1_000_000  # of one dimension
PROBLEMS_MAX = 1_000  # of one dimension; nobody reads more
NAMES_LENGTH_MAX = 64  # characters of a dimension's name
DIMENSIONS_MAX = 5  # of one over=; the partitions that a unit lies in grow faster than n!


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


class NamedValues(msgspec.Struct, frozen=True):
    """The values of a dimension by name, and what is wrong with the others."""

    values: dict[str, Any]
    problems: tuple[str, ...] = ()


class Partitions(Generic[T]):
    """A dimension: values over which preflights and schedules are multiplied.

    Made by `app.partitions(...)`; `over=` takes it, and the function gets one value as an argument.
    """

    def __init__(
        self,
        name: str,
        source: Iterable[T] | Callable[[], Iterable[T]] | None = None,
        *,
        of: Any = None,  # noqa: ANN401 (a type of any kind)
        key: Callable[[T], object] | None = None,
    ) -> None:
        check_name("name of partitions", name)
        if len(name) > NAMES_LENGTH_MAX:
            raise UsageError(
                f"A name of partitions has at most {NAMES_LENGTH_MAX} characters; got {len(name)}."
            )
        self.name = name
        self.of = of
        if (source is None) == (of is None):
            raise UsageError(
                f"The partitions {name!r} need either values (or a function that gives them), or "
                "of=TYPE for those of the configuration."
            )
        if key is not None and not callable(key):
            raise UsageError(
                f"The key= of the partitions {name!r} is a function, got {key!r:.100}."
            )
        self._key = key
        self._function: Callable[[], Iterable[T]] | None = None
        self._values: tuple[T, ...] = ()
        if callable(source) and not isinstance(source, type):
            if inspect.iscoroutinefunction(source):
                raise UsageError(
                    f"The function of the partitions {name!r} is an `async def`; write a `def`, "
                    "which is called once per start."
                )
            self._function = source
        elif source is not None:
            self._values = self._listed(source)

    def __repr__(self) -> str:
        return f"<Partitions {self.name!r}>"

    @property
    def is_configured(self) -> bool:
        """Whether its values come from `[partitions]` of the configuration."""
        return self.of is not None

    def named_values(self, configured: Sequence[object] | None) -> NamedValues:
        """Evaluate it once: every value by its name. `configured` is what the settings say."""
        try:
            values = self._evaluate(configured)
        except UsageError as error:
            return NamedValues({}, (str(error),))
        named: dict[str, Any] = {}
        problems: list[str] = []
        for value in values:
            try:
                name = self.name_of(value)
                hash(value)
            except UsageError as error:
                problems.append(str(error))
            except Exception:  # whatever a user's own __hash__ raises
                problems.append(
                    f"Partitions {self.name!r}: {shown(value)} is not hashable; "
                    "write @dataclass(frozen=True), or a tuple for a list."
                )
            else:
                if name in named:
                    problems.append(f"Partitions {self.name!r}: two values are named {name!r}.")
                named[name] = value
            if len(problems) == PROBLEMS_MAX:
                break
        return NamedValues(named, tuple(problems))

    def name_of(self, value: T) -> str:
        """What one of its values is called; UsageError if it has no name."""
        try:
            return name_of(value if self._key is None else self._key(value))
        except UsageError as error:
            raise UsageError(f"Partitions {self.name!r}: {str(error).rstrip('.')}.") from None
        except (Exception, SystemExit) as error:  # whatever key=, or its own text, raises
            which = "name" if self._key is None else "key="
            raise UsageError(
                f"Partitions {self.name!r}: the {which} of {shown(value)} raised "
                f"{type(error).__name__}: {str(error)[:200].rstrip('.')}."
            ) from error

    def _evaluate(self, configured: Sequence[object] | None) -> tuple[T, ...]:
        if self.is_configured:
            return self._rebuilt(configured)
        if self._function is None:
            return self._values
        try:
            return self._listed(self._function())
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"Partitions {self.name!r}: their function raised {type(error).__name__}: "
                f"{str(error)[:200].rstrip('.')}."
            ) from error

    def _rebuilt(self, configured: Sequence[object] | None) -> tuple[T, ...]:
        if configured is None:
            raise UsageError(
                f"Partitions {self.name!r}: the configuration does not list them; write "
                f"{self.name} = [...] under [partitions] in penstock.toml."
            )
        values = []
        for index, raw in enumerate(configured):
            try:
                values.append(msgspec.convert(raw, self.of, strict=True, dec_hook=rebuild_model))
            except (msgspec.ValidationError, ValueError, TypeError) as error:
                raise UsageError(
                    f"partitions.{self.name}[{index}] cannot become "
                    f"{getattr(self.of, '__name__', self.of)}: {_lowered(str(error))}."
                ) from None
        return tuple(values)

    def _listed(self, values: object) -> tuple[T, ...]:
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise UsageError(
                f"Partitions {self.name!r}: their values are a list or another iterable, "
                f"got {shown(values)}."
            )
        listed = tuple(islice(values, VALUES_MAX + 1))
        if len(listed) > VALUES_MAX:
            raise UsageError(
                f"Partitions {self.name!r}: there are more than {VALUES_MAX:,} values."
            )
        return listed


def dimensions_of(what: str, over: object) -> tuple[Partitions[Any], ...]:
    """The dimensions that an `over=` names; `what` begins the refusals."""
    given = over if isinstance(over, tuple | list) else (over,)
    for one in given:
        if not isinstance(one, Partitions):
            raise UsageError(
                f"{what}: over= takes what app.partitions(...) gives, or a tuple of it, "
                f"got {shown(one)}."
            )
    if len(given) > DIMENSIONS_MAX:
        raise UsageError(
            f"{what}: over= takes at most {DIMENSIONS_MAX} partitions, got {len(given)}; let one "
            "of them have values of several parts, such as a dataclass."
        )
    names = [one.name for one in given]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{what}: over= names the partitions {name!r} twice.")
    return tuple(given)


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}".rstrip(".")


class UnitPayload(NamedTuple):
    """What a unit hands to its function, and the keyed limits that follow from it."""

    payload: str  # strict JSON text
    limit_keys: tuple[str, ...]


class Spec(Task[P, R]):
    """A task of the daemon; its function takes one value of each dimension."""

    def __init__(
        self,
        prefix: str,
        name: str,
        function: Callable[..., Any],
        over: object,
        options: TaskOptions,
        context: type[Context],
    ) -> None:
        what = f"{prefix.rstrip(':').capitalize()} {name!r}"
        check_name(f"{prefix.rstrip(':')} name", name)
        if ":" in name:
            raise UsageError(f"{what}: the name cannot hold a ':', which ends it in unit names.")
        self.over = dimensions_of(what, over)
        self.plain_name = name  # without its prefix
        _check_parameters(what, function, self.over)
        super().__init__(f"{prefix}{name}", function, options, context)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plain_name}>"

    def unit_key(self, partition: str | None) -> str:
        """The name of one of its units, which is also the key of its job."""
        return self.name if partition is None else f"{self.name}:{partition}"

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """Nobody enqueues it: a job of it would tick for ever beside its units."""
        raise self._no_job()

    def job_from_json(self, payload: str) -> JobRequest[R]:
        raise self._no_job()

    def _no_job(self) -> UsageError:
        kind = type(self).__name__
        return UsageError(
            f"{kind} {self.plain_name!r} cannot be enqueued: `penstock run` runs it. Put what it "
            "shares with a job into a function of its own, or into a task that it enqueues."
        )

    def unit_payload(self, values: tuple[Any, ...]) -> UnitPayload:
        """The arguments of one unit; PayloadError if they do not fit the signature."""
        request = self._request(self.codec.encode(values, {}))
        rebuilt = self.codec.named_arguments(request.payload)
        for (name, again), value in zip(rebuilt.items(), values, strict=True):
            if type(again) is not type(value) and again != value:
                raise PayloadError(
                    f"Task {self.name!r}, argument {name!r}: {shown(value)} would arrive as a "
                    f"{type(again).__name__}; annotate it with {type(value).__name__}."
                )
        return UnitPayload(request.payload, request.limit_keys)


def _check_parameters(
    what: str, function: Callable[..., Any], over: tuple[Partitions[Any], ...]
) -> None:
    """One parameter for each dimension, in order, each with a type."""
    own = parameters_of(what, function)[1:]
    if len(own) != len(over):
        wants = "one parameter for each dimension of over=" if over else "no parameter"
        raise UsageError(
            f"{what} must take its context and {wants} ({len(over)}), it takes {len(own)} more: "
            f"{', '.join(str(one) for one in own)[:200] or 'none'}."
        )
    for parameter, dimension in zip(own, over, strict=True):
        if parameter.annotation is inspect.Parameter.empty:
            raise UsageError(
                f"{what}: the parameter {parameter.name!r} has no type; write that of the "
                f"partitions {dimension.name!r}, so that their values can be rebuilt from JSON."
            )

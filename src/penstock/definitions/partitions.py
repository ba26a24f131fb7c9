# SPDX-License-Identifier: Apache-2.0
"""Over which values is work multiplied?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from penstock.definitions.partition_names import name_of, shown
from penstock.definitions.request import check_name
from penstock.errors import UsageError

T = TypeVar("T")

VALUES_MAX = 1_000_000  # of one dimension
PROBLEMS_MAX = 1_000  # of one dimension; nobody reads more
NAMES_LENGTH_MAX = 64  # characters of a dimension's name
DIMENSIONS_MAX = 5  # of one over=; the partitions that a unit lies in grow faster than n!


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
        """Do its values come from `[partitions]` of the configuration?"""
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
                f"Partitions {self.name!r}: the configuration says nothing about them; write "
                f"{self.name} = [...] under [partitions] in penstock.toml."
            )
        values = []
        for index, raw in enumerate(configured):
            try:
                values.append(msgspec.convert(raw, self.of, strict=True, dec_hook=_rebuild))
            except (msgspec.ValidationError, TypeError) as error:
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


def _rebuild(kind: Any, value: Any) -> Any:  # noqa: ANN401 (a hook of msgspec)
    validate = getattr(kind, "model_validate", None)  # a pydantic model
    if not callable(validate):
        raise TypeError(f"a {getattr(kind, '__name__', kind)} cannot be made of settings")
    try:
        return validate(value)
    except ValueError as error:
        lines = str(error).splitlines()
        raise TypeError("; ".join(line.strip() for line in lines[1:3]) or lines[0]) from None


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}".rstrip(".")

# SPDX-License-Identifier: Apache-2.0
"""What is a task: a named function and its static description?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from penstock.clock import Duration, to_seconds
from penstock.definitions.codec import ArgumentCodec
from penstock.definitions.context import Context
from penstock.definitions.provider import Uses, endpoints_of
from penstock.definitions.request import JobRequest, check_name
from penstock.errors import (
    PayloadError,
    ProviderNotAvailableHere,
    SchedulingMetadataError,
    UsageError,
)
from penstock.model.scheduling import MetadataSource, SchedulingDefinition, metadata_of

P = ParamSpec("P")
R = TypeVar("R")

#: Where a body runs: on the loop, in a thread, in another process. Each is a resource of its own.
ASYNC, THREAD, PROCESS = "async", "thread", "process"

#: A keyed limit: a constant, or a function of some of the arguments, matched by name.
LimitValue = str | Callable[..., str]


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an author may say about a task; None means: as configured."""

    group: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    has_timeout: bool = True  # False: the author said timeout=None
    limits: Mapping[str, LimitValue] = msgspec.field(default_factory=dict)
    executor: str | None = None  # PROCESS, or None: the loop or a thread, as the function is made
    metadata: MetadataSource | None = None  # how it shares with others
    uses: Uses | tuple[Uses, ...] | list[Uses] = ()  # the providers that it calls


CONFIGURED: Any = object()  # timeout not given: as configured


def limit_seconds(timeout: Duration | None) -> float | None:
    """The seconds of a time limit; None if there is none, or it was left to the settings."""
    if timeout is CONFIGURED or timeout is None:
        return None
    seconds = to_seconds(timeout)
    if not seconds > 0:
        raise UsageError(f"timeout must be above 0 seconds, got {seconds:g}.")
    return seconds


def checked_limits(limits: Mapping[str, LimitValue] | None) -> dict[str, LimitValue]:
    """The keyed limits that an author named."""
    if limits is not None and not isinstance(limits, Mapping):
        raise UsageError(
            f"limits is a mapping such as {{'host': 'example.org'}}, got {limits!r:.200}."
        )
    return dict(limits or {})


def check_attempts(what: str, max_attempts: int | None) -> None:
    """Refuse a number of attempts that nobody could use up."""
    if max_attempts is not None and not max_attempts >= 1:
        raise UsageError(f"{what}: max_attempts must be at least 1, got {max_attempts}.")


class _Limit:
    """One dimension of keyed limits, evaluated when a job is accepted."""

    def __init__(
        self, task: str, dimension: str, value: LimitValue, known: tuple[str, ...]
    ) -> None:
        check_name("limit dimension", dimension)
        if ":" in dimension:
            raise UsageError(
                f"The limit dimension {dimension!r} of task {task!r} cannot hold a ':'."
            )
        self._task, self.dimension = task, dimension
        self._constant: str | None = None
        self._function: Callable[..., str] | None = None
        self.names: tuple[str, ...] = ()
        if isinstance(value, str):
            self._constant = self._checked(value, UsageError)
            return
        given: object = value  # whatever a user without a type checker wrote
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise UsageError(
                f"The limit {dimension!r} of task {task!r} is a text or a plain function of the "
                f"task's arguments, got {value!r}."
            )
        self._function = value
        self.names = _parameters(task, dimension, value)
        for name in self.names:
            if name not in known:
                raise UsageError(
                    f"The limit {dimension!r} of task {task!r} asks for the argument {name!r}, "
                    f"which the task does not have."
                )

    @property
    def is_constant(self) -> bool:
        return self._function is None

    def key(self, values: list[Any]) -> str:
        if self._function is None:
            return self._constant or ""
        try:
            value = self._function(*values)
        except Exception as error:
            raise PayloadError(
                f"The limit {self.dimension!r} of task {self._task!r} cannot be evaluated: "
                f"{type(error).__name__}: {str(error).rstrip('.')}."
            ) from error
        return self._checked(value, PayloadError)

    def _checked(self, value: object, refusal: type[UsageError]) -> str:
        """The limit key of a value, or a refusal that names the task."""
        name = f"The limit {self.dimension!r} of task {self._task!r}"
        if not isinstance(value, str):
            raise refusal(f"{name} must be text, got {value!r:.200}.")
        if value == "*":
            raise refusal(f"{name} cannot be '*', which stands for every name in settings.")
        try:
            check_name(f"limit {self.dimension!r}", value)
        except UsageError as error:
            raise refusal(f"{name} is refused: {str(error).rstrip('.')}.") from None
        return f"{self.dimension}:{value}"


def _parameters(task: str, dimension: str, function: Callable[..., str]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # something built in that does not tell
        raise UsageError(
            f"The limit {dimension!r} of task {task!r} is a function whose parameters cannot be "
            f"read; wrap it: lambda url: ...(url)."
        ) from None


def _check_metadata(task: str, source: MetadataSource) -> None:
    """Refuse at definition time what could not be scheduled later."""
    try:
        metadata_of(source)
    except SchedulingMetadataError as error:
        if error.fallback is None:
            raise SchedulingMetadataError(
                error.code, f"Task {task!r}: {error.message}", diagnostics={task: error.message}
            ) from error


class Task(Generic[P, R]):
    """A function that runs as jobs. `task.job(...)` takes the function's own parameters."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: TaskOptions,
        context: type[Context] = Context,
    ) -> None:
        check_name("task name", name)
        self.name = name
        self.function = function
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"Task {name!r} is a generator; a task returns its result.")
        if options.executor not in (None, PROCESS):
            raise UsageError(
                f"Task {name!r}: executor must be {PROCESS!r} or left out, got "
                f"{options.executor!r}."
            )
        self.kind = options.executor or (ASYNC if self.is_async else THREAD)
        self.codec = ArgumentCodec(name, function, context)
        self._limits = [
            _Limit(name, dimension, value, self.codec.names)
            for dimension, value in sorted(options.limits.items())
        ]
        self._constant_keys = tuple(
            sorted(limit.key([]) for limit in self._limits if limit.is_constant)
        )
        self._varying = [limit for limit in self._limits if not limit.is_constant]
        self.dimensions = frozenset(limit.dimension for limit in self._limits)
        if options.group is not None:
            check_name("group", options.group)
        if options.metadata is not None:
            _check_metadata(name, options.metadata)
        self.endpoints = endpoints_of(name, options.uses)
        if self.endpoints and self.kind == PROCESS:
            raise ProviderNotAvailableHere(
                f"Task {name!r} runs in another process, where no provider is available; leave out "
                "executor= or uses=."
            )
        self.scheduling = SchedulingDefinition(
            name=name,
            slot=self.kind,
            metadata=options.metadata,
            limit_keys=self._constant_keys,
            endpoints=self.endpoints,
        )

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(
        self,
        ctx: Context = None,  # type: ignore[assignment]  # left out: the sentence below
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Any:  # noqa: ANN401 (whatever the function returns)
        """Call the function itself, here and now, as a test may want to."""
        if not isinstance(ctx, Context):
            raise UsageError(
                f"Task {self.name!r} was called like a function; write {self.name}.job(...) to "
                "make a job of it."
            )
        return self.function(ctx, *args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """A job of this task with these arguments, checked against the signature."""
        payload = self.codec.encode(args, kwargs)
        return self._request(payload)

    def job_from_json(self, payload: str) -> JobRequest[R]:
        """The same from strict JSON text: an object of arguments."""
        return self._request(payload)

    def _request(self, payload: str) -> JobRequest[R]:
        arguments = self.codec.decode(payload)
        keys = self._constant_keys
        if self._varying:
            varying = [
                limit.key(self.codec.select(arguments, limit.names)) for limit in self._varying
            ]
            keys = tuple(sorted({*keys, *varying}))
        return JobRequest(
            task=self.name,
            payload=payload,
            limit_keys=keys,
            group=self.options.group,
            priority=self.options.priority,
        )


class TaskDecorator(Protocol):
    """What `@app.task(...)` is: keeps the parameters and the result of the function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

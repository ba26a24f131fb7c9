# SPDX-License-Identifier: Apache-2.0
"""A task as declared: its function, options and keyed limits, and the codec of its arguments."""

from __future__ import annotations

import inspect
import re
import string
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from penstock.clock import Duration, to_seconds
from penstock.definitions.context import Context, TickContext
from penstock.definitions.provider import Uses, endpoints_of
from penstock.definitions.request import JobRequest
from penstock.definitions.result import ResultCodec, ResultReader, check_done
from penstock.definitions.retry import Retry
from penstock.errors import (
    PayloadError,
    ProviderNotAvailableHere,
    SchedulingMetadataCode,
    SchedulingMetadataError,
    StrictJsonError,
    UsageError,
)
from penstock.model import strict_json
from penstock.model.job import NAME_LENGTH_MAX, PAYLOAD_BYTES_MAX, Job
from penstock.model.names import check_name
from penstock.model.task import MetadataSource, SchedulingDefinition, metadata_or_fallback

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_ARGUMENT = re.compile(r"^\$\.?(?P<name>[^.\[]*(?:\[\d+\])*)\.?(?P<inner>.*)$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]+)`$")
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY

P = ParamSpec("P")
R = TypeVar("R")

#: What other tools call to enqueue a job.
_METHODS_ELSEWHERE = frozenset(
    ("apply", "apply_async", "defer", "delay", "enqueue", "kiq", "queue", "s", "send", "submit")
)

#: Where a body runs: on the loop, in a thread, in another process. Each is a resource of its own.
ASYNC, THREAD, PROCESS = "async", "thread", "process"
ROW_GROUP = "row_group"  # for bodies on the loop that only wait for their own tasks in memory
CONFIGURED: Any = object()  # timeout not given: as configured


def parameters_of(what: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; `what` begins the refusal."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(
            f"{what} has parameters that cannot be read; wrap it in a function that declares them."
        ) from None


def hints_of(what: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters, by name; `what` begins the refusal."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise UsageError(
            f"{what} has annotations that cannot be resolved: {error}. Names that are only "
            "imported for type checking must be imported for real."
        ) from None


def rebuild_model(kind: Any, value: Any) -> Any:  # noqa: ANN401 (a hook of msgspec)
    """A pydantic model from its JSON value, without importing pydantic."""
    validate = getattr(kind, "model_validate", None)
    if not callable(validate):
        raise ValueError(f"a {getattr(kind, '__name__', kind)} cannot be rebuilt from JSON")
    try:
        return validate(value)
    except ValueError as error:
        lines = str(error).splitlines()
        raise ValueError("; ".join(line.strip() for line in lines[1:3]) or lines[0]) from None


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
        parameters = parameters_of(f"Task {task!r}", function)
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
        self._decoder = msgspec.json.Decoder(self._struct, dec_hook=rebuild_model)

    def _refuse_other_context(self, first: inspect.Parameter, function: Callable[..., Any]) -> None:
        """The first parameter is the context: by its annotation, or without one by its name."""
        kind = hints_of(f"Task {self.task!r}", function).get(first.name)
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

    def _build(self, function: Callable[..., Any]) -> type[msgspec.Struct]:
        hints = hints_of(f"Task {self.task!r}", function)
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
            return PayloadError(
                f"Task {self.task!r} is missing the argument {match['name']!r}{where}."
            )
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
    key: str | None = None  # how a job without one is called, such as "doi:{doi}"
    retry: Retry | None = None  # how it waits after failures; None: as the app's baseline says


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


def checked_retry(what: str, retry: Retry | None) -> Retry | None:
    """How a task waits, as its author said."""
    if retry is not None and not isinstance(retry, Retry):
        raise UsageError(
            f"{what}: retry= is such as Retry(delay=5, max_delay=600), got {retry!r:.100}."
        )
    return retry


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
        what = f"The limit {dimension!r} of task {task!r}"
        self.names = tuple(parameter.name for parameter in parameters_of(what, value))
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


class _KeyTemplate:
    """The key of a job from its arguments, such as `doi:{doi}`."""

    def __init__(self, task: str, template: str, known: tuple[str, ...]) -> None:
        self._task, self._template = task, template
        self.names = _fields_of(task, template, known)

    def key(self, values: list[Any]) -> str:
        try:
            return self._template.format(**dict(zip(self.names, values, strict=True)))
        except Exception as error:
            raise PayloadError(
                f"The key {self._template!r} of task {self._task!r} cannot be made: "
                f"{type(error).__name__}: {str(error).rstrip('.')}."
            ) from error


def _fields_of(task: str, template: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that a template of keys names."""
    what = f"Task {task!r}: key={template!r:.200}"
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template)]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is a text such as 'doi:{{doi}}': {error}.") from None
    names = [re.split(r"[.\[]", field)[0] for field in fields if field is not None]
    if not names:
        raise UsageError(
            f"{what} names no argument, so all its jobs would have one key; write such as "
            f"'doi:{{doi}}'."
        )
    for name in names:
        if name not in known:
            takes = ", ".join(map(repr, known)) or "none"
            raise UsageError(f"{what} names {name!r}, which is no argument; there are: {takes}.")
    return tuple(dict.fromkeys(names))


def _identity_group(task: str, options: TaskOptions) -> str | None:
    """The group of a task's metadata; what could not be scheduled is refused here and now."""
    if options.metadata is None:
        return None
    try:
        metadata, _ = metadata_or_fallback(options.metadata)
        key = metadata.group_key
        if options.group is None and len(key) > NAME_LENGTH_MAX:
            raise SchedulingMetadataError(
                SchedulingMetadataCode.BAD_IDENTITY,
                "the identity of its metadata is the group of its jobs, which has at most "
                f"{NAME_LENGTH_MAX} characters, not {len(key)}; shorten it.",
            )
    except SchedulingMetadataError as error:
        raise SchedulingMetadataError(
            error.code, f"Task {task!r}: {error.message}", diagnostics={task: error.message}
        ) from error
    return key


class Task(Generic[P, R]):
    """A function that runs as jobs. `task.job(...)` takes the function's own parameters."""

    own_slot_kind: ClassVar[str | None] = None  # None: as the function is made

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: TaskOptions,
        context: type[Context] = Context,
        reader: ResultReader | None = None,
    ) -> None:
        """Check a declaration; `reader` is where results of its jobs are read."""
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
        own = self.own_slot_kind
        self.slot_kind = own or options.executor or (ASYNC if self.is_async else THREAD)
        self.codec = ArgumentCodec(name, function, context)
        self._limits = [
            _Limit(name, dimension, value, self.codec.names)
            for dimension, value in sorted(options.limits.items())
        ]
        self._constant_keys = tuple(
            sorted(limit.key([]) for limit in self._limits if limit.is_constant)
        )
        self._varying = [limit for limit in self._limits if not limit.is_constant]
        template = options.key
        self._key = None if template is None else _KeyTemplate(name, template, self.codec.names)
        self._reader = reader
        self._results: ResultCodec[R] | None = None
        self.dimensions = frozenset(limit.dimension for limit in self._limits)
        if options.group is not None:
            check_name("group", options.group)
        #: The group of its jobs by its metadata, if no other was named.
        self.identity_group = _identity_group(name, options)
        self.endpoints = endpoints_of(name, options.uses)
        if self.endpoints and self.slot_kind == PROCESS:
            raise ProviderNotAvailableHere(
                f"Task {name!r} runs in another process, where no provider is available; leave out "
                "executor= or uses=."
            )
        self.scheduling = SchedulingDefinition(
            name=name,
            slot=self.slot_kind,
            metadata=options.metadata,
            limit_keys=self._constant_keys,
            endpoints=self.endpoints,
        )

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    if not typing.TYPE_CHECKING:  # else every name would be one of ours

        def __getattr__(self, name: str) -> typing.NoReturn:
            hint = ""
            if name in _METHODS_ELSEWHERE:
                hint = f"; write app.enqueue({self.name}.job(...))"
            raise AttributeError(f"A task has no attribute {name!r}{hint}.")

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
        made = self._key
        key = None if made is None else made.key(self.codec.select(arguments, made.names))
        return JobRequest(
            task=self.name,
            payload=payload,
            limit_keys=keys,
            key=key,
            group=self.options.group,
            identity_group=self.identity_group,
            priority=self.options.priority,
        )

    def result(self, key: str, timeout: Duration | None = None) -> R:
        """What the job of a key returned, as the type that this task is annotated with.

        Args:
            key: of the job.
            timeout: how long to wait for its end; None: not at all.

        Raises:
            JobNotEnded: it has not ended yet.
            JobFailed, JobSkipped, JobCancelled: it ended otherwise; `reason` says why.
            UnknownJob: it was never enqueued, or it was purged.
        """
        return self._result(self._source.ended_job(key, timeout))

    async def result_async(self, key: str, timeout: Duration | None = None) -> R:
        """The same on an event loop."""
        return self._result(await self._source.ended_job_async(key, timeout))

    def results(self, since: datetime | None = None) -> Iterator[tuple[str, R]]:
        """Key and result of every done job of this task, in the order of their ends.

        They are streamed from the store, however many there are.

        Args:
            since: only jobs that ended at this moment or later.
        """
        for key, text in self._source.results_of(self.name, since):
            yield key, self.read_result(key, text)

    async def results_async(self, since: datetime | None = None) -> AsyncIterator[tuple[str, R]]:
        """The same on an event loop."""
        async for key, text in self._source.results_of_async(self.name, since):
            yield key, self.read_result(key, text)

    def read_result(self, key: str, text: str | None) -> R:
        """What a job of this key returned, from the JSON text that is kept of it."""
        if self._results is None:
            what = f"Task {self.name!r}"
            kind = hints_of(what, self.function).get("return", Any)
            self._results = ResultCodec(self.name, kind, rebuild_model)
        return self._results.decode(key, text)

    def _result(self, job: Job) -> R:
        if job.task != self.name:
            raise UsageError(
                f"Job {job.key!r} is one of task {job.task!r}, not of {self.name!r}; ask that one."
            )
        check_done(job)
        return self.read_result(job.key, job.result)

    @property
    def _source(self) -> ResultReader:
        if self._reader is None:
            raise UsageError(f"Task {self.name!r} keeps no results; tasks of @app.task() do.")
        return self._reader


class TaskDecorator(Protocol):
    """What `@app.task(...)` is: keeps the parameters and the result of the function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

# SPDX-License-Identifier: Apache-2.0
"""A provider (rate-limited service) as declared, and the clients through which tasks call it.

A provider is defined once, in the app; a run gives it its clients. So the same object works on the
loop, in threads, in tests and in every worker, and does nothing where nobody admits its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, Protocol

import msgspec

from penstock.clock import Duration
from penstock.errors import ProviderNotAvailableHere, StrictJsonError, UsageError
from penstock.model import strict_json
from penstock.model.names import check_name
from penstock.model.provider import (
    ALGORITHMS,
    ANY,
    DIALECTS,
    IN_DOUBT,
    RATE_MAX,
    RATE_MIN,
    REDIRECTS,
    Endpoint,
    RequestResourceKey,
    base_url_problem,
    header_problem,
)
from penstock.model.request import ReplyClassifier
from penstock.redaction.secrets import Secret

PARALLEL_MAX = 1_000_000  # requests at once; more is a slip of the pen

#: What a column of a table puts into a request itself.
OURS = ("messages", "model", "prompt", "response_format", "stream", "system")

#: HTTP libraries for which there are clients.
Library = Literal["httpx2", "httpx", "aiohttp", "requests"]

#: Whether a test runs a body here that belongs to another process.
runs_elsewhere: ContextVar[bool] = ContextVar("penstock_runs_elsewhere", default=False)


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an author may say about one model; None means: nothing, or as configured."""

    max_parallel: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    usd_per_million_tokens: Mapping[str, float | Decimal] | None = None  # of input and output


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an author may say about a provider; None means: nothing, or as configured."""

    base_url: str | None = None
    api: str | None = None
    api_key: Secret | None = None  # code, as all that follows a key: no file can say it
    headers: Mapping[str, str | Secret] = {}
    account_errors: bool | None = None
    max_parallel: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    algorithm: str | None = None
    paid: bool | None = None
    in_doubt: str | None = None
    idempotency_header: str | None = None
    redirects: str | None = None
    reply_deadline_seconds: float | None = None
    reply_body_bytes_max: int | None = None
    reply_header_bytes_max: int | None = None
    models: Mapping[str, ModelOptions] = {}
    classify: ReplyClassifier | None = None  # code: no file can say it

    def table(self) -> dict[str, Any]:
        """The same as it would stand in a file of settings."""
        said = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("models", "classify", "api_key", "headers")
        }
        return {**said, "models": {name: _table(model) for name, model in self.models.items()}}


class AdmittedCall(Protocol):
    """A call while it is in flight; whoever makes it may say how it ended."""

    def rate_limited(self, retry_after: Duration | None = None) -> None:
        """The service refused, and asks for so many seconds."""
        ...

    def failed(self) -> None:
        """The service is unhealthy."""
        ...

    def used(self, tokens: int | None) -> None:
        """So many tokens were really used; None: nobody has told."""
        ...


class Admission(Protocol):
    """A permit for one call that is not HTTP: `async with` on the loop, `with` in a thread."""

    async def __aenter__(self) -> AdmittedCall: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    def __enter__(self) -> AdmittedCall: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class ProviderClients(Protocol):
    """What a run gives to a provider."""

    @property
    def base_url(self) -> str: ...

    @property
    def dialect(self) -> str | None: ...

    @property
    def http(self) -> Any:  # noqa: ANN401 (a client of a library that may not be installed)
        ...

    @property
    def http_sync(self) -> Any: ...  # noqa: ANN401

    def http_client(self, library: Library) -> Any: ...  # noqa: ANN401

    def http_client_sync(self, library: Library) -> Any: ...  # noqa: ANN401

    def admit(self, model: str | None, domain: str, tokens: int | None) -> Admission: ...


class Provider:
    """A rate-limited service, as a task sees it."""

    def __init__(self, name: str, options: ProviderOptions) -> None:
        check_name("provider name", name)
        if "/" in name:
            raise UsageError(f"The name of provider {name!r} cannot hold a '/'.")
        _check(f"provider {name!r}", options)
        _check_credentials(name, options)
        self.name = name
        self.options = options
        self._clients: ProviderClients | None = None

    def __repr__(self) -> str:
        return f"<Provider {self.name!r}>"

    @property
    def http(self) -> Any:  # noqa: ANN401
        """An admitted async client (the interface of httpx2)."""
        return self.clients.http

    @property
    def http_sync(self) -> Any:  # noqa: ANN401
        """Its sync twin, for tasks in threads."""
        return self.clients.http_sync

    def http_client(self, library: Library = "httpx2") -> Any:  # noqa: ANN401
        """An async client for an SDK, which gets raw replies and must not send again itself."""
        return self.clients.http_client(library)

    def http_client_sync(self, library: Library = "httpx2") -> Any:  # noqa: ANN401
        """The same for a sync SDK in a thread."""
        return self.clients.http_client_sync(library)

    def model(self, name: str, /, **parameters: Any) -> Model:  # noqa: ANN401 (JSON)
        """One of its models, for columns of tables; parameters go into each request as they are."""
        return Model(self, name, parameters)

    def bind(self, clients: ProviderClients) -> None:
        """A run begins."""
        if self._clients is not None:
            raise UsageError(
                f"Provider {self.name!r} serves another run of this program already; let that one "
                "end first."
            )
        self._clients = clients

    def unbind(self, clients: ProviderClients) -> None:
        """A run ends; safe to repeat, and nothing to a provider that serves another one."""
        if self._clients is clients:
            self._clients = None

    @property
    def clients(self) -> ProviderClients:
        """What the run gave; ProviderNotAvailableHere where there is none."""
        if self._clients is None or runs_elsewhere.get():
            raise ProviderNotAvailableHere(
                f"Provider {self.name!r} is used where no run admits its requests; use it inside a "
                "task that runs on the loop or in a thread."
            )
        return self._clients


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a provider, and what is said to it in every request."""

    provider: Provider
    name: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_name(f"model name of provider {self.provider.name!r}", self.name)
        check_parameters(f"Model {self.name!r} of provider {self.provider.name!r}", self.parameters)


def check_parameters(what: str, parameters: object) -> None:
    """Refuse parameters of a model that are no JSON, or that columns of tables say themselves."""
    if not isinstance(parameters, Mapping):
        raise UsageError(
            f"{what}: parameters= is a mapping such as {{'temperature': 0.5}}, got "
            f"{parameters!r:.100}."
        )
    for name in parameters:
        if name in OURS:
            raise UsageError(
                f"{what}: the parameter {name!r} is said by each column itself; leave it out."
            )
    try:
        strict_json.check(dict(parameters))
    except StrictJsonError as error:
        raise UsageError(
            f"{what}: parameters go into requests as JSON, and {error.path} is {error.problem}."
        ) from None


#: What `uses=` takes: a provider, or "NAME", or "NAME/MODEL"; or several of them.
Uses = Provider | str


def endpoints_of(task: str, uses: Uses | tuple[Uses, ...] | list[Uses]) -> tuple[Endpoint, ...]:
    """The services that a task says it calls; which of them exist is asked later."""
    several = list(uses) if isinstance(uses, tuple | list) else [uses]
    return tuple(dict.fromkeys(_endpoint(task, one) for one in several))


def _endpoint(task: str, used: object) -> Endpoint:
    if isinstance(used, Provider):
        cap = used.options.max_parallel
        return Endpoint(RequestResourceKey(used.name, ANY, ANY), used.name, cap)
    if not isinstance(used, str):
        raise UsageError(f"Task {task!r}: uses= takes providers or their names, got {used!r:.200}.")
    check_name("provider name", used)
    name, _, model = used.partition("/")
    return Endpoint(RequestResourceKey(name, model or ANY, ANY), used)


def models_of(provider: str, models: object) -> dict[str, ModelOptions]:
    """The models of a provider, as an author may write them down."""
    if not isinstance(models, Mapping):
        raise UsageError(
            f"models of provider {provider!r} is a mapping such as "
            f"{{'gpt-5': {{'max_parallel': 32}}}}, got {models!r:.200}."
        )
    return {name: _model(provider, name, said) for name, said in models.items()}


def _model(provider: str, name: str, said: object) -> ModelOptions:
    check_name(f"model name of provider {provider!r}", name)
    about = f"model {name!r} of provider {provider!r}"
    options = said
    if isinstance(said, Mapping):
        known = ModelOptions.__struct_fields__
        for field in said:
            if field not in known:
                raise UsageError(
                    f"{field!r} is not an option of {about}; the options are {', '.join(known)}."
                )
        options = ModelOptions(**said)
    if not isinstance(options, ModelOptions):
        raise UsageError(f"The options of {about} must be a mapping, got {said!r:.200}.")
    _check(about, options)
    return options


def _table(options: ModelOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__struct_fields__}


def _is_rate(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return RATE_MIN <= value <= RATE_MAX


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_parallel(value: object) -> bool:
    return type(value) is int and 1 <= value <= PARALLEL_MAX


def _is_price(value: object) -> bool:
    """Of input and output; the numbers themselves are checked with the settings."""
    return isinstance(value, Mapping) and set(value) == {"input", "output"}


#: What may be said: the field, its check, and what a refusal says that it must be.
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("max_parallel", _is_parallel, f"a whole number from 1 to {PARALLEL_MAX:,}"),
    ("rpm", _is_rate, f"a number from {RATE_MIN:g} to {RATE_MAX:g}"),
    ("tpm", _is_rate, f"a number from {RATE_MIN:g} to {RATE_MAX:g}"),
    ("usd_per_million_tokens", _is_price, "a mapping such as {'input': 1.25, 'output': 10}"),
    ("reply_deadline_seconds", _is_rate, "above 0"),
    ("reply_body_bytes_max", _is_count, "a whole number above 0"),
    ("reply_header_bytes_max", _is_count, "a whole number above 0"),
    ("classify", callable, "a function of a ReplyFacts"),
    ("api", DIALECTS.__contains__, " or ".join(map(repr, DIALECTS))),
    ("account_errors", lambda said: type(said) is bool, "True or False"),
    ("algorithm", ALGORITHMS.__contains__, " or ".join(map(repr, ALGORITHMS))),
    ("paid", lambda paid: type(paid) is bool, "True or False"),
    ("in_doubt", IN_DOUBT.__contains__, " or ".join(map(repr, IN_DOUBT))),
    ("redirects", REDIRECTS.__contains__, " or ".join(map(repr, REDIRECTS))),
)


def _check_credentials(name: str, options: ProviderOptions) -> None:
    """Refuse what is no secret; what was given instead is not quoted."""
    if options.api_key is not None and not isinstance(options.api_key, Secret):
        raise UsageError(
            f"api_key of provider {name!r} is a penstock.Secret: write Secret.env('NAME') or "
            "Secret.file('PATH'), and keep the key itself out of the code."
        )
    for header, value in options.headers.items():
        problem = header_problem(header or None)
        if problem is not None or not isinstance(value, str | Secret):
            raise UsageError(
                f"headers of provider {name!r} is a mapping of names to texts or secrets, got "
                f"{header!r:.100}."
            )


def _check(about: str, options: ProviderOptions | ModelOptions) -> None:
    """Refuse what no request could pass."""
    for name, fits, rule in _RULES:
        value = getattr(options, name, None)
        if value is not None and not fits(value):
            raise UsageError(f"{name} of {about} is {rule}, got {value!r:.200}.")
    for name, problem_of in (
        ("base_url", base_url_problem),
        ("idempotency_header", header_problem),
    ):
        value = getattr(options, name, None)
        problem = None if value is None else problem_of(value)
        if problem is not None:
            raise UsageError(f"{name} of {about} {problem}, got {value!r:.200}.")

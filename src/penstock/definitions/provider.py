# SPDX-License-Identifier: Apache-2.0
"""What did a user say about a rate-limited service, and how does a task reach it?

A provider is defined once, in the app; a run gives it its clients. So the same object works on the
loop, in threads, in tests and in every worker, and does nothing where nobody admits its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Protocol

import msgspec

from penstock.definitions.request import check_name
from penstock.errors import ProviderNotAvailableHere, UsageError

#: HTTP libraries for which there are clients.
Library = Literal["httpx2", "httpx"]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an author may say about one model; None means: nothing, or as configured."""

    max_parallel: int | None = None
    rpm: float | None = None
    tpm: float | None = None


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an author may say about a provider; None means: nothing, or as configured."""

    base_url: str | None = None
    max_parallel: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    algorithm: str | None = None
    models: Mapping[str, ModelOptions] = {}


class ProviderClients(Protocol):
    """What a run gives to a provider."""

    @property
    def http(self) -> Any:  # noqa: ANN401 (a client of a library that may not be installed)
        ...

    @property
    def http_sync(self) -> Any: ...  # noqa: ANN401

    def http_client(self, library: Library) -> Any: ...  # noqa: ANN401

    def http_client_sync(self, library: Library) -> Any: ...  # noqa: ANN401

    def admit(
        self, model: str | None, domain: str, tokens: int | None
    ) -> AbstractAsyncContextManager[None]: ...

    def admit_sync(
        self, model: str | None, domain: str, tokens: int | None
    ) -> AbstractContextManager[None]: ...


class Provider:
    """A rate-limited service, as a task sees it."""

    def __init__(self, name: str, options: ProviderOptions) -> None:
        check_name("provider name", name)
        if "/" in name:
            raise UsageError(f"The name of provider {name!r} cannot hold a '/'.")
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

    def bind(self, clients: ProviderClients | None) -> None:
        """A run begins, or (None) ends."""
        self._clients = clients

    @property
    def clients(self) -> ProviderClients:
        if self._clients is None:
            raise ProviderNotAvailableHere(
                f"Provider {self.name!r} is used where no run admits its requests; use it inside a "
                "task that runs on the loop or in a thread."
            )
        return self._clients

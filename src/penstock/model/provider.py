# SPDX-License-Identifier: Apache-2.0
"""Which remote service is meant, under which names?"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class ProviderModelKey(NamedTuple):
    """What a provider limits as one thing."""

    provider: str
    model: str  # for plain HTTP the host, or a name that the user gave


class RequestResourceKey(NamedTuple):
    """What one request asks for."""

    provider: str
    model: str
    domain: str  # chat, embedding, image, healthcheck, http

    @property
    def provider_model(self) -> ProviderModelKey:
        return ProviderModelKey(self.provider, self.model)


class Endpoint(msgspec.Struct, frozen=True):
    """A service that a task calls; those with the same resource are one, whatever their alias."""

    resource: RequestResourceKey
    alias: str = ""  # what the user calls it
    cap: int | None = None  # requests at once that were declared under this alias

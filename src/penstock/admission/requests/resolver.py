# SPDX-License-Identifier: Apache-2.0
"""Resolves requests to resource keys: provider, model and domain.

The one place that turns names, base URLs, paths and body fields into a key. Providers with the same
base URL are one endpoint under several names, and so are a model and its aliases: they share one
cap, the least that was declared, and everybody who declared one is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec

from penstock.admission.requests.policy import ProviderPolicy, RequestCaps
from penstock.errors import UsageError
from penstock.model.provider import RequestResourceKey
from penstock.model.request import DeclaredCap

CHAT, EMBEDDING, IMAGE, HEALTHCHECK, HTTP = "chat", "embedding", "image", "healthcheck", "http"
DOMAINS = (CHAT, EMBEDDING, IMAGE, HEALTHCHECK, HTTP)
MODEL_LENGTH_MAX = 256  # characters; what is longer is no name
PROVIDER_WIDE = ""  # among the contributors: caps of the whole provider

_PORTS = {"http": 80, "https": 443}
_LAST = {  # segment of a path: domain
    "messages": CHAT,
    "responses": CHAT,
    "completions": CHAT,
    "embeddings": EMBEDDING,
    "generatecontent": CHAT,
    "streamgeneratecontent": CHAT,
    "embedcontent": EMBEDDING,
    "batchembedcontents": EMBEDDING,
}
_BEFORE_MODEL = frozenset({"models", "deployments"})  # segments that a model's name follows


class DeclaredProvider(msgspec.Struct, frozen=True):
    """A provider under the name that a user gave it."""

    policy: ProviderPolicy
    base_url: str | None = None
    model: str | None = None  # what plain HTTP requests ask for; None: their host
    aliases: Mapping[str, str] = {}  # of models: what else they are called → the model


class RequestResourceResolver:
    """Owns which names mean the same resource. Knows no limit and no order.

    Raises:
        UsageError: two declarations have one name, or aliases lead in a circle.
    """

    def __init__(self, declared: Iterable[DeclaredProvider]) -> None:
        self._declared: dict[str, DeclaredProvider] = {}
        self._canonical: dict[str, str] = {}  # name of a provider → the name it is counted under
        self._models: dict[str, dict[str, str]] = {}  # by that name: alias → model
        by_url: dict[str, str] = {}
        for one in declared:
            name = one.policy.name
            if name in self._declared:
                raise UsageError(f"Two providers are named {name!r}; rename one.")
            self._declared[name] = one
            url = None if one.base_url is None else _normal_url(one.base_url)
            first = name if url is None else by_url.setdefault(url, name)
            self._canonical[name] = first
            self._models.setdefault(first, {}).update(one.aliases)
        for name in self._models:
            for alias in self._models[name]:
                self._model(name, alias)

    def __repr__(self) -> str:
        one = len(set(self._canonical.values()))
        return f"<RequestResourceResolver {len(self._declared)} providers, {one} endpoints>"

    def resolve(
        self,
        provider: str,
        *,
        host: str = "",
        path: str = "",
        model: object = None,
        domain: str | None = None,
    ) -> RequestResourceKey:
        """Return the resource key of a request to a host and path, with a `model` in its body.

        What is no name of a model is as good as none: then the path's, the user's or the host.
        """
        if domain is None:
            domain = domain_of(path)
        elif domain not in DOMAINS:
            raise UsageError(f"A domain is one of {', '.join(DOMAINS)}, got {domain!r}.")
        one = self._declared.get(provider)
        canonical = self._canonical.get(provider, provider)
        named = None if domain == HTTP and host else _name(model)
        if named is None and domain != HTTP:
            named = _model_of_path(path)
        if named is None:
            own = None if one is None else one.model
            named = own or host.lower().rstrip(".") or provider
        return RequestResourceKey(canonical, self._model(canonical, named), domain)

    def policies(self) -> list[ProviderPolicy]:
        """Return the merged policy of each endpoint: the least of all that was declared."""
        merged: dict[str, ProviderPolicy] = {}
        declared: dict[str, dict[str, list[DeclaredCap]]] = {}
        for name, one in self._declared.items():
            canonical, policy = self._canonical[name], one.policy
            known = merged.get(canonical) or ProviderPolicy(
                canonical, algorithm=policy.algorithm, aimd=policy.aimd
            )
            contributors = declared.setdefault(canonical, {})
            _contribute(contributors, PROVIDER_WIDE, name, policy.caps)
            models = dict(known.models)
            for alias, caps in policy.models.items():
                model = self._model(canonical, alias)
                models[model] = models.get(model, RequestCaps()).least(caps)
                _contribute(contributors, model, f"{name}/{alias}", caps)
            merged[canonical] = msgspec.structs.replace(
                known, caps=known.caps.least(policy.caps), models=models
            )
        return [
            msgspec.structs.replace(
                policy, contributors={key: tuple(caps) for key, caps in declared[name].items()}
            )
            for name, policy in merged.items()
        ]

    def _model(self, provider: str, name: str) -> str:
        aliases = self._models.get(provider)
        if not aliases:
            return name
        seen = {name}
        while (next_name := aliases.get(name)) is not None:
            if next_name in seen:
                raise UsageError(
                    f"The aliases of models of provider {provider!r} lead in a circle at {name!r}."
                )
            seen.add(next_name)
            name = next_name
        return name


def domain_of(path: str) -> str:
    """Return the domain of a path; `http` if it is none of the known ones."""
    segments = _segments(path)
    if not segments:
        return HTTP
    last = segments[-1].lower().rpartition(":")[2]  # Google's verbs stand after a colon
    if len(segments) > 1 and segments[-2].lower() == "images":
        return IMAGE
    return _LAST.get(last, HTTP)


def _model_of_path(path: str) -> str | None:
    segments = _segments(path)
    for before, segment in pairwise(segments):
        if before.lower() in _BEFORE_MODEL:
            return _name(segment.partition(":")[0])
    return None


def _segments(path: str) -> list[str]:
    return [segment for segment in path.partition("?")[0].split("/") if segment]


def _name(model: object) -> str | None:
    if not isinstance(model, str) or not 0 < len(model) <= MODEL_LENGTH_MAX:
        return None
    return model if model.isprintable() else None


def _normal_url(url: str) -> str:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    host = (parts.hostname or "").rstrip(".")
    port = parts.port
    if port == _PORTS.get(scheme):
        port = None
    return f"{scheme}://{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _contribute(
    contributors: dict[str, list[DeclaredCap]], model: str, alias: str, caps: RequestCaps
) -> None:
    if caps.max_parallel is not None:
        contributors.setdefault(model, []).append(DeclaredCap(alias, caps.max_parallel))

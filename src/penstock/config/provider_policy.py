# SPDX-License-Identifier: Apache-2.0
"""Policies of providers from code and settings: caps, algorithm, idempotency header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.admission.requests.policy import (
    AimdConfig,
    ProcessShare,
    ProviderPolicy,
    RequestCaps,
)
from penstock.config.load import DEFAULT, LoadedSettings, dotted, nearest_known
from penstock.config.settings import ProviderSettings, Settings
from penstock.definitions.column import Column, FunctionColumn, JudgeColumn, LlmColumn
from penstock.definitions.provider import Provider
from penstock.definitions.table import Table
from penstock.definitions.task import Task
from penstock.errors import ConfigError, UsageError
from penstock.model.provider import IDEMPOTENCY_HEADER

#: Hosts whose dialect need not be said.
DIALECT_HOSTS = {"api.openai.com": "openai", "api.anthropic.com": "anthropic"}

_DEFINITION = "app.provider(...)"


def check_providers(
    loaded: LoadedSettings, tasks: Mapping[str, Task[..., Any]], providers: Mapping[str, Provider]
) -> None:
    """Refuse settings about, and tasks of, a provider that the app does not define."""
    for name in loaded.settings.providers.keys() - providers.keys():
        table = dotted(("providers", name))
        said = [source for path, source in loaded.sources.items() if path.startswith(f"{table}.")]
        source = next((one for one in said if one != DEFAULT), DEFAULT)
        raise ConfigError(
            f"{table} is about a provider that the app does not define (from {source}); "
            f"{nearest_known(name, providers, 'app.provider(...)')}."
        )
    for provider in providers.values():
        found = loaded.settings.providers.get(provider.name, ProviderSettings())
        _check_credentials(provider, found)
    for task in tasks.values():
        for endpoint in task.endpoints:
            name = endpoint.resource.provider
            if name not in providers:
                raise UsageError(
                    f"Task {task.name!r} uses the provider {name!r}, which the app does not "
                    f"define; {nearest_known(name, providers, 'app.provider(...)')}."
                )


def check_tables(
    loaded: LoadedSettings, tables: Mapping[str, Table], providers: Mapping[str, Provider]
) -> None:
    """Refuse tables with a mistake, and columns that call a provider which nobody can reach."""
    for table in tables.values():
        table.validate()
        for column in table.columns.values():
            what = f"Column {column.name!r} of table {table.name!r}"
            for name, provider in _called(column):
                if name not in providers:
                    raise UsageError(
                        f"{what} uses the provider {name!r}, which the app does not define; "
                        f"{nearest_known(name, providers, 'app.provider(...)')}."
                    )
                if provider is not None and provider is not providers[name]:
                    raise UsageError(
                        f"{what} has a model of a provider {name!r} of another app; take it from "
                        "the provider of this one."
                    )
                said = loaded.settings.providers.get(name, ProviderSettings())
                if provider is not None and said.base_url is None:
                    raise UsageError(
                        f"{what} asks a model of provider {name!r}, which has no base_url; write "
                        f"app.provider({name!r}, base_url='https://…')."
                    )


def _called(column: Column) -> list[tuple[str, Provider | None]]:
    """The providers that a column calls, by name; None: it is known by its name only."""
    if isinstance(column, LlmColumn | JudgeColumn):
        return [(column.model.provider.name, column.model.provider)]
    if isinstance(column, FunctionColumn):
        return [(endpoint.resource.provider, None) for endpoint in column.uses]
    return []


def _check_credentials(provider: Provider, said: ProviderSettings) -> None:
    """Refuse a key of which nobody knows how, or to whom, it is sent."""
    name, options = provider.name, provider.options
    if options.api_key is not None and dialect_of(said) is None:
        raise UsageError(
            f"api_key of provider {name!r} needs api='openai' or api='anthropic', which says how "
            "it is sent; for another service write headers={'NAME': Secret.env('KEY')}."
        )
    if (options.api_key is not None or options.headers) and said.base_url is None:
        raise UsageError(
            f"The key and the headers of provider {name!r} are sent to its base_url only; write "
            "base_url='https://…' as well."
        )


def provider_policies(
    settings: Settings, providers: Mapping[str, Provider]
) -> dict[str, ProviderPolicy]:
    """What is declared for each provider of an app, in code and in settings."""
    return {
        name: _policy(name, settings.providers.get(name, ProviderSettings())) for name in providers
    }


def idempotency_header(said: ProviderSettings) -> str | None:
    """Under which header a provider knows a call again; "": none, None: as its client says."""
    if said.idempotency_header is not None:
        return said.idempotency_header
    return None if dialect_of(said) is None else IDEMPOTENCY_HEADER


def account_errors(said: ProviderSettings) -> bool | None:
    """Whether 401, 402 and 403 are about the account; None: of requests that an SDK makes."""
    if said.account_errors is not None:
        return said.account_errors
    return None if dialect_of(said) is None else True


def dialect_of(said: ProviderSettings) -> str | None:
    """The dialect that a provider speaks; None: plain HTTP."""
    return said.api or DIALECT_HOSTS.get(urlsplit(said.base_url or "").hostname or "")


def unserved_tasks(
    tasks: Mapping[str, Task[..., Any]],
    policies: Mapping[str, ProviderPolicy],
    share: ProcessShare,
) -> frozenset[str]:
    """Tasks that this process leaves to others: it has no slot of a provider that they call."""
    return frozenset(
        name
        for name, task in tasks.items()
        for endpoint in task.endpoints
        for policy in (policies[endpoint.resource.provider],)
        for caps in (policy.caps, policy.model_caps(endpoint.resource.model))
        if caps.max_parallel is not None and not share.of(caps.max_parallel)
    )


def _policy(name: str, said: ProviderSettings) -> ProviderPolicy:
    return ProviderPolicy(
        name,
        caps=RequestCaps(said.max_parallel, said.rpm, said.tpm),
        models={
            model: RequestCaps(caps.max_parallel, caps.rpm, caps.tpm)
            for model, caps in said.models.items()
        },
        algorithm=said.algorithm,
        aimd=AimdConfig(
            initial_limit=said.initial_limit,
            decrease_factor=said.decrease_factor,
            successes_until_increase=said.successes_until_increase,
            cooldown_seconds=said.cooldown_seconds,
            startup_ramp_seconds=said.startup_ramp_seconds,
        ),
    )

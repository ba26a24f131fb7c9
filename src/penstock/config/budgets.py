# SPDX-License-Identifier: Apache-2.0
"""Budgets and prices from the settings, and checks that each of them counts something."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.config.load import BUDGET, DEFAULT, LoadedSettings, dotted, nearest_known
from penstock.config.settings import ProviderSettings, ScopeBudget, Settings, SpanBudget, micros_of
from penstock.definitions.provider import Provider
from penstock.definitions.task import Task
from penstock.errors import ConfigError
from penstock.model.provider import ANY
from penstock.model.spending import ALL, Budget, Period, Price, price_setting

Tasks = Mapping[str, Task[..., Any]]

_NO_SOURCES: Mapping[str, str] = {}
_COUNTS_NOTHING = (
    "counts nothing, since no provider of the app is paid; set paid = true in [providers.NAME]"
)


def budgets_of(settings: Settings, sources: Mapping[str, str] = _NO_SOURCES) -> tuple[Budget, ...]:
    """Every budget that is set, the wider ones first, with who has said so."""
    found = list(_of_scope(ALL, settings.budget, (BUDGET,), sources))
    for kind in ("provider", "model", "task"):
        scopes: Mapping[str, ScopeBudget] = getattr(settings.budget, kind)
        for name, said in scopes.items():
            found += _of_scope(f"{kind}:{name}", said, (BUDGET, kind, name), sources)
    return tuple(found)


def _of_scope(
    scope: str, said: ScopeBudget, table: tuple[str, ...], sources: Mapping[str, str]
) -> Iterator[Budget]:
    for period in Period:
        span: SpanBudget = getattr(said, period.value)
        place = (*table, period.value)
        if span.usd is not None or span.tokens is not None:
            yield Budget(
                scope,
                period,
                None if span.usd is None else micros_of(span.usd),
                span.tokens,
                usd_from=sources.get(dotted((*place, "usd")), ""),
                tokens_from=sources.get(dotted((*place, "tokens")), ""),
            )


def prices_of(said: ProviderSettings) -> dict[str, Price]:
    """What the models of a provider cost, by name."""
    return {
        name: Price(micros_of(price.input), micros_of(price.output))
        for name, model in said.models.items()
        if (price := model.usd_per_million_tokens) is not None
    }


def unpriced_providers(settings: Settings) -> list[str]:
    """Paid providers without any price, whose calls a budget of dollars will refuse."""
    dollar = {one.scope for one in budgets_of(settings) if one.micros is not None}
    return [
        name
        for name, said in settings.providers.items()
        if said.paid and not prices_of(said) and not dollar.isdisjoint((ALL, f"provider:{name}"))
    ]


def check_budgets(loaded: LoadedSettings, tasks: Tasks, providers: Mapping[str, Provider]) -> None:
    """Refuse budgets that would count nothing, or dollars without a known price."""
    settings = loaded.settings
    paid = {name for name in providers if _of(settings, name).paid}
    for budget in budgets_of(settings, loaded.sources):
        problem = _scope_problem(budget, tasks, providers, paid)
        if problem is None and budget.micros is not None:
            problem = _price_problem(budget, settings, tasks, paid)
        if problem is not None:
            sources = (budget.usd_from, budget.tokens_from)
            source = next((one for one in sources if one not in ("", DEFAULT)), DEFAULT)
            raise ConfigError(f"{budget.name} (from {source}) {problem}.")


def _scope_problem(
    budget: Budget, tasks: Tasks, providers: Mapping[str, Provider], paid: Collection[str]
) -> str | None:
    kind, _, name = budget.scope.partition(":")
    if kind == "task" and name not in tasks:
        return f"is about a task that the app does not define; {nearest_known(name, tasks)}"
    if kind not in ("provider", "model"):
        return None if paid else _COUNTS_NOTHING
    provider = name.partition("/")[0]
    if provider not in providers:
        near = nearest_known(provider, providers)
        return f"is about a provider that the app does not define; {near}"
    if provider not in paid:
        return (
            f"counts nothing, since the calls of provider {provider!r} cost nothing; set "
            f"paid = true in [providers.{provider}]"
        )
    return None


def _price_problem(
    budget: Budget, settings: Settings, tasks: Tasks, paid: Collection[str]
) -> str | None:
    """A model without a price; one that is only seen when it is called is refused then."""
    for provider, model in sorted(_covered(budget, settings, tasks, paid)):
        if model not in prices_of(_of(settings, provider)):
            return (
                f"counts dollars, and the price of {provider}/{model} is not known; set "
                f"{price_setting(provider, model)}"
            )
    return None


def _covered(
    budget: Budget, settings: Settings, tasks: Tasks, paid: Collection[str]
) -> set[tuple[str, str]]:
    """The models that are known to be paid from a budget."""
    kind, _, name = budget.scope.partition(":")
    if kind == "model":
        provider, _, model = name.partition("/")
        return {(provider, model)}
    named = [tasks[name]] if kind == "task" else list(tasks.values())
    used = {
        (key.provider, key.model) for task in named for key in (e.resource for e in task.endpoints)
    }
    found = {(provider, model) for provider, model in used if model != ANY and provider in paid}
    open_to = {provider for provider, model in used if model == ANY} if kind == "task" else paid
    found |= {(one, model) for one in open_to if one in paid for model in _of(settings, one).models}
    return {one for one in found if kind != "provider" or one[0] == name}


def _of(settings: Settings, provider: str) -> ProviderSettings:
    return settings.providers.get(provider, ProviderSettings())

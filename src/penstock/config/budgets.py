# SPDX-License-Identifier: Apache-2.0
"""Budgets and prices from the settings, and checks that each of them counts something."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from penstock.config.load import BUDGET, DEFAULT, PRICES, Loaded, dotted
from penstock.config.settings import ProviderSettings, ScopeBudget, Settings, SpanBudget, micros_of
from penstock.definitions.provider import Provider
from penstock.definitions.task import Task
from penstock.errors import ConfigError
from penstock.model.provider import ANY
from penstock.model.spending import ALL, Budget, Period, Price

Tasks = Mapping[str, Task[..., Any]]

_NO_SOURCES: Mapping[str, str] = {}


class SetBudget(msgspec.Struct, frozen=True):
    """A budget, and where it stands among the settings."""

    budget: Budget
    table: tuple[str, ...]


def budgets_of(settings: Settings, sources: Mapping[str, str] = _NO_SOURCES) -> tuple[Budget, ...]:
    """Every budget that is set, the wider ones first, with who has said so."""
    return tuple(
        msgspec.structs.replace(
            one.budget,
            usd_from=sources.get(dotted((*one.table, "usd")), ""),
            tokens_from=sources.get(dotted((*one.table, "tokens")), ""),
        )
        for one in _set_budgets(settings)
    )


def prices_of(said: ProviderSettings) -> dict[str, Price]:
    """What the models of a provider cost, by name."""
    return {
        name: Price(micros_of(price.input), micros_of(price.output))
        for name, model in said.models.items()
        if (price := model.usd_per_million_tokens) is not None
    }


def price_setting(provider: str, model: str) -> str:
    """Where the price of a model is to be said."""
    return f'{PRICES} = {{ input = …, output = … }} in [providers.{provider}.models."{model}"]'


def unpriced_providers(settings: Settings) -> list[str]:
    """Paid providers without any price, whose calls a budget of dollars will refuse."""
    dollar = {one.scope for one in budgets_of(settings) if one.micros is not None}
    return [
        name
        for name, said in settings.providers.items()
        if said.paid and not prices_of(said) and not dollar.isdisjoint((ALL, f"provider:{name}"))
    ]


def check_budgets(loaded: Loaded, tasks: Tasks, providers: Mapping[str, Provider]) -> None:
    """Refuse budgets that would count nothing, or dollars that nobody has told the price of."""
    settings = loaded.settings
    paid = {name for name in providers if _of(settings, name).paid}
    for one in _set_budgets(settings):
        place = _Place(one, _source(loaded, one))
        kind, _, name = one.budget.scope.partition(":")
        if kind in ("provider", "model"):
            _check_paid(place, name.partition("/")[0], providers, paid)
        elif kind == "task" and name not in tasks:
            raise place.refused(
                f"is about a task that the app does not define; {_near(name, tasks)}"
            )
        elif kind == "table":
            raise place.refused("is about a table, and the app defines none")
        elif not paid:
            raise place.refused(
                "counts nothing, since no provider of the app is paid; say paid = true in "
                "[providers.NAME]"
            )
        if one.budget.micros is not None:
            _check_prices(place, settings, tasks, paid)


class _Place(msgspec.Struct, frozen=True):
    """A budget, and who set it."""

    set: SetBudget
    source: str

    def refused(self, why: str) -> ConfigError:
        return ConfigError(f"{self.set.budget.name} (from {self.source}) {why}.")


def _check_paid(
    place: _Place, name: str, providers: Mapping[str, Provider], paid: Collection[str]
) -> None:
    if name not in providers:
        raise place.refused(
            f"is about a provider that the app does not define; {_near(name, providers)}"
        )
    if name not in paid:
        raise place.refused(
            f"counts nothing, since the calls of provider {name!r} cost nothing; say paid = true "
            f"in [providers.{name}]"
        )


def _check_prices(place: _Place, settings: Settings, tasks: Tasks, paid: Collection[str]) -> None:
    """A model that is only seen when it is called is refused then."""
    for provider, model in sorted(_covered(place.set.budget, settings, tasks, paid)):
        if model not in prices_of(_of(settings, provider)):
            raise place.refused(
                f"counts dollars, and the price of {provider}/{model} is not known; say "
                f"{price_setting(provider, model)}"
            )


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


def _set_budgets(settings: Settings) -> Iterator[SetBudget]:
    root = settings.budget
    yield from _scope(ALL, root, (BUDGET,))
    for kind in ("provider", "model", "task", "table"):
        scopes: Mapping[str, ScopeBudget] = getattr(root, kind)
        for name, said in scopes.items():
            yield from _scope(f"{kind}:{name}", said, (BUDGET, kind, name))


def _scope(scope: str, said: ScopeBudget, table: tuple[str, ...]) -> Iterator[SetBudget]:
    spans: tuple[tuple[Period, SpanBudget, tuple[str, ...]], ...] = (
        (Period.RUN, said, table),
        (Period.DAY, said.day, (*table, "day")),
    )
    for period, span, place in spans:
        if span.usd is not None or span.tokens is not None:
            micros = None if span.usd is None else micros_of(span.usd)
            yield SetBudget(Budget(scope, period, micros, span.tokens), place)


def _of(settings: Settings, provider: str) -> ProviderSettings:
    return settings.providers.get(provider, ProviderSettings())


def _source(loaded: Loaded, one: SetBudget) -> str:
    sources = [loaded.sources.get(dotted((*one.table, field))) for field in ("usd", "tokens")]
    return next((source for source in sources if source not in (None, DEFAULT)), None) or DEFAULT


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"the nearest known one is {near[0]!r}"
    return f"known are {', '.join(map(repr, sorted(known)))}" if known else "it has none"

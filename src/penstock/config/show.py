# SPDX-License-Identifier: Apache-2.0
"""Settings with their sources: the list of `config show`, and the configured capacity plan."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from penstock.config.budgets import budgets_of
from penstock.config.load import (
    DEFAULT,
    PENSTOCK_TOML,
    PYPROJECT_TOML,
    LoadedSettings,
    dotted,
    is_secret,
    walk,
)
from penstock.config.settings import ProviderSettings, Settings, micros_of
from penstock.definitions.provider import Provider
from penstock.model.run import CapacityFact, CapacityValue, missing
from penstock.model.spending import format_usd
from penstock.redaction.secrets import REDACTED, redacted

LIST_LENGTH_MAX = 100  # characters of a list that are shown

_HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_ENTRY = re.compile(r"^\s*([^=#\[]+?)\s*=")
_ABOVE: dict[str, tuple[str, ...]] = {PENSTOCK_TOML: (), PYPROJECT_TOML: ("tool", "penstock")}

NO_TABLES = "this version has no tables"
NO_PROVIDERS = "the app has no providers"
NO_LIMITS = "no limit is configured"
NO_BUDGET = "no budget is configured"
UNLIMITED = "nobody set one: it is learned"
CODE_OR_DEFAULT = "code or default"  # whoever built the worker did not say which

#: What can be tuned, by algorithm.
_TUNING = {
    "adaptive": (),
    "aimd": (
        "decrease_factor",
        "successes_until_increase",
        "cooldown_seconds",
        "startup_ramp_seconds",
    ),
}
_CAPS = ("max_parallel", "rpm", "tpm")


@dataclass(frozen=True, slots=True)
class ListedSetting:
    """One setting as it may be shown: without secrets."""

    name: str
    value: str | int | float | None
    source: str
    line: int | None  # in the file that is the source, where it could be found


def list_settings(loaded: LoadedSettings, folder: Path) -> list[ListedSetting]:
    """Every setting, in the order of the model."""
    texts = {name: _text(folder / name) for name in _ABOVE}
    listed = []
    for path, value in walk(loaded.settings):
        name = dotted(path)
        source = loaded.sources[name]
        text = texts.get(source)
        line = None if text is None else line_of(text, (*_ABOVE[source], *path))
        listed.append(ListedSetting(name, _shown(name, value), source, line))
    return listed


def _shown(name: str, value: object) -> str | int | float | None:
    if isinstance(value, int | float) or value is None:
        return value
    if isinstance(value, Decimal):
        return format_usd(micros_of(value))
    if isinstance(value, list):
        value = _listed(value)
    return REDACTED if is_secret(name) else redacted(str(value))


def _listed(values: list[object]) -> str:
    """The values of a dimension, as in a file, as far as a line can hold them."""
    text = json.dumps(values, default=str, ensure_ascii=False)
    return text if len(text) <= LIST_LENGTH_MAX else f"{text[:LIST_LENGTH_MAX]}… ({len(values):,})"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line that sets a name, if it is written as one; None if absent or ambiguous."""
    table: tuple[str, ...] | None = ()
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(f"[{header[1]}]")
        elif table is not None and (entry := _ENTRY.match(line)):
            parts = _parts(f"{entry[1]} = 0")
            if parts is not None and (*table, *parts) == path:
                found.append(number)
    return found[0] if len(found) == 1 else None


def _parts(text: str) -> tuple[str, ...] | None:
    """The parts of the one key of a TOML text, whatever its dots and quotes."""
    try:
        tree: object = tomllib.loads(text)
    except ValueError:
        return None
    parts = []
    while isinstance(tree, dict) and tree:
        name, tree = next(iter(tree.items()))
        parts.append(name)
    return tuple(parts)


def configured_capacity(
    settings: Settings, sources: Mapping[str, str], providers: Iterable[str | Provider]
) -> dict[str, CapacityValue]:
    """The values of a capacity plan that are known at the start of a run."""
    runtime = settings.runtime
    slots = runtime.slots_by_kind()
    names = [f"runtime.{kind}_slots" for kind in slots]
    in_all = CapacityValue(sum(slots.values()), " + ".join(names))
    if runtime.slots is not None and runtime.slots < sum(slots.values()):
        in_all = _said(runtime.slots, "runtime.slots", sources)
    found: dict[str, CapacityValue] = {
        "buffer_size": missing(NO_TABLES),
        "row_group_concurrency": missing(NO_TABLES),
        "submission_capacity": in_all,
    }
    for (kind, count), name in zip(slots.items(), names, strict=True):
        found[f"resource_limits.{kind}"] = _said(count, name, sources)
    limits = settings.caps()
    if not limits:
        found["keyed_limits"] = missing(NO_LIMITS)
    for key, cap in limits.items():
        dimension, _, name = key.partition(":")
        path = dotted(("limits", dimension, name))
        found[f"keyed_limits.{key}"] = CapacityValue(cap, sources.get(path, path))
    budgets = budgets_of(settings, sources)
    if not budgets:
        found["budgets"] = missing(NO_BUDGET)
    for budget in budgets:
        counted = ((budget.micros, budget.usd_from), (budget.tokens, budget.tokens_from))
        said = ", ".join(dict.fromkeys(source for cap, source in counted if cap is not None))
        found[f"budgets.{budget.name}"] = CapacityValue(
            budget.format_amount(budget.cap), said or budget.name
        )
    served = [one if isinstance(one, str) else one.name for one in providers]
    if not served:
        absent = ("request_resources", "static_caps", "initial_limits", "admission_tuning")
        return found | dict.fromkeys((*absent, "transport_pool"), missing(NO_PROVIDERS))
    found["request_resources"] = CapacityValue(", ".join(sorted(served)), "app.provider")
    for name in served:
        found |= _of_provider(name, settings.providers.get(name, ProviderSettings()), sources)
    found["transport_pool"] = CapacityValue("unbounded", "admission bounds what is in flight")
    return found


def _of_provider(
    name: str, said: ProviderSettings, sources: Mapping[str, str]
) -> dict[str, CapacityValue]:
    """What is configured for one provider and its models."""
    found: dict[str, CapacityValue] = {}
    scopes: list[tuple[tuple[str, ...], str, Mapping[str, float | None]]] = [
        (("providers", name), name, {one: getattr(said, one) for one in _CAPS})
    ]
    for model, caps in said.models.items():
        of_model = {one: getattr(caps, one) for one in _CAPS}
        scopes.append((("providers", name, "models", model), f"{name}/{model}", of_model))
    for path, shown, values in scopes:
        for cap, value in values.items():
            setting = dotted((*path, cap))
            key = f"static_caps.{shown}.{cap}"
            found[key] = (
                CapacityValue(None, fallback_from=setting, missing_reason=UNLIMITED)
                if value is None
                else _said(value, setting, sources)
            )
    initial = dotted(("providers", name, "initial_limit"))
    found[f"initial_limits.{name}"] = (
        CapacityValue(None, fallback_from=initial, missing_reason=f"{said.algorithm} begins itself")
        if said.initial_limit is None
        else _said(said.initial_limit, initial, sources)
    )
    found[f"admission_tuning.{name}"] = CapacityValue(
        said.algorithm, sources.get(dotted(("providers", name, "algorithm")), CODE_OR_DEFAULT)
    )
    for one in _TUNING[said.algorithm]:
        setting = dotted(("providers", name, one))
        found[f"admission_tuning.{name}.{one}"] = _said(getattr(said, one), setting, sources)
    return found


def _said(value: CapacityFact, setting: str, sources: Mapping[str, str]) -> CapacityValue:
    """A value and who set it; if nobody did, which setting the default stands for."""
    source = sources.get(setting, CODE_OR_DEFAULT)
    return CapacityValue(value, source, setting if source == DEFAULT else None)

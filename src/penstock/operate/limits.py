# SPDX-License-Identifier: Apache-2.0
"""Changes what workers may take while they run: keyed limits, and the pause of the whole queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config.settings import COUNT_MAX
from penstock.errors import UsageError
from penstock.model.job import NAME_LENGTH_MAX
from penstock.model.lease import ConfiguredCaps
from penstock.operate.actions import answer, audit
from penstock.stores.protocol import Store

AS_CONFIGURED = ("default", "none")  # instead of a number
DIGITS_MAX = 10  # of a number, leading zeros included
KEYS_SHOWN = 1_000  # limit keys with holders that are listed
NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True)
class LimitView:
    """One limit key: None is no limit, or no override."""

    configured: int | None
    override: int | None
    cap: int | None  # what holds
    holders: int


@dataclass(frozen=True, slots=True)
class LimitChange:
    """What held for a limit key before a change, and what holds now; None is no limit."""

    before: int | None
    cap: int | None


def check_limit_key(key: str) -> None:
    """Refuse what is no dimension:value."""
    dimension, colon, value = key.partition(":")
    if not (dimension and colon and value):
        raise UsageError(f"A limit key is dimension:value, such as host:example.org; got {key!r}.")
    if max(len(dimension), len(value)) > NAME_LENGTH_MAX:
        raise UsageError(f"Each part of a limit key has at most {NAME_LENGTH_MAX} characters.")


def parse_override(text: str) -> int | None:
    """The number of a limit; None for "default" or "none", as configured."""
    if text.lower() in AS_CONFIGURED:
        return None
    sound = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    if not sound or int(text) > COUNT_MAX:
        raise UsageError(
            f"A limit is a whole number from 0 to {COUNT_MAX:,}, or 'default'; got {text[:40]!r}."
        )
    return int(text)


def set_limit(
    store: Store, configured: Mapping[str, int], key: str, override: int | None
) -> LimitChange:
    """Override a limit for all workers of a store; None forgets the override."""
    caps = ConfiguredCaps(configured)
    overrides = answer(store.caps(), store)
    before = caps.cap(key, overrides)
    answer(store.set_cap(key, override), store)
    overrides = answer(store.caps(), store)
    after = caps.cap(key, overrides)
    audit(
        store.url,
        "Changed the limit %s from %s to %s",
        key,
        format_cap(before),
        format_cap(after),
    )
    return LimitChange(before, after)


def format_cap(cap: int | None) -> str:
    return NO_LIMIT if cap is None else f"{cap:,}"


def limits(
    store: Store, configured: Mapping[str, int], key: str | None = None
) -> dict[str, LimitView]:
    """One limit key, or all that are configured, overridden or held, by key."""
    overrides = answer(store.caps(), store)
    holders = answer(store.holders(KEYS_SHOWN), store)
    caps = ConfiguredCaps(configured)
    keys = sorted({*configured, *overrides, *holders}) if key is None else [key]
    return {
        name: LimitView(
            configured=caps.cap(name, {}),
            override=overrides.get(name),
            cap=caps.cap(name, overrides),
            holders=holders.get(name, 0),
        )
        for name in keys
    }


def used_dimensions(store: Store, configured: Mapping[str, int]) -> set[str]:
    """The dimensions of limit keys that are configured or held."""
    held = store.holders(KEYS_SHOWN).result()
    return {key.partition(":")[0] for key in (*configured, *held)}


def set_paused(store: Store, paused: bool) -> bool:
    """Let no worker of a store take further jobs, or let them again; False: it was so already."""
    if store.stats().result().paused is paused:
        return False
    answer(store.set_paused(paused), store)
    audit(store.url, "Paused the queue" if paused else "Resumed the queue")
    return True


def end_cooldowns(store: Store, provider: str) -> int:
    """Forget the long cool-downs of a provider; how many had not ended."""
    kept = [one for one in answer(store.cooldowns(), store) if one.key.provider == provider]
    for one in kept:
        answer(store.end_cooldown(one.key), store)
    audit(store.url, "Cool-downs of provider %r ended: %d", provider, len(kept))
    return sum(one.left_seconds > 0 for one in kept)

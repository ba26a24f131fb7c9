# SPDX-License-Identifier: Apache-2.0
"""How many may run at once for a limit key, and who changes that while running?"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.operator_actions import answer, audit, only_utf8
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.config.settings import COUNT_MAX
from penstock.errors import PenstockError, UsageError
from penstock.model.job import NAME_LENGTH_MAX
from penstock.model.lease import ConfiguredCaps
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped, print_document, say, table, warn

FORGET = ("default", "none")  # words for "as configured"
DIGITS_MAX = 10  # of a number, leading zeros included
KEYS_SHOWN = 1_000  # limit keys with holders that are listed


def limit(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="A limit key: dimension:value; dimension:* for the rest.",
            callback=only_utf8,
        ),
    ] = None,
    count: Annotated[
        str | None,
        typer.Argument(metavar="[N]", help="How many at once; 0: none; default: as configured."),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a keyed limit while workers run; without arguments, show all of them."""
    target = Target.named(app=app, store=store)
    configured = target.configured().settings.caps()
    if key is not None:
        _check_key(key)
    cap = None if count is None else _cap(count)
    with target.opened_store() as opened:
        if key is None or count is None:
            _show(opened, configured, key, as_json=as_json)
            return
        _warn_of_unknown_dimension(target, opened, configured, key)
        before = _effective(answer(opened.caps(), opened), configured, key)
        answer(opened.set_cap(key, cap), opened)
        after = _effective(answer(opened.caps(), opened), configured, key)
        audit(opened, "Changed the limit %s from %s to %s", key, _word(before), _word(after))
    if as_json:
        print_document({"key": key, "before": before, "cap": after, "override": cap})
    else:
        say(f"{escaped(key)}: {_word(before)} → {_word(after)}")


def _check_key(key: str) -> None:
    dimension, colon, value = key.partition(":")
    if not (dimension and colon and value):
        raise UsageError(f"A limit key is dimension:value, such as host:example.org; got {key!r}.")
    if max(len(dimension), len(value)) > NAME_LENGTH_MAX:
        raise UsageError(f"Each part of a limit key has at most {NAME_LENGTH_MAX} characters.")


def _cap(text: str) -> int | None:
    """The number; None: forget the override."""
    if text.lower() in FORGET:
        return None
    sound = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    if not sound or int(text) > COUNT_MAX:
        raise UsageError(
            f"A limit is a whole number from 0 to {COUNT_MAX:,}, or 'default'; got {text[:40]!r}."
        )
    return int(text)


def _effective(overrides: dict[str, int], configured: dict[str, int], key: str) -> int | None:
    return ConfiguredCaps(configured).cap(key, overrides)


def _word(cap: int | None) -> str:
    return "no limit" if cap is None else f"{cap:,}"


def _show(store: Store, configured: dict[str, int], key: str | None, *, as_json: bool) -> None:
    overrides = answer(store.caps(), store)
    holders = answer(store.holders(KEYS_SHOWN), store)
    keys = sorted({*configured, *overrides, *holders}) if key is None else [key]
    found = {
        name: {
            "configured": ConfiguredCaps(configured).cap(name, {}),
            "override": overrides.get(name),
            "cap": _effective(overrides, configured, name),
            "holders": holders.get(name, 0),
        }
        for name in keys
    }
    if as_json:
        print_document({"limits": found})
        return
    if not found:
        say("No limit is configured or changed, and no limit key is held.")
        return
    head = ["key", "configured", "changed to", "held by"]
    rows = [
        [
            name,
            _word(entry["configured"]),
            "" if entry["override"] is None else f"{entry['override']:,}",
            f"{entry['holders']:,}",
        ]
        for name, entry in found.items()
    ]
    for line in table(head, rows):
        say(line)


def _warn_of_unknown_dimension(
    target: Target, store: Store, configured: dict[str, int], key: str
) -> None:
    """A slip of the pen would limit nothing; say so, if that can be known."""
    dimension = key.partition(":")[0]
    known = {name.partition(":")[0] for name in (*configured, *store.holders(KEYS_SHOWN).result())}
    if dimension in known:
        return
    try:
        tasks = target.app().tasks.values()
    except PenstockError:
        return  # without the app nobody knows
    known |= {name for task in tasks for name in task.options.limits}
    if dimension not in known:
        names = ", ".join(sorted(known)) or "none"
        warn(
            f"No setting and no task knows the dimension {escaped(dimension)!r} (known: "
            f"{escaped(names)}); the limit holds as soon as a job uses it."
        )

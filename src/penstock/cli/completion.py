# SPDX-License-Identifier: Apache-2.0
"""Shell completion of states, tasks, datasets and keys.

Silent on any problem, and without a trace: the app is parsed, the store is only read.
Keys come from anywhere, and a shell evaluates what it completes; so only harmless ones are offered.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.app_inspect import outline_of
from penstock.cli.target import Target, only_utf8
from penstock.errors import PenstockError
from penstock.model.job import JobState
from penstock.stores.open import keys_beginning
from penstock.stores.store_future import aside, within
from penstock.stores.url import default_store_url, is_server
from penstock.terminal_text import escaped, warn

KEYS_MAX = 50
KEYS_COMPARED = 50  # keys of the store that begin like one that is unknown
KEYS_NAMED = 3
ANSWER_SECONDS = 1.0  # a shell waits no longer for the keys of a server
_HARMLESS = re.compile(r"[\w.:/@%+=,-]+")  # in every shell, unquoted


def complete_state(incomplete: str) -> list[str]:
    """Names of states."""
    return [state.value for state in JobState if state.value.startswith(incomplete)]


def complete_task(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tasks, as far as the app file shows them."""
    return _complete_name(context, "tasks", incomplete)


TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Only jobs of this task.",
        autocompletion=complete_task,
        callback=only_utf8,
    ),
]


def complete_dataset(context: typer.Context, incomplete: str) -> list[str]:
    """Names of datasets, as far as the app file shows them."""
    return _complete_name(context, "datasets", incomplete)


def _complete_name(context: typer.Context, kind: str, incomplete: str) -> list[str]:
    try:
        target = _target(context)
        outline = outline_of(target.configured().settings.app, target.folder)
    except Exception:  # a shell has no use for an error
        return []
    names: tuple[str, ...] = getattr(outline, kind)
    return _harmless(sorted(name for name in names if name.startswith(incomplete)))


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    """The first keys of jobs that begin so."""
    try:
        target = _target(context)
        settings = target.configured().settings
        url = None if settings.store is None else settings.store.reveal()
        if url is None:
            name = outline_of(settings.app, target.folder).name
            url = None if name is None else default_store_url(name)
        if url is None:
            return []
        keys = known_keys(url, incomplete, KEYS_MAX, folder=target.folder)
    except Exception:  # a shell has no use for an error
        return []
    return _harmless(keys)


_KEYS = typer.Argument(
    metavar="KEY", help="The keys of jobs.", autocompletion=complete_key, callback=only_utf8
)
KeysArgument = Annotated[list[str], _KEYS]
OptionalKeys = Annotated[list[str] | None, _KEYS]


def warn_of_others(
    target: Target, refused: Mapping[str, str], unknown: Iterable[str], *, quiet: bool = False
) -> int:
    """Say what was left alone, and which keys no job has; the exit code, 1 if there are some."""
    sentences = [*refused.values()]
    for key in unknown:
        sentences.append(f"No job has the key {key!r}{nearest_keys(target, key)}.")
    for sentence in () if quiet else sentences:
        warn(escaped(sentence))
    return 1 if sentences else 0


def known_keys(url: str, start: str, limit: int, *, folder: Path) -> list[str]:
    """Keys of jobs, read without a trace; TimeoutError if a server does not answer."""
    read = partial(keys_beginning, url, start, limit, folder=folder)
    return within(aside(read), ANSWER_SECONDS) if is_server(url) else read()


def _harmless(words: Iterable[str]) -> list[str]:
    return [word for word in words if _HARMLESS.fullmatch(word)]


def _target(context: typer.Context) -> Target:
    given: dict[str, Any] = context.params
    return Target.named(app=given.get("app"), store=given.get("store"))


def nearest_keys(target: Target, key: str) -> str:
    """The nearest of the keys that begin alike, as far as a short look finds them."""
    known: dict[str, str] = {}  # whatever its case → a key
    try:
        url = target.store()[0]
        for start in dict.fromkeys((key[: len(key) // 2], key[:1], key[:1].swapcase(), "")):
            keys = known_keys(url, start, KEYS_COMPARED, folder=target.folder)
            known |= {other.casefold(): other for other in keys}
    except (PenstockError, TimeoutError):
        return ""
    return closest_names(key, known)


def closest_names(key: str, known: Mapping[str, str]) -> str:
    """The closest of what is known, whatever its case → as it is."""
    near = difflib.get_close_matches(key.casefold(), known, KEYS_NAMED, 0.5)
    return f"; closest: {', '.join(repr(known[name]) for name in near)}" if near else ""

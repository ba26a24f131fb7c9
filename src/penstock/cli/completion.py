# SPDX-License-Identifier: Apache-2.0
"""Shell completion of states, tasks, datasets and keys.

Silent on any problem, and without a trace: the app is parsed, the store is only read.
Keys come from anywhere, and a shell evaluates what it completes; so only harmless ones are offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.app_inspect import outline_of
from penstock.cli.target import Target, only_utf8
from penstock.model.job import JobState
from penstock.stores.open import keys_beginning
from penstock.stores.store_future import aside, within
from penstock.stores.url import default_store_url, is_server

KEYS_MAX = 50
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


def known_keys(url: str, start: str, limit: int, *, folder: Path) -> list[str]:
    """Keys of jobs, read without a trace; TimeoutError if a server does not answer."""
    read = partial(keys_beginning, url, start, limit, folder=folder)
    return within(aside(read), ANSWER_SECONDS) if is_server(url) else read()


def _harmless(words: Iterable[str]) -> list[str]:
    return [word for word in words if _HARMLESS.fullmatch(word)]


def _target(context: typer.Context) -> Target:
    given: dict[str, Any] = context.params
    return Target.named(app=given.get("app"), store=given.get("store"))

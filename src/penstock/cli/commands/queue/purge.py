# SPDX-License-Identifier: Apache-2.0
"""`penstock queue purge`: forgets ended jobs: old ones, those of a task, or some by their keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.completion import OptionalKeys, TaskOption, warn_of_others
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, warn_of_unknown_task
from penstock.clock import SystemClock, parse_duration, to_micros
from penstock.errors import UsageError
from penstock.model.views import PurgedJobs
from penstock.operate import purge as operate
from penstock.sentences import counted
from penstock.terminal_text import print_document, say, warn


def purge(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Ended longer ago than this: 30d, 12h, 90s; the setting `retention` otherwise.",
        ),
    ] = None,
    keys: OptionalKeys = None,
    task: TaskOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Forget ended jobs, with results and history; their keys may be used again.

    Old ones, those of a task (with --older-than its old ones), or some by their keys.
    """
    if keys and (task is not None or older_than is not None):
        raise UsageError("Name jobs by their keys, or by --task and --older-than, not both.")
    target = Target.named(app=app, store=store)
    age = None if older_than is None else _age(older_than)
    with target.opened_store() as opened:
        warn_of_unknown_task(opened, task)
        target.mean(opened, *(keys or ()))
        if keys:
            found = operate.purge_keys(opened, keys, really=yes)
        elif task is not None:
            before = None if age is None else to_micros(SystemClock().now() - age)
            found = operate.purge_task(opened, task, before, really=yes)
        else:
            seconds = target.configured().settings.retention if age is None else age
            act = operate.purge if yes else operate.count_purged
            found = PurgedJobs(act(opened, seconds, SystemClock()))
    return _tell(target, found, yes=yes, as_json=as_json)


def _tell(target: Target, found: PurgedJobs, *, yes: bool, as_json: bool) -> int:
    if as_json:
        document = msgspec.to_builtins(found)
        counts = {"purged": found.purged if yes else 0, "would_purge": found.purged}
        print_document({**document, **counts})
    elif yes and (found.purged or (not found.refused and not found.unknown)):
        say(f"{counted(found.purged, 'job')} forgotten.")
    if found.kept and not as_json:
        be = "is" if found.kept == 1 else "are"
        say(f"{counted(found.kept, 'job')} {be} kept: others wait for them, or they still run.")
    code = warn_of_others(target, found.refused, found.unknown, quiet=as_json)
    if not yes and (found.purged or not code):
        warn(f"{counted(found.purged, 'job')} would be forgotten; add --yes to do it.")
        return 2
    return code


def _age(text: str) -> float:
    try:
        seconds = parse_duration(text)
        if seconds < 0:
            raise ValueError("must be at least 0")
    except ValueError as error:
        raise UsageError(f"--older-than {error}, got {text!r}.") from None
    return seconds

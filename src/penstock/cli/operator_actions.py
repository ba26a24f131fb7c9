# SPDX-License-Identifier: Apache-2.0
"""What do commands that change jobs have in common: names, patience, an audit line?"""

from __future__ import annotations

import difflib
import getpass
import logging
from typing import TypeVar

from penstock.errors import UsageError
from penstock.model.dataset import SLICE, task_name
from penstock.model.job import JobState
from penstock.stores.protocol import Store
from penstock.stores.retry import wait_for
from penstock.stores.store_future import Reply
from penstock.terminal_text import escaped, warn

T = TypeVar("T")

SHOWN_MAX = 60  # characters of what was typed, in a message
COUNTED_MAX = 2**31 - 1  # jobs or attempts in an option; more is a slip of the pen

log = logging.getLogger("penstock.operator")


def only_utf8(typed: str | list[str] | None) -> str | list[str] | None:
    """Refuse bytes that are not UTF-8, in a key or a name: no store holds such a one."""
    for text in [typed] if isinstance(typed, str) else typed or ():
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = repr(text[:SHOWN_MAX])
            raise UsageError(
                f"{shown} is not UTF-8, so nothing is called so; correct it."
            ) from None
    return typed


def state_named(name: str | None) -> JobState | None:
    """The state of this name; None: none was named."""
    if name is None:
        return None
    try:
        return JobState(name)
    except ValueError:
        near = difflib.get_close_matches(name, [state.value for state in JobState], 1, 0.5)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise UsageError(
            f"No state is called {name!r}{hint}. There are {', '.join(JobState)}."
        ) from None


def warn_of_unknown_task(store: Store, task: str | None) -> None:
    """Say so if no job of this task is in the store: the name may be wrong."""
    if task is None:
        return
    stats = store.stats().result()
    known = {*stats.shown_tasks, *stats.schedules}
    if task in known or task in stats.tasks:
        return
    near = difflib.get_close_matches(task, known, 1)
    hint = f" The nearest that has some is {escaped(near[0])!r}." if near else ""
    warn(f"The store has no job of a task named {escaped(task)!r}.{hint}")


def stored_tasks(store: Store, task: str | None) -> list[str | None]:
    """What jobs of a task have as their task: those of a dataset say where slices are kept, too."""
    if task is None or not task.startswith(SLICE) or "#" in task:
        return [task]
    known = [name for name in store.stats().result().tasks if task_name(name) == task]
    return [*known] or [task]


def answer(reply: Reply[T], store: Store) -> T:
    """Wait for a store that another process may hold, but not for ever."""
    return wait_for(
        reply, store, "this step changed nothing. Try again, or find what it waits for."
    )


def settle(store: Store) -> int:
    """See dependants told to the end; how many were put back by retries, ever."""
    while (settled := answer(store.settle(), store)).more:
        continue
    return settled.dependants_total


def audit(store: Store, text: str, *values: object) -> None:
    """Leave a line about who changed what by hand."""
    audit_at(store.url, text, *values)


def audit_at(url: str, text: str, *values: object) -> None:
    """The same where no store is open."""
    log.info(f"{text} (by %s, store %s)", *values, _user(), url)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "an unnamed user"


def jobs_counted(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"

# SPDX-License-Identifier: Apache-2.0
"""How are jobs cancelled, by key or in bulk?"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.completion import complete_key, complete_state, complete_task
from penstock.cli.operator_actions import (
    answer,
    audit,
    jobs_counted,
    only_utf8,
    settle,
    state_named,
    stored_tasks,
)
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.errors import UsageError
from penstock.model.job import TERMINAL, JobId, JobState
from penstock.stores.protocol import JobFilter, Store
from penstock.terminal_text import escaped, print_document, say, warn

SLICE_JOBS = 100  # cancelled in one transaction
PASSES_MAX = 5  # over jobs that move from state to state meanwhile
KEYS_SHOWN = 5  # in the audit line
#: Dependants come before what they wait for, so that they are cancelled, not skipped.
_OPEN = (JobState.WAITING, JobState.QUEUED, JobState.IN_PROGRESS)


def cancel(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY…",
            help="The keys of jobs.",
            autocompletion=complete_key,
            callback=only_utf8,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="All jobs of this task.",
            autocompletion=complete_task,
            callback=only_utf8,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="All jobs: waiting, queued or in_progress.",
            autocompletion=complete_state,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; needed for --task, --state.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Cancel jobs that have not ended, also while they run; their dependants are skipped."""
    wanted = JobFilter(state=state_named(state), task=task)
    bulk = task is not None or wanted.state is not None
    if bulk == bool(keys):
        raise UsageError("Name jobs by their keys, or all of a kind by --task and --state.")
    if wanted.state in TERMINAL:
        raise UsageError(f"Jobs in {wanted.state} have ended; only others can be cancelled.")
    with Target.named(app=app, store=store).opened_store() as opened:
        if bulk:
            return _cancel_all(opened, wanted, yes=yes, as_json=as_json)
        return _cancel_keys(opened, list(dict.fromkeys(keys or ())), as_json=as_json)


def _cancel_keys(store: Store, keys: list[str], *, as_json: bool) -> int:
    cancelled: list[str] = []
    ended: dict[str, str] = {}
    unknown: list[str] = []
    for start in range(0, len(keys), SLICE_JOBS):
        part = keys[start : start + SLICE_JOBS]
        stopped = answer(store.cancel(part), store)
        cancelled += [key for key in part if key in stopped]
        for key in part:
            if key in stopped:
                continue
            job = store.job(key).result()
            if job is None:
                unknown.append(key)
            else:
                ended[key] = job.state.value
    settle(store)
    if cancelled:
        some = ", ".join(map(escaped, cancelled[:KEYS_SHOWN]))
        more = ", …" if len(cancelled) > KEYS_SHOWN else ""
        audit(store, "Cancelled %s: %s%s", jobs_counted(len(cancelled)), some, more)
    if as_json:
        print_document({"cancelled": cancelled, "ended": ended, "unknown": unknown})
    else:
        for key in cancelled:
            say(f"Job {escaped(key)!r} is cancelled.")
        for key, how in ended.items():
            say(f"Job {escaped(key)!r} had ended already: {how}.")
        for key in unknown:
            warn(f"No job has the key {escaped(key)!r}.")
    return 1 if unknown else 0


def _cancel_all(store: Store, wanted: JobFilter, *, yes: bool, as_json: bool) -> int:
    states = _OPEN if wanted.state is None else (wanted.state,)
    if not yes:
        count = _count(store, wanted.task, states)
        if as_json:
            print_document({"cancelled": 0, "would_cancel": count})
        warn(f"{jobs_counted(count)} would be cancelled; add --yes to do it.")
        return 2
    total = 0
    tasks = stored_tasks(store, wanted.task)
    for _ in range(PASSES_MAX):
        count = sum(
            _cancel_state(store, JobFilter(state=state, task=task))
            for task in tasks
            for state in states
        )
        total += count
        if not count:
            break
    settle(store)
    what = f"task {wanted.task or 'any'}, state {wanted.state or 'any'}"
    audit(store, "Cancelled %s: %s", jobs_counted(total), escaped(what))
    if as_json:
        print_document({"cancelled": total, "would_cancel": total})
    else:
        say(f"{jobs_counted(total)} cancelled.")
    return 0


def _cancel_state(store: Store, wanted: JobFilter) -> int:
    count, last = 0, JobId(0)
    while page := store.jobs(wanted, last, SLICE_JOBS).result():
        count += len(answer(store.cancel([job.key for job in page]), store))
        last = page[-1].id
    return count


def _count(store: Store, task: str | None, states: tuple[JobState, ...]) -> int:
    tasks = store.stats().result().tasks
    named = stored_tasks(store, task)
    return sum(
        counts.get(state, 0)
        for name, counts in tasks.items()
        if task is None or name in named
        for state in states
    )

# SPDX-License-Identifier: Apache-2.0
"""`penstock queue show`: shows one job with its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from penstock.cli.completion import complete_key, nearest_keys
from penstock.cli.render.money import calls_document, calls_line
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.clock import SystemClock
from penstock.errors import UsageError
from penstock.model.dataset import slice_of, task_name
from penstock.model.job import Attempt, AttemptError, Job, JobKind, JobState
from penstock.model.journal import CallFigures
from penstock.model.plan import PlanRow, SlicePayload, Step, StepPayload
from penstock.model.schedule import UnitView
from penstock.model.worker import WorkProgress
from penstock.observe.why.facts import JobFacts
from penstock.observe.why.gather import gather_facts
from penstock.observe.why.job import explain
from penstock.sentences import counted
from penstock.terminal_text import escaped, iso_time, print_document, say

_NO_CALLS = CallFigures()

#: What the jobs of a build are for that build nothing.
STEPS = {
    Step.START: "start: the jobs of the plan wait for it until all of them are there",
    Step.GATE: "gate: others wait for a run of jobs by waiting for it",
    Step.JOIN: "join: a barrier or the end waits for many jobs by waiting for it",
    Step.LEVEL: "barrier: what level {level} has built becomes visible",
    Step.END: "end: the build is over when it is done",
}


def show(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="The job's key, or a unit of a schedule (schedule:NAME:PARTITION).",
            autocompletion=complete_key,
            callback=only_utf8,
        ),
    ],
    traceback: Annotated[
        bool,
        typer.Option("--traceback", help="Where its last error came from: frames of its code."),
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one job, its history included."""
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        target.mean(opened, key)
        job = opened.job(key).result()
        history = opened.attempts(key).result()
        calls = CallFigures() if job is None else opened.call_figures(job.id).result()
        is_held = job is not None and job.state is JobState.IN_PROGRESS
        facts = gather_facts(opened, key, {}, SystemClock()) if is_held else None
        is_unit = job is not None and job.kind is JobKind.TICK
        unit = opened.unit(key).result() if is_unit else None
        cursor = opened.cursors([key]).result().get(key) if unit is not None else None
        plan = None if job is None or job.plan_id is None else opened.plan(job.plan_id).result()
        url = opened.url
    if job is None:
        raise UsageError(
            f"No job has the key {key!r} in the store {url}{nearest_keys(target, key)}. Correct "
            "the key, or name another store with --store."
        )
    document = document_of(job, history, calls, facts)
    if unit is not None:
        document["schedule"] = schedule_of(unit, cursor)
    if job.kind.is_built:
        document["build"] = build_of(job, plan)
    frames = None if job.last_error is None else job.last_error.traceback
    if as_json:
        print_document(document | ({"traceback": frames} if traceback else {}))
        return
    for line in lines_of(document, history):
        say(line)
    if traceback:
        for line in ("", *_traceback_lines(frames)):
            say(line)


def document_of(
    job: Job,
    history: Sequence[Attempt],
    calls: CallFigures = _NO_CALLS,
    facts: JobFacts | None = None,
) -> dict[str, object]:
    """All fields of a job: times as ISO in UTC, payload and result as JSON values.

    Args:
        job: as the store has it.
        history: of its attempts.
        calls: of it that cost money.
        facts: around it; None: it is not held by anybody.
    """
    standing = None if facts is None else explain(facts)
    unreadable: dict[str, object] = {}
    return {
        "key": job.key,
        "app": job.app,
        "task": task_name(job.task),
        "state": job.state.value,
        "group": job.group,
        "partition": job.partition,
        "priority": job.priority,
        "limit_keys": list(job.limit_keys),
        "payload": _readable(job.payload, "payload", unreadable),
        "result": _readable(job.result, "result", unreadable),
        **unreadable,
        "error": _error_of(job.last_error),
        "failed_attempts": job.attempts,
        "crashes": job.crashes,
        "suspect": job.suspect,
        "worker": job.worker,
        "standing": None if standing is None else standing.sentence,
        "gate": None if standing is None else standing.gate.value,
        "progress": None if facts is None else _progress_of(facts),
        "token": job.token,
        "waits_for": job.pending,
        "calls": calls_document(calls),
        "plan_id": job.plan_id,
        "level": job.level,
        "id": job.id,
        "created_at": iso_time(job.created_at),
        "available_at": iso_time(job.available_at),
        "deferred_since": iso_time(job.deferred_since),
        "started_at": iso_time(job.started_at),
        "finished_at": iso_time(job.finished_at),
        "updated_at": iso_time(job.updated_at),
        "history": [
            {
                "token": attempt.token,
                "worker": attempt.worker,
                "outcome": attempt.outcome,
                "started_at": iso_time(attempt.started_at),
                "ended_at": iso_time(attempt.ended_at),
                "error": _error_of(attempt.error),
            }
            for attempt in history
        ],
    }


def _readable(text: str | None, name: str, unreadable: dict[str, object]) -> object:
    """The value of a JSON text; one that a damaged store has spoilt is told, and shown as null."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        unreadable["unreadable"] = f"the {name} is not JSON: {error}"
        return None


def schedule_of(unit: UnitView, cursor: str | None) -> dict[str, object]:
    """What is known of a unit besides its row; of its cursor only the size."""
    return {
        "app": unit.app,
        "timing": unit.timing,
        "due_at": iso_time(unit.due_at),
        "ticks": unit.ticks,
        "missed": unit.missed,
        "failed": unit.failed,
        "last_tick_at": iso_time(unit.last_tick_at),
        "retired_at": iso_time(unit.retired_at),
        "cursor_bytes": None if cursor is None else len(cursor.encode()),
    }


def build_of(job: Job, plan: PlanRow | None) -> dict[str, object]:
    """What is known of a job of a build besides its row; of a step, what it is for."""
    found: dict[str, object] = {
        "plan_state": None if plan is None else plan.state.value,
        "plan_jobs": None if plan is None else plan.jobs,
        "levels": None if plan is None else plan.levels,
        "run": None if plan is None else plan.run_id,
    }
    if job.kind is JobKind.SLICE:
        count = len(msgspec.json.decode(job.payload, type=SlicePayload).at)
        return {"slices": slice_of(job.key), "slice_count": count, **found}
    step = msgspec.json.decode(job.payload, type=StepPayload)
    return {"step": STEPS[step.step].format(level=step.level), **found}


def lines_of(document: dict[str, object], history: Sequence[Attempt]) -> list[str]:
    """The same for people; what is empty is left out."""
    document = dict(document)
    for part in ("schedule", "build"):
        found = document.pop(part, None)
        if isinstance(found, dict):
            document |= found
    width = max(map(len, document))
    lost = sum(attempt.outcome == "lost" for attempt in history)
    if lost:
        document = document | {"crashes": f"{document['crashes']} alone; {_losses(lost)}"}
    lines = [
        f"{name.ljust(width)}  {_shown(name, value)}"
        for name, value in document.items()
        if name != "history" and (value or value == 0) and value is not False
    ]
    if history:
        lines += ["", "history"]
    for attempt in history:
        error = "" if attempt.error is None else f"  {escaped(attempt.error.format())}"
        lines.append(
            f"  {iso_time(attempt.ended_at)}  {escaped(attempt.outcome)}  "
            f"by {escaped(attempt.worker)}{error}"
        )
    return lines


def _traceback_lines(frames: str | None) -> list[str]:
    if frames is None:
        return ["no traceback: no attempt has failed in the job's own code"]
    return ["traceback of the last error, the last call last", *map(escaped, frames.split("\n"))]


def _losses(count: int) -> str:
    """A worker that dies takes many jobs with it: who was at fault shows in quarantine."""
    return f"{counted(count, 'loss', 'losses')} of a worker that ran others too: not charged"


def _progress_of(facts: JobFacts) -> dict[str, object] | None:
    said = [answer.standing.progress for answer in facts.answers]
    found = next((one for one in said if one is not None), None)
    return None if found is None else msgspec.to_builtins(found)


def _shown(name: str, value: object) -> str:
    if name in ("payload", "result"):
        return escaped(msgspec.json.encode(value).decode())
    if name == "progress":
        return msgspec.convert(value, WorkProgress).format()
    if name == "calls" and isinstance(value, dict):
        return calls_line(value)
    if isinstance(value, dict):  # an error
        return escaped(msgspec.convert(value, AttemptError).format())
    if isinstance(value, list):
        return escaped(", ".join(map(str, value)))
    return escaped(str(value))


def _error_of(error: AttemptError | None) -> dict[str, object] | None:
    if error is None:
        return None
    return {
        "category": error.category.value,
        "kind": error.kind,
        "message": error.message,
        "where": error.where,
    }

# SPDX-License-Identifier: Apache-2.0
"""`penstock queue enqueue`: accepts one job."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.completion import complete_key, complete_task
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import parse_duration
from penstock.errors import PayloadError, UsageError
from penstock.model import strict_json
from penstock.model.job import PAYLOAD_BYTES_MAX
from penstock.sentences import command
from penstock.terminal_text import escaped, print_document, say


def enqueue(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="The name of a task.", autocompletion=complete_task),
    ],
    key: Annotated[str, typer.Argument(metavar="KEY", help="What the job is known by.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="The task's arguments: a JSON object.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="KEY",
            help="Wait for this job; may be repeated.",
            autocompletion=complete_key,
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="Higher goes first, inside a group.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", help="Not before: seconds, or 90s, 10m, 1h.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="The unit of fairness.")] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept one job; says whether it was new."""
    target = Target.named(app=app, store=store)
    seconds = _delay_seconds(delay)
    if payload is None:
        _refuse_payload_as_key(task, key)
    text = _arguments(payload or "{}")
    with target.opened_app() as opened:
        request = opened.registry.find_task(task).job_from_json(text)
        accepted = opened.enqueue(
            request, key=key, after=after or None, priority=priority, delay=seconds, group=group
        )
    if as_json:
        document = {"key": accepted.key, "task": task, "created": accepted.created}
        print_document({**document, "differs": accepted.differs})
    elif accepted.created:
        say(f"Job {escaped(accepted.key)!r} is new.")
    elif accepted.differs:
        say(
            f"Job {escaped(accepted.key)!r} was known already, for another task or with other "
            "arguments, and stays as it was: a new job needs a key of its own."
        )
    else:
        say(f"Job {escaped(accepted.key)!r} was known already; nothing was changed.")


def _refuse_payload_as_key(task: str, key: str) -> None:
    """Raise if a job has arguments where its key should be, and none where they should be."""
    if key.lstrip().startswith("{"):
        raise UsageError(
            f"The key is missing: {escaped(key[:60])} is what the task is given. Name the job "
            f"first, such as {escaped(command('queue', 'enqueue', task, f'{task}-1', key))}."
        )


def _arguments(payload: str) -> str:
    try:
        document = strict_json.loads(payload)
    except PayloadError as error:
        raise PayloadError(f"The payload is refused: {error}.") from None
    if not isinstance(document, dict):
        raise PayloadError(
            "The payload must be a JSON object of the task's arguments, such as "
            f'{{"name": "value"}}; got {escaped(payload[:60])}.'
        )
    return strict_json.dumps(document, limit_bytes=PAYLOAD_BYTES_MAX)


def _delay_seconds(delay: str | None) -> float | None:
    if delay is None:
        return None
    try:
        return parse_duration(delay)
    except ValueError as error:
        raise UsageError(f"--delay {error}, got {delay!r}.") from None

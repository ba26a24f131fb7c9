# SPDX-License-Identifier: Apache-2.0
"""`penstock calls`: lists paid calls of a job or the last ones, and prints answers on request."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.completion import complete_key, nearest_keys
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.errors import UsageError
from penstock.model.job import Job, JobState
from penstock.model.journal import CallRecord, CallState, NewestCall
from penstock.model.spending import Amount, format_exact_dollars, format_usd
from penstock.requests.journal.call import replay
from penstock.stores.protocol import Store
from penstock.terminal_text import (
    escaped,
    escaped_lines,
    format_table,
    iso_time,
    print_document,
    say,
    warn,
    write,
)

SHOWN = 20
LIMIT_MAX = 10_000
NOBODY = "-"


def calls(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="The job's key; without it, the calls that were begun last.",
            autocompletion=complete_key,
            callback=only_utf8,
        ),
    ] = None,
    answer: Annotated[
        bool, typer.Option("--answer", help="Print the text of the answers of one job.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LIMIT_MAX, help="How many, without a key.")
    ] = SHOWN,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what was bought: provider, model, when, tokens, money, and how each call ended."""
    if answer and key is None:
        raise UsageError("--answer prints the answers of one job; name its key.")
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        if key is None:
            found = opened.newest_calls(limit).result()
            answers: list[str | None] = [None] * len(found)
        else:
            target.mean(opened, key)
            found = _of_job(opened, key, target)
            answers = [_answer(opened, call.record) if answer else None for call in found]
    if as_json:
        print_document({"calls": list(map(document_of, found, answers))})
    elif answer:
        _print_answers(found, answers)
    elif not found:
        say("Nothing was bought." if key is None else f"Job {escaped(key)!r} has bought nothing.")
    else:
        head = ["job", "provider", "model", "begun", "state", "sent again", "tokens", "dollars"]
        for line in format_table(head, map(_row, found), left=5):
            say(line)


def _of_job(store: Store, key: str, target: Target) -> list[NewestCall]:
    """The calls of a job, the oldest first."""
    job = store.job(key).result()
    if job is None:
        raise UsageError(
            f"No job has the key {key!r} in the store {store.url}{nearest_keys(target, key)}. "
            "Correct the key, or name another store with --store."
        )
    found = store.calls(job.id).result()
    return [NewestCall(job.key, job.app, _is_in_hand(job, call), call) for call in found]


def _is_in_hand(job: Job, call: CallRecord) -> bool:
    is_held = job.state is JobState.IN_PROGRESS and job.token == call.token
    return is_held and call.ended_at is None


def _answer(store: Store, call: CallRecord) -> str | None:
    """The text of an answer; None: there is none, or it is not kept."""
    found = store.answer_of(call.key).result()
    if found is None or found.body is None:
        return None
    return b"".join(replay(found.body)).decode(errors="replace")


def state_of(call: NewestCall) -> str:
    """How a call stands: an open one that nobody has in hand is in doubt."""
    state = call.record.state
    return "in doubt" if state is CallState.OPEN and not call.is_in_hand else state.value


def document_of(call: NewestCall, answer: str | None) -> dict[str, object]:
    """A call for programs; times as ISO in UTC, money as decimal text."""
    record = call.record
    document: dict[str, object] = {
        "job": call.job,
        "app": call.app,
        "provider": record.provider,
        "model": record.model,
        "state": state_of(call),
        "begun_at": iso_time(record.begun_at),
        "ended_at": iso_time(record.ended_at),
        "bought": record.bought,
        "reused": record.reused,
        "sent_again": record.resent,
        "used_usd": format_usd(record.used.micros),
        "used_tokens": record.used.tokens,
        "reserved_usd": format_usd(record.reserved.micros),
        "reserved_tokens": record.reserved.tokens,
        "in_doubt_usd": format_usd(record.doubt.micros),
        "in_doubt_tokens": record.doubt.tokens,
    }
    return document if answer is None else document | {"answer": answer}


def _row(call: NewestCall) -> list[str | int]:
    record = call.record
    cost = record.used if record.bought else record.reserved
    return [
        NOBODY if call.job is None else call.job,
        record.provider,
        record.model or NOBODY,
        f"{(iso_time(record.begun_at) or '')[:19]}Z",
        state_of(call),
        record.resent,
        _told(f"{cost.tokens:,}", record),
        _dollars(cost, record),
    ]


def _dollars(cost: Amount, record: CallRecord) -> str:
    return _told(format_exact_dollars(cost.micros), record) if cost.micros else NOBODY


def _told(text: str, record: CallRecord) -> str:
    """What was used; of a call that was not settled, the most that was reserved for it."""
    return text if record.bought else f"≤ {text}"


def _print_answers(found: Sequence[NewestCall], answers: Sequence[str | None]) -> None:
    """The texts to stdout as they are, on a terminal with its orders escaped; the rest is told."""
    shown = escaped_lines if sys.stdout.isatty() else str
    for number, (call, text) in enumerate(zip(found, answers, strict=True), 1):
        if len(found) > 1 or text is None:
            missing = ", no answer is kept" if text is None else ""
            at = iso_time(call.record.begun_at)
            warn(f"Call {number} of {len(found)}, {at}: {state_of(call)}{missing}.")
        if text is not None and not write(shown(text).rstrip("\n") + "\n"):
            return
    if not found:
        warn("The job has bought nothing.")

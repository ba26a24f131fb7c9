# SPDX-License-Identifier: Apache-2.0
"""The journal of calls that cost money: written down, answered, and forgotten.

The rules, budgets among them, are in `stores/call_rules.py`; here is how rows come from the
database and go back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock import failpoints
from penstock.model.job import JobId, WorkerId
from penstock.model.journal import (
    Answer,
    CallFigures,
    CallKey,
    CallRecord,
    CallRef,
    CallState,
    Intent,
    IntentVerdict,
    NewestCall,
)
from penstock.model.run import RunPart
from penstock.model.spending import (
    DAY_MICROS,
    TOTAL_SPAN,
    Account,
    Amount,
    Balance,
    Budget,
    Period,
    utc_day,
)
from penstock.model.views import Progress
from penstock.stores.call_rules import (
    NOTHING,
    CallBook,
    CallRow,
    Change,
    Place,
    Sums,
    budgeted,
)
from penstock.stores.protocol import CALLS_DROPPED, CALLS_SLICE, DAYS_KEPT, RUNS_KEPT
from penstock.stores.sql.statements import Row, Statements, as_json
from penstock.stores.sql.transaction import Transaction


def call_row(row: Row) -> CallRow:
    """A call from the columns of `find_calls`."""
    run_id, day, task, provider, model = row[6:11]
    found = CallRow(
        row[0],
        CallKey(JobId(row[1]), row[2], row[3]),
        CallState(row[4]),
        row[5],
        Place(run_id, day, task, provider, model, row[24]),
        row[11],
        row[12],
        Amount(row[13], row[14]),
        Amount(row[15], row[16]),
    )
    found.bought, found.reused, found.resent, found.estimated, found.doubts = row[17:22]
    found.doubt = Amount(row[22], row[23])
    return found


def intend(
    tx: Transaction, intents: Sequence[Intent], budgets: Sequence[Budget]
) -> list[IntentVerdict]:
    """Write down calls that no budget forbids before they are sent; reserve their estimates."""
    if not intents:
        return []
    accounts = budgeted(intents, budgets, tx.now)
    keys = [intent.key for intent in intents]
    jobs = as_json(sorted({key.job for key in keys}))
    tx.foresee_intents(keys, jobs, accounts)
    if accounts:
        tx.spend_alone(accounts)
    book = _book(tx, keys)
    tokens = dict(tx.array("job_tokens", jobs))
    known = _balances(tx, accounts)
    verdicts = book.intend(intents, budgets, lambda account: known.get(account, NOTHING), tokens)
    _drop_answers(tx, book)
    fresh = [row for row in book.changed.values() if not row.no]
    if fresh:
        tx.add_calls([_new_columns(row) for row in fresh])
    again = [row for row in book.changed.values() if row.no]
    if again:
        tx.run("reopen_calls", as_json([(row.no, *_reopened_columns(row)) for row in again]))
    failpoints.hit("intend.in_tx")
    tx.passed.append("intend.committed")
    return verdicts


def _book(tx: Transaction, keys: Sequence[CallKey]) -> CallBook:
    rows = {row.key: row for row in map(call_row, tx.find_calls(keys) if keys else ())}
    return CallBook(rows, tx.sums, tx.now)


def _balances(tx: Transaction, accounts: Sequence[Account]) -> dict[Account, Change]:
    if not accounts:
        return {}
    return dict(map(account_row, tx.array("read_accounts", as_json(accounts))))


def account_row(row: Row) -> tuple[Account, Change]:
    """An account from its columns."""
    scope, period, span, app, *change = row
    return Account(scope, Period(period), span, app), Change(*change)


def _new_columns(row: CallRow) -> Row:
    return (*row.key, row.token, *row.place, row.begun_at, *row.reserved, row.resent)


def _reopened_columns(row: CallRow) -> Row:
    begun = (row.token, *row.place, row.begun_at, *row.reserved, row.resent)
    return (*begun, row.doubts, *row.doubt)


def answered(tx: Transaction, answers: Sequence[Answer]) -> None:
    """Keep answers, and settle what they cost."""
    book = _book(tx, [answer.key for answer in answers])
    kept = [
        (
            book.changed[answer.key].no,
            answer.status,
            as_json(answer.headers),
            answer.body,
            *answer.used,
            answer.input_tokens,
            answer.output_tokens,
        )
        for answer in book.answered(answers)
    ]
    _write(tx, book, kept)
    failpoints.hit("answered.in_tx")
    tx.passed.append("answered.committed")


def closed(tx: Transaction, calls: Sequence[CallRef]) -> None:
    """Calls ended without an answer, and nothing was bought."""
    book = _book(tx, [call.key for call in calls])
    book.closed(calls)
    _write(tx, book)


def held(tx: Transaction, calls: Sequence[CallRef]) -> None:
    """Hold calls in doubt for a person to look at."""
    book = _book(tx, [call.key for call in calls])
    book.held(calls)
    _write(tx, book)


def reused(tx: Transaction, keys: Sequence[CallKey], accounts: Sequence[Account]) -> None:
    """Answers were taken from the journal."""
    book = _book(tx, keys)
    book.reused(keys, accounts)
    _write(tx, book)


def spoil(tx: Transaction, keys: Sequence[CallKey]) -> None:
    """Answers led to a fault of the task itself: they are bought anew."""
    book = _book(tx, keys)
    book.spoil(keys)
    _drop_answers(tx, book)
    _write(tx, book)


def _write(tx: Transaction, book: CallBook, answers: Sequence[Row] = ()) -> None:
    rows = book.changed.values()
    if rows:
        tx.change_calls([_changed_columns(row) for row in rows], answers)
    ended = next((row.key for row in rows if row.ended_at == tx.now), None)
    if ended is not None:
        tx.call_ended(ended)


def _changed_columns(row: CallRow) -> Row:
    counts = row.bought, row.reused, row.estimated
    return (row.no, row.state, row.ended_at, *row.reserved, *row.used, *counts)


def _drop_answers(tx: Transaction, book: CallBook) -> None:
    if book.unkept:
        tx.run("drop_answers", as_json([row.no for row in book.unkept]))


def forget_calls(tx: Transaction, jobs: Iterable[int]) -> int:
    """Forget calls of these jobs, at most CALLS_DROPPED; how many.

    Those of unknown fate stay counted where they were reserved.
    """
    found = tx.array("calls_of_jobs", as_json([*jobs]), CALLS_DROPPED)
    if not found:
        return 0
    calls = as_json(found)
    for row in map(call_row, tx.array("unended_calls", calls)):
        tx.sums.abandon(row)
    (sums,) = tx.rows("sum_calls", calls)
    tx.sums.forget(sums)
    tx.run("drop_answers", calls)
    tx.run("drop_calls", calls)
    return len(found)


def prune_calls(
    tx: Transaction, before: int, after: JobId, app: int | None
) -> tuple[Progress, JobId]:
    """Forget calls of the next jobs, of an app or of all, that ended long ago or are not there."""
    tx.one_at_a_time()
    seen = tx.array("jobs_with_calls", after, before, CALLS_SLICE, app)
    if not seen:
        _forget_days(tx)
        return Progress(0, more=False), after
    count = forget_calls(tx, [job for job, may_go in seen if may_go])
    last = after if count == CALLS_DROPPED else seen[-1][0]  # else there may be more of these
    return Progress(count, more=True), JobId(last)


def _forget_days(tx: Transaction) -> None:
    """What was spent long ago; a day's account goes once nothing is reserved in it."""
    first = utc_day(tx.now - DAYS_KEPT * DAY_MICROS)
    if tx.value("has_old_days", first):
        tx.add_up_accounts()
        tx.run("forget_day_accounts", first)


def save_run(tx: Transaction, part: RunPart) -> None:
    """Keep what one worker of a run says, and forget old runs with their accounts."""
    tx.run("save_run", part.run_id)
    tx.run("save_run_part", part.run_id, part.worker, part.saved_at, part.document)
    old = tx.array("old_runs", RUNS_KEPT)
    if old:
        tx.add_up_accounts()
        runs = as_json(old)
        tx.run("forget_run_parts", runs)
        tx.run("forget_run_accounts", runs)
        tx.run("forget_runs", runs)


_decode_headers = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


def calls_of(reader: Statements, job: JobId) -> list[CallRecord]:
    return [call_row(row).as_record() for row in reader.rows("read_calls", job)]


def newest_calls(reader: Statements, limit: int) -> list[NewestCall]:
    return [
        NewestCall(row[25], row[24], bool(row[26]), call_row(row).as_record())
        for row in reader.rows("read_newest_calls", limit)
    ]


def answer_of(reader: Statements, key: CallKey) -> Answer | None:
    row = reader.row("read_call_answer", *key)
    if row is None:
        return None
    status, headers, body, micros, tokens, input_tokens, output_tokens = row
    return Answer(
        key=key,
        status=status,
        headers=_decode_headers(headers),
        body=body,
        used=Amount(micros, tokens),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def figures_of(reader: Statements, job: JobId | None) -> CallFigures:
    if job is not None:
        ((bought, reused, in_doubt, micros, tokens, resent, estimated, *doubt),) = reader.rows(
            "sum_calls_of", job
        )
        used = Amount(micros, tokens)
        return CallFigures(bought, reused, in_doubt, used, resent, estimated, Amount(*doubt))
    in_hand = [sum(column) for column in zip(*(row[-3:] for row in _in_hand(reader)), strict=True)]
    counts: Counter[str] = Counter(dict(reader.rows("read_call_counts")))
    # Two statements, and others go on meanwhile.
    opened = [counts[figure] for figure in ("unended", "open_micros", "open_tokens")]
    left = [max(kept - hand, 0) for kept, hand in zip(opened, in_hand or (0, 0, 0), strict=True)]
    return CallFigures(
        bought=counts["bought"],
        reused=counts["reused"],
        in_doubt=counts["doubts"] + left[0],
        spent=Amount(counts["micros"], counts["tokens"]),
        resent=counts["resent"],
        estimated=counts["estimated"],
        doubt=Amount(counts["doubt_micros"] + left[1], counts["doubt_tokens"] + left[2]),
    )


def _in_hand(reader: Statements) -> list[Row]:
    """Calls that the present leases of their jobs have begun and not ended, by their places."""
    return reader.rows("sum_in_hand")


def reset_totals(tx: Transaction, app: str, scope: str | None) -> list[Balance]:
    """Let totals of an app begin at zero; what they held. What is in flight is settled in them."""
    tx.one_at_a_time()
    rows = map(call_row, tx.array("doubtful_calls", app))
    book = CallBook({row.key: row for row in rows}, tx.sums, tx.now)
    book.doubt()
    if book.changed:
        doubts = [(row.no, *row.doubt) for row in book.changed.values()]
        tx.run("doubt_calls", as_json(doubts))
    tx.add_up_accounts()
    found = [
        change.as_balance(account, change.reserved)
        for account, change in map(account_row, tx.rows("list_accounts", as_json([TOTAL_SPAN])))
        if account.app == app and scope in (None, account.scope)
    ]
    tx.run("reset_accounts", as_json([one.account for one in found]))
    return found


def balances_of(reader: Statements, spans: Sequence[str]) -> list[Balance]:
    in_hand = Sums()
    for *place, _, micros, tokens in _in_hand(reader):
        in_hand.claim(Place(*place), Amount(micros, tokens))
    held = in_hand.by_account()
    rows = map(account_row, reader.rows("list_accounts", as_json(spans)))
    return [
        change.as_balance(account, held.get(account, NOTHING).reserved) for account, change in rows
    ]


def newest_runs(reader: Statements, limit: int) -> list[str]:
    return [run_id for (run_id,) in reader.rows("list_runs", limit)]


def parts_of(reader: Statements, run_id: str | None) -> list[RunPart]:
    wanted = [run_id] if run_id is not None else newest_runs(reader, 1)
    return [
        RunPart(one, WorkerId(worker), saved_at, document)
        for one in wanted
        for worker, saved_at, document in reader.rows("read_run_parts", one)
    ]


def broken_calls(reader: Statements) -> Iterator[str]:
    """Every broken invariant of the journal, as sentences."""
    for (name,) in reader.rows("check_calls"):
        yield f"Call {name} contradicts itself, or its answer does."
    for app, scope, period, span, counted, kept in reader.rows("check_reserves"):
        yield (
            f"The account {scope} of the {period} {span} of app {app!r} has {kept} reserved, "
            f"its calls {counted}."
        )
    for figure, counted, kept in reader.rows("check_call_counts"):
        yield f"The counter of calls {figure!r} is {kept}, a count gives {counted}."

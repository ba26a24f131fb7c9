# SPDX-License-Identifier: Apache-2.0
"""What does a store tell of calls that cost money, and of runs?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from penstock.model.job import JobId, WorkerId
from penstock.model.journal import Answer, CallFigures, CallKey, CallRecord
from penstock.model.run_part import RunPart
from penstock.model.spending import Amount, Balance
from penstock.stores.sql.journal import account_row, call_row
from penstock.stores.sql.statements import Statements, as_json

_decode_headers = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


def calls_of(reader: Statements, job: JobId) -> list[CallRecord]:
    return [call_row(row).as_record() for row in reader.rows("read_calls", job)]


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
        ((bought, reused, in_doubt, micros, tokens, resent, estimated),) = reader.rows(
            "sum_calls_of", job
        )
        return CallFigures(bought, reused, in_doubt, Amount(micros, tokens), resent, estimated)
    in_hand = reader.value("count_in_hand")
    counts: Counter[str] = Counter(dict(reader.rows("read_call_counts")))
    return CallFigures(
        bought=counts["bought"],
        reused=counts["reused"],
        in_doubt=max(counts["unended"] - in_hand, 0),  # two statements, and others go on meanwhile
        spent=Amount(counts["micros"], counts["tokens"]),
        resent=counts["resent"],
        estimated=counts["estimated"],
    )


def balances_of(reader: Statements, spans: Sequence[str]) -> list[Balance]:
    rows = map(account_row, reader.rows("list_accounts", as_json(spans)))
    return [change.as_balance(account) for account, change in rows]


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
    for scope, period, span, counted, kept in reader.rows("check_reserves"):
        yield (
            f"The account {scope} of the {period} {span} has {kept} reserved, its calls {counted}."
        )
    for figure, counted, kept in reader.rows("check_call_counts"):
        yield f"The counter of calls {figure!r} is {kept}, a count gives {counted}."

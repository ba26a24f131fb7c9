# SPDX-License-Identifier: Apache-2.0
"""How do calls that cost money reach the server? A column of a batch is one parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.journal import CallKey
from penstock.stores.group_commit import Contended
from penstock.stores.postgres.arrays import binaries, numbers, texts
from penstock.stores.postgres.bulk_insert import AcceptingTransaction
from penstock.stores.postgres.pipeline import Question
from penstock.stores.sql.statements import Row

ANSWER_BYTES = 8 * 1024 * 1024  # of bodies in one statement, unless a single one is larger
MERGED_AT_ONCE = 10_000  # changes of accounts

_BODY = 3  # the column of it


class PayingTransaction(AcceptingTransaction):
    """Owns nothing more. Rows of calls are held from when they are found until the commit."""

    def find_calls(self, keys: Sequence[CallKey]) -> list[Row]:
        query, parameters = self._finding(keys)
        return self.rows(query, *parameters)

    @staticmethod
    def _finding(keys: Sequence[CallKey]) -> Question:
        jobs, fingerprints, ordinals = zip(*keys, strict=True)
        return "find_calls", (numbers(jobs), texts(fingerprints), numbers(ordinals))

    def add_calls(self, rows: Sequence[Row]) -> None:
        jobs, fingerprints, ordinals, tokens, *places, begun, micros, tokens_kept, resent = zip(
            *rows, strict=True
        )
        made = self.rows(
            "add_calls",
            numbers(jobs),
            texts(fingerprints),
            numbers(ordinals),
            numbers(tokens),
            *map(texts, places),
            numbers(begun),
            numbers(micros),
            numbers(tokens_kept),
            numbers(resent),
        )
        if len(made) < len(rows):
            raise Contended("Another process has begun the same call just now.")
        self._saw(CallKey(*rows[0][:3]))

    def change_calls(self, rows: Sequence[Row], answers: Sequence[Row] = ()) -> None:
        *first, last = _slices(answers)
        for part in first:
            self._write(_keeping(part))
        calls, states, *others = zip(*rows, strict=True)
        change = "change_calls", (numbers(calls), texts(states), *map(numbers, others))
        self._write(*([_keeping(last)] if last else []), change)

    def _write(self, *questions: Question) -> None:
        self.writes += 1
        self._still_time()
        self._round_trip.ask(questions)

    def call_ended(self, key: CallKey) -> None:
        self._saw(key)

    def _saw(self, key: CallKey) -> None:
        self.witness = "was_called", (*key, self.now)

    def add_up_accounts(self) -> None:
        self.flush_accounts()
        while self.run("merge_account_changes", MERGED_AT_ONCE):
            continue


def _keeping(rows: Sequence[Row]) -> Question:
    calls, status, headers, bodies, *others = zip(*rows, strict=True)
    columns = (numbers(calls), numbers(status), texts(headers), binaries(bodies))
    return "keep_answers", (*columns, *map(numbers, others))


def _slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Parts whose bodies are bounded together, at least one in each; the last may be empty."""
    begin = size = 0
    for place, row in enumerate(rows):
        size += len(row[_BODY])
        if size > ANSWER_BYTES and place > begin:
            yield rows[begin:place]
            begin, size = place, len(row[_BODY])
    yield rows[begin:]

# SPDX-License-Identifier: Apache-2.0
"""Are calls that cost money told with the money that is known, and no other?"""

from __future__ import annotations

from penstock.cli.money import calls_document, calls_line, money_lines
from penstock.model.journal import CallFigures
from penstock.model.spending import Account, Amount, Balance, Period
from penstock.observe.spending_board import spending_of


def line(spent: Amount) -> str:
    document = calls_document(CallFigures(bought=2, reused=1, spent=spent))
    assert document is not None
    return calls_line(document)


def test_calls_are_told_with_their_price_if_there_is_one() -> None:
    assert line(Amount(1_250_000, 70)).endswith("; spent $1.25, 70 tokens")
    assert line(Amount(0, 70)).endswith("; spent 70 tokens")


def test_a_model_without_a_price_has_no_dollars() -> None:
    account = Account("model:ai/m", Period.RUN, "run-1")

    _, _, row = money_lines(spending_of([Balance(account, Amount(0, 70), Amount(), 2, 1)]), [])

    assert row.split() == ["ai", "m", "run-1", "-", "70", "-", "2", "1"]

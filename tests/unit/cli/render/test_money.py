# SPDX-License-Identifier: Apache-2.0
"""Are sums over paid calls told, to people and as a document?"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.cli.render.money import calls_document, calls_line, money_lines
from penstock.model.journal import CallFigures
from penstock.model.spending import Account, Amount, Balance, Period
from penstock.observe.spending import spending_of


def test_what_is_nothing_is_not_told() -> None:
    assert calls_document(CallFigures()) is None


def test_calls_that_were_sent_again_and_estimates_are_told_where_there_are_some() -> None:
    plain = CallFigures(bought=2_000, reused=3, in_doubt=1, spent=Amount(1_500_000, 70))
    plain = replace(plain, doubt=Amount(0, 30))
    more = replace(plain, resent=4, estimated=5, doubt=Amount(500, 30))

    assert _line(plain) == (
        "2,000 bought, 3 reused, 1 in doubt (at most 30 tokens); spent $1.5, 70 tokens"
    )
    assert _line(more) == (
        "2,000 bought, 3 reused, 1 in doubt (at most $0.0005, 30 tokens), 4 sent again; "
        "spent $1.5, 70 tokens "
        "(5 answers at an estimate)"
    )
    assert calls_document(more) == {
        "bought": 2_000,
        "reused": 3,
        "in_doubt": 1,
        "in_doubt_usd": "0.0005",
        "in_doubt_tokens": 30,
        "resent": 4,
        "estimated": 5,
        "spent_usd": "1.5",
        "spent_tokens": 70,
    }


def test_calls_without_a_price_are_told_in_tokens() -> None:
    assert _line(CallFigures(bought=2, spent=Amount(0, 70))).endswith("; spent 70 tokens")


def test_a_model_without_a_price_has_no_dollars() -> None:
    account = Account("model:ai/m", Period.RUN, "run-1")

    _, _, row = money_lines(spending_of([Balance(account, Amount(0, 70), Amount(), 2, 1)]), [])

    assert row.split()[:6] == ["ai", "m", "run-1", "-", "70", "-"]


def _line(figures: CallFigures) -> str:
    document = calls_document(figures)
    assert document is not None
    return calls_line(document)

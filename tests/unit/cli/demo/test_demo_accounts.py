# SPDX-License-Identifier: Apache-2.0
"""Does the demo notice when its own story is not true?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from penstock.cli.demo.story import FAST, Accounts, KillSnapshot, spent
from penstock.model.job import JobState
from penstock.model.journal import CallFigures
from penstock.model.spending import Amount

SIZES = replace(FAST, documents=2)  # so 6 calls
KILL = KillSnapshot(
    in_hand=1,
    answered=frozenset({"a1", "a2", "a3", "b1"}),
    to_reuse=1,
    in_flight=frozenset({"b2"}),
    arrived=5,
)
TRUE = Accounts(
    sizes=SIZES,
    states=Counter({JobState.DONE: 2}),
    charged=0,
    figures=CallFigures(bought=6, reused=1),
    kill=KILL,
    bought_again=0,
    accepted=Counter({"a1": 1, "a2": 1, "a3": 1, "b1": 1, "b2": 2, "b3": 1}),
    refused=3,
    served=6,
)


def test_a_story_that_adds_up_has_no_problems() -> None:
    assert TRUE.problems() == []
    assert (TRUE.lost, TRUE.sent_twice) == (0, 1)


@pytest.mark.parametrize(
    ("false", "said"),
    [
        (replace(TRUE, states=Counter({JobState.DONE: 1})), "1 documents are lost"),
        (replace(TRUE, charged=2), "2 attempts were charged to documents"),
        (replace(TRUE, bought_again=1), "1 answers were bought again"),
        (
            replace(TRUE, accepted=TRUE.accepted + Counter({"b1": 1})),
            "calls were sent twice that were not in flight",
        ),
        (
            replace(TRUE, accepted=TRUE.accepted + Counter({"b2": 1})),
            "a call was sent more than twice",
        ),
        (
            replace(TRUE, figures=CallFigures(bought=7, reused=1), served=7),
            "the journal bought 7 answers for 6 calls",
        ),
        (
            replace(TRUE, figures=CallFigures(bought=6, reused=0)),
            "1 answers were there and 0 were reused",
        ),
        (replace(TRUE, served=5), "the provider served fewer calls than were paid"),
    ],
)
def test_a_story_that_does_not_add_up_says_why(false: Accounts, said: str) -> None:
    assert false.problems() == [said]


def test_money_is_shown_where_a_model_has_a_price() -> None:
    assert spent(Amount(micros=5_550, tokens=28_062)) == "$0.0056 for 28,062 tokens"
    assert spent(Amount(micros=0, tokens=28_062)) == "28,062 tokens"

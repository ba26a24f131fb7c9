# SPDX-License-Identifier: Apache-2.0
"""Does a store that does not answer hold nobody up?"""

from __future__ import annotations

import threading

import pytest

from penstock.errors import StoreUnavailable
from penstock.stores.store_future import Question, Reply, aside, within


def test_a_question_is_asked_once_until_it_is_answered() -> None:
    asked: list[Reply[int]] = []

    def ask() -> Reply[int]:
        asked.append(Reply())
        return asked[-1]

    question = Question(ask)

    assert [question.answer(), question.answer()] == [None, None]
    asked[0].resolve(7)
    assert question.answer() == 7
    assert question.answer() is None
    asked[1].refuse(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        question.answer()
    assert question.answer() is None
    assert len(asked) == 3


def test_a_question_starts_a_store_that_begins_only_when_somebody_waits() -> None:
    started: list[str] = []
    question = Question(lambda: Reply[int](start=lambda: started.append("now")))

    assert question.answer() is None
    assert started == ["now"]


def test_an_answer_that_does_not_come_soon_is_not_waited_for() -> None:
    reply: Reply[int] = Reply()
    with pytest.raises(TimeoutError):
        within(reply, 0.01)

    reply.resolve(1)
    assert within(reply, 0.0) == 1


def test_what_is_done_aside_answers_with_its_value_or_its_error() -> None:
    gate = threading.Event()

    def work() -> int:
        gate.wait(10)
        return 3

    reply = aside(work)
    assert not reply.done
    gate.set()
    assert within(reply, 10) == 3

    with pytest.raises(ZeroDivisionError):
        within(aside(lambda: 1 // 0), 10)

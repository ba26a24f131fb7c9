# SPDX-License-Identifier: Apache-2.0
"""How does the memory store carry questions to workers, and their answers?"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import to_micros
from penstock.model.job import WorkerId
from penstock.model.lease import JobRef
from penstock.model.worker import Question
from penstock.stores.protocol import QUESTION_SECONDS, QUESTIONS_KEPT


@dataclass(eq=False, slots=True)
class _Asked:
    target: WorkerId
    ref: JobRef
    asked_at: int
    answer: str | None = None


class Control:
    """Owns the questions of the last minute."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._last = 0

    def ask(self, worker: WorkerId, ref: JobRef, now: int) -> int:
        self._last += 1
        self._asked[self._last] = _Asked(worker, ref, now)
        oldest, last = now - to_micros(QUESTION_SECONDS), self._last - QUESTIONS_KEPT
        for number, asked in list(self._asked.items()):
            if asked.asked_at < oldest or number <= last:
                del self._asked[number]
        return self._last

    def open(self, worker: WorkerId) -> list[Question]:
        """What a worker has not answered yet."""
        return [
            Question(number, asked.ref)
            for number, asked in self._asked.items()
            if asked.target == worker and asked.answer is None
        ]

    def answer(self, question: int, document: str) -> bool:
        asked = self._asked.get(question)
        if asked is None or asked.answer is not None:
            return False
        asked.answer = document
        return True

    def answer_to(self, question: int) -> str | None:
        asked = self._asked.get(question)
        return None if asked is None else asked.answer

# SPDX-License-Identifier: Apache-2.0
"""How is a running worker asked something, and how does it answer?"""

from __future__ import annotations

from penstock.clock import MICROSECONDS
from penstock.errors import InternalError
from penstock.model.job import WorkerId
from penstock.model.lease import JobRef
from penstock.stores.protocol import QUESTION_SECONDS, QUESTIONS_KEPT
from penstock.stores.sql.transaction import Transaction


def ask(tx: Transaction, worker: WorkerId, ref: JobRef) -> int:
    """Write a question down, and forget old ones."""
    asked = tx.row("ask", worker, *ref, tx.now)
    if asked is None:
        raise InternalError("A question was written down without a number.")
    number = int(asked[0])
    oldest = tx.now - round(QUESTION_SECONDS * MICROSECONDS)
    tx.run("forget_questions", oldest, number - QUESTIONS_KEPT)
    return number


def answer(tx: Transaction, question: int, document: str) -> bool:
    return bool(tx.run("answer", question, document, tx.now))

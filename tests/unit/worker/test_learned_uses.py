# SPDX-License-Identifier: Apache-2.0
"""What the attempts of a task have called stands in for its `uses=`, if nearly all of them do."""

from __future__ import annotations

from penstock.model.provider import ANY, RequestResourceKey, SeveralResources
from penstock.worker.learned_uses import SAMPLE, LearnedUses


def gate(*providers: str) -> SeveralResources:
    keys = tuple(RequestResourceKey(name, ANY, ANY) for name in providers)
    return SeveralResources(keys, learned=True)


def test_the_first_call_is_taken_for_what_the_next_attempt_calls() -> None:
    uses = LearnedUses()

    assert uses.gate("work") is None
    assert uses.called("work", "api", is_first=True)
    assert not uses.called("work", "api", is_first=True)
    assert uses.gate("work") == gate("api")
    assert uses.gate("other") is None


def test_attempts_that_call_several_wait_for_all_of_them() -> None:
    uses = LearnedUses()
    for _ in range(3 * SAMPLE):
        uses.called("work", "b", is_first=True)
        uses.called("work", "a", is_first=False)

    assert uses.gate("work") == gate("a", "b")


def test_attempts_that_call_one_or_the_other_wait_for_none() -> None:
    uses = LearnedUses()
    uses.called("work", "a", is_first=True)

    assert uses.called("work", "b", is_first=True)
    assert uses.gate("work") is None


def test_what_was_called_long_ago_is_forgotten() -> None:
    uses = LearnedUses()
    for _ in range(SAMPLE):
        uses.called("work", "old", is_first=True)
    for _ in range(10 * SAMPLE):
        uses.called("work", "new", is_first=True)

    assert uses.gate("work") == gate("new")

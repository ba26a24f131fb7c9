# SPDX-License-Identifier: Apache-2.0
"""Lose the answers to commits, and cut connections just before them; each call happens once."""

from __future__ import annotations

from typing import Literal

from tests.faults.pg_operations import Operation
from tests.faults.pg_world import Place

Loss = Literal["answer lost", "cut before"]


def lose_commits(kind: type[Operation], place: Place, loss: Loss, calls: int) -> None:
    """Every call loses its first commit, or that commit's answer; then the store is audited."""
    operation = kind(place, calls)
    counts = place.proxy.counts
    for _ in range(calls):
        before = counts.replies_dropped + counts.cut_before
        if loss == "answer lost":
            place.proxy.drop_commit_replies(1)
        else:
            place.proxy.cut_before_commits(1)
        operation.call()
        assert counts.replies_dropped + counts.cut_before == before + 1, "nothing was lost"
    operation.audit()

# SPDX-License-Identifier: Apache-2.0
"""How many jobs may a run start?"""

from __future__ import annotations

import os
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.worker.start_budget import StartBudget, start_budget


def test_no_more_are_taken_than_there_are_whoever_takes_them() -> None:
    budget = StartBudget.of(3)
    other = StartBudget(os.dup(budget.fd))  # as in another process

    assert [budget.take(), other.take(), budget.take(), other.take()] == [True, True, True, False]
    assert [budget.is_used_up, other.is_used_up] == [True, True]

    other.give_back()

    assert [budget.is_used_up, other.is_used_up] == [False, False]
    assert budget.take()
    assert not other.take()
    budget.close()
    other.close()


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "5", 10**12])
def test_what_is_no_number_of_jobs_is_refused(wrong: Any) -> None:
    with (
        pytest.raises(UsageError, match="max_jobs must be a whole number from 1 to"),
        start_budget(wrong),
    ):
        pass


def test_an_embedded_run_has_a_budget_only_if_one_is_set() -> None:
    with start_budget(None) as none, start_budget(1) as one:
        assert none is None
        assert one is not None
        assert one.take()
        assert one.is_used_up

# SPDX-License-Identifier: Apache-2.0
"""What may a task and its group say of themselves?"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.model.task import SchedulerResourceRequest, TaskGroupSpec


@pytest.mark.parametrize("weight", [0, -1, 1.5, True, "2"])
def test_a_weight_is_a_whole_positive_number(weight: Any) -> None:
    with pytest.raises(UsageError, match="The weight of group 'g' is a whole positive number"):
        TaskGroupSpec("g", weight)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_an_admitted_limit_is_a_whole_positive_number_or_left_out(limit: Any) -> None:
    with pytest.raises(UsageError, match="is a whole positive number or left out, got"):
        TaskGroupSpec("g", 1, limit)


@pytest.mark.parametrize("amount", [0, -1, 1.5, True, "2"])
def test_a_task_asks_for_a_whole_positive_number(amount: Any) -> None:
    with pytest.raises(UsageError, match="asks for a whole positive number of 'r', got"):
        SchedulerResourceRequest({"r": amount})


def test_a_resource_has_a_name() -> None:
    with pytest.raises(UsageError, match="cannot be empty"):
        SchedulerResourceRequest({"": 1})


def test_a_request_always_asks_for_a_submission() -> None:
    assert SchedulerResourceRequest().amounts == {"submission": 1}
    assert SchedulerResourceRequest({"r": 2}).amounts == {"submission": 1, "r": 2}
    assert SchedulerResourceRequest({"submission": 3}).amounts == {"submission": 3}


def test_equal_requests_are_equal_in_whatever_order_they_were_written() -> None:
    one, other = (
        SchedulerResourceRequest({"a": 1, "b": 2}),
        SchedulerResourceRequest({"b": 2, "a": 1}),
    )

    assert one == other
    assert hash(one) == hash(other)
    assert one.needs == other.needs


def test_a_request_does_not_follow_the_mapping_it_was_made_of() -> None:
    wanted = {"r": 1}
    request = SchedulerResourceRequest(wanted)

    wanted["r"] = 9

    assert request.amounts["r"] == 1

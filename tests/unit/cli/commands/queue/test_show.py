# SPDX-License-Identifier: Apache-2.0
"""Do the crashes of a job and its history say the same?"""

from __future__ import annotations

import pytest

from penstock.cli.commands.queue.show import lines_of
from penstock.model.job import Attempt, WorkerId


@pytest.mark.parametrize(("count", "words"), [(1, "1 loss"), (2, "2 losses")])
def test_a_worker_that_died_with_others_in_it_is_no_crash_of_the_job(
    count: int, words: str
) -> None:
    lost = Attempt(
        token=1, worker=WorkerId("w"), outcome="lost", started_at=0, ended_at=1, error=None
    )

    shown = lines_of({"crashes": 0}, [lost] * count)

    assert shown[0] == f"crashes  0 alone; {words} of a worker that ran others too: not charged"
    assert lines_of({"crashes": 0}, [])[0] == "crashes  0"

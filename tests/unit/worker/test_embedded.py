# SPDX-License-Identifier: Apache-2.0
"""Is the interpreter of a host left as it was?"""

from __future__ import annotations

import gc
import sys

import pytest

from penstock.worker.embedded import NEW_OBJECTS, SWITCH_SECONDS, tuned


def test_a_program_finds_its_own_setting_again() -> None:
    former = gc.get_threshold()
    with tuned():
        assert gc.get_threshold() == (NEW_OBJECTS, *former[1:])
    assert gc.get_threshold() == former


def test_threads_take_turns_quickly_for_as_long_as_a_worker_runs() -> None:
    former = sys.getswitchinterval()
    with tuned():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == former


def test_a_program_whose_threads_take_turns_faster_keeps_that() -> None:
    former = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS / 5)
    own = sys.getswitchinterval()
    try:
        with tuned():
            assert sys.getswitchinterval() == own
        assert sys.getswitchinterval() == own
    finally:
        sys.setswitchinterval(former)


@pytest.mark.parametrize("own", [0, NEW_OBJECTS * 2])
def test_a_program_that_looks_less_often_still_does(own: int) -> None:
    former = gc.get_threshold()
    gc.set_threshold(own, 10, 10)
    try:
        with tuned():
            assert gc.get_threshold() == (own, 10, 10)
    finally:
        gc.set_threshold(*former)

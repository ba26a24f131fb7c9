# SPDX-License-Identifier: Apache-2.0
"""Is the host's garbage collection left as it was?"""

from __future__ import annotations

import gc

import pytest

from penstock.runtime.calm_gc import NEW_OBJECTS, calm_gc


def test_a_program_finds_its_own_setting_again() -> None:
    former = gc.get_threshold()
    with calm_gc():
        assert gc.get_threshold() == (NEW_OBJECTS, *former[1:])
    assert gc.get_threshold() == former


@pytest.mark.parametrize("own", [0, NEW_OBJECTS * 2])
def test_a_program_that_looks_less_often_still_does(own: int) -> None:
    former = gc.get_threshold()
    gc.set_threshold(own, 10, 10)
    try:
        with calm_gc():
            assert gc.get_threshold() == (own, 10, 10)
    finally:
        gc.set_threshold(*former)

# SPDX-License-Identifier: Apache-2.0
"""Does a probe wait for as long as it costs?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.adaptive.window import hold_seconds


def test_probe_costs_a_hundredth_of_the_requests() -> None:
    assert hold_seconds(2.0, 0.0, 3, 1.0) == pytest.approx(50.0)  # one of 100, at 2 per second


def test_probe_costs_a_hundredth_of_the_time() -> None:
    assert hold_seconds(1_000.0, 0.5, 3, 1.0) == pytest.approx(50.0)


@pytest.mark.parametrize(("confidence", "part"), [(0, 8), (1, 4), (2, 2), (3, 1), (8, 1)])
def test_unconfirmed_limit_is_probed_sooner(confidence: int, part: int) -> None:
    assert hold_seconds(2.0, 0.0, confidence, 1.0) == pytest.approx(50.0 / part)


def test_hold_has_bounds() -> None:
    assert hold_seconds(1e6, 0.0, 8, 1.0) == 4.0
    assert hold_seconds(0.001, 0.0, 8, 1.0) == 80.0
    assert hold_seconds(0.001, 0.0, 8, 60.0) == 360.0
    assert hold_seconds(1e6, 0.0, 8, 1.0, least_seconds=22.5) == 22.5

# SPDX-License-Identifier: Apache-2.0
"""Does a run get through an nginx that hides its limits, and without hammering it?

How near it comes to the ideal rate is measured by `python -m benchmarks admission --only nginx`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.admission import nginx
from tests.nginx.binary import NoNginx

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize("latency", [0.02, 0.1], ids=["limit_req binds", "limit_conn binds"])
def test_hidden_limits_of_nginx_are_found_and_no_job_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latency: float
) -> None:
    """Limits so narrow that a busy machine meets them too."""
    monkeypatch.setattr(nginx, "CONNECTIONS", 3)
    monkeypatch.setattr(nginx, "PER_SECOND", 30)
    monkeypatch.setattr(nginx, "BURST", 5)
    try:
        course = nginx.run(tmp_path, 100, latency, slots=16)
    except NoNginx as error:
        pytest.skip(f"no nginx: {error}")

    assert course.calls == 100
    assert course.failed_jobs == 0
    assert 0 < course.refused <= 20

# SPDX-License-Identifier: Apache-2.0
"""Does a run get through an nginx that hides its limits, and without hammering it?

How near it comes to the ideal rate is measured by `python -m benchmarks admission --only nginx`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.admission.nginx import run
from tests.nginx.binary import NoNginx

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize("latency", [0.02, 0.2], ids=["limit_req binds", "limit_conn binds"])
def test_hidden_limits_of_nginx_are_found_and_no_job_fails(tmp_path: Path, latency: float) -> None:
    try:
        course = run(tmp_path, 300, latency)
    except NoNginx as error:
        pytest.skip(f"no nginx: {error}")

    assert course.calls == 300
    assert course.failed_jobs == 0
    assert 0 < course.refused <= 30

# SPDX-License-Identifier: Apache-2.0
"""How near does a short run come to what a gateway allows that hides a rate and a concurrency?

The limits of the nginx that the benchmark starts, in simulated time; seeds below 1,000.
"""

from __future__ import annotations

import pytest

from benchmarks.admission.nginx import BURST, CONNECTIONS, PER_SECOND, ideal_seconds
from benchmarks.admission.ours import OurClient, adaptive
from benchmarks.admission.providers import Bucket, Latency
from benchmarks.admission.simulation import Simulation

CALLS = 2_000
NETWORK_SECONDS = 0.002
BEGINNING_SECONDS = 5


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("latency", [0.1, 0.2])
def test_short_run_pays_for_one_pause_only(latency: float, seed: int) -> None:
    sim = Simulation(seed)
    about = Latency(latency, 0.02, NETWORK_SECONDS)
    gateway = Bucket(sim, PER_SECOND, BURST, latency=about, most_at_once=CONNECTIONS)
    counts = OurClient(sim, gateway, None, adaptive(256)).counts
    ideal = ideal_seconds(CALLS, latency)
    sim.run(ideal / 0.9)

    assert sum(counts.ok.values()) >= CALLS
    late = sum(count for at, count in counts.refused.items() if at >= BEGINNING_SECONDS)
    assert late < 0.01 * CALLS

# SPDX-License-Identifier: Apache-2.0
"""Is a hidden limit found and held, whatever its size and however long requests take?

The real controller against simulated providers, in simulated time; seeds below 1,000.
"""

from __future__ import annotations

import pytest

from benchmarks.admission.client import Counts
from benchmarks.admission.ours import OurClient, adaptive
from benchmarks.admission.providers import Call, Concurrent, Latency, Provider
from benchmarks.admission.simulation import Simulation
from tests.depth import depth

MOST = 1_000  # in flight, by what the user has declared
SETTLED = 0.5  # of a course
SWEEP = (
    # capacity, seconds of a request, of the course
    (1, 0.2, 60.0),
    (1, 1.0, 120.0),
    (1, 60.0, 12_000.0),
    (3, 0.1, 60.0),
    (5, 60.0, 6_000.0),
    (8, 0.005, 10.0),
    (10, 0.02, 20.0),
    (20, 0.2, 60.0),
    (50, 1.0, 120.0),
    (100, 10.0, 600.0),
    (200, 2.0, 120.0),
    (500, 60.0, 2_000.0),
    (500, 5.0, 200.0),
)


def run(provider: Provider, seconds: float, most: int = MOST) -> tuple[Counts, OurClient]:
    client = OurClient(provider.sim, provider, None, adaptive(most))
    provider.sim.run(seconds)
    return client.counts, client


@pytest.mark.parametrize(("capacity", "latency", "seconds"), SWEEP[:: depth(quick=2, soak=1)])
def test_f51_limit_is_found_and_does_not_swing(
    capacity: int, latency: float, seconds: float
) -> None:
    sim = Simulation(51)
    about = Latency(latency, 0.3, network=0.02 * latency)
    counts, _ = run(Concurrent(sim, lambda _: capacity, about, retry_after=1.0), seconds)

    limits = [limit for time, limit in counts.limits if time > SETTLED * seconds]
    assert min(limits) >= 1
    assert min(limits) >= 0.7 * capacity - 1
    assert max(limits) <= 1.3 * capacity + 2
    done = sum(count for at, count in counts.ok.items() if at >= SETTLED * seconds)
    possible = capacity / (about.mean + about.network) * (1 - SETTLED) * seconds
    assert done >= 0.75 * possible


def test_f51_limit_does_not_grow_when_the_demand_does_not_need_it() -> None:
    """Eight at once of a provider that takes any number: the window stays near what is used."""
    sim = Simulation(51)
    _, client = run(Provider(sim, Latency(1.0)), 600.0, most=8)
    assert client.algorithm is not None

    client.algorithm.set_max(MOST)
    assert client.algorithm.window(1e6, 4) <= 8 / 0.7 + 1


class Refusing(Concurrent):
    """Refuses everything for a while, and remembers when it was asked."""

    def __init__(self, sim: Simulation, begin: float, end: float) -> None:
        super().__init__(sim, lambda now: 0 if begin <= now < end else 40, retry_after=2.0)
        self.asked: list[float] = []

    def send(self, call: Call) -> None:
        self.asked.append(self.sim.now)
        super().send(call)


def test_f44_storm_of_refusals_is_asked_once_in_each_pause() -> None:
    sim = Simulation(44)
    provider = Refusing(sim, 60.0, 120.0)
    counts, client = run(provider, 240.0)
    assert client.algorithm is not None

    in_storm = [time for time in provider.asked if 66.0 <= time < 120.0]
    assert len(in_storm) <= 54 / 2 + 1  # a pause is 2 s at least
    assert min(limit for _, limit in counts.limits) >= 1
    after = sum(counts.ok.get(second, 0) for second in range(180, 240)) / 60
    assert after >= 0.9 * 40 / (provider.latency.mean + provider.latency.network)


def test_f50_there_is_no_herd_after_a_pause() -> None:
    """At most two leave in the first tenth of the latency after each pause."""
    sim = Simulation(50)
    provider = Refusing(sim, 100.0, 101.0)
    _, client = run(provider, 100.5)
    assert client.algorithm is not None
    end = client.algorithm.blocked_until
    assert end > 101.0

    sim.run(130.0)
    tenth = provider.latency.median / 10
    assert 1 <= sum(end <= time < end + tenth for time in provider.asked) <= 2
    assert sum(end <= time < end + 3.0 for time in provider.asked) > 10

# SPDX-License-Identifier: Apache-2.0
"""Does the simulator of admission count what happens, and conclude what it should?"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import pytest

from benchmarks.admission import curves, quality
from benchmarks.admission.cases import CASES, Case, Sizes, worlds
from benchmarks.admission.chart import Curve, draw
from benchmarks.admission.providers import (
    OK,
    REFUSED,
    TIMED_OUT,
    Bucket,
    Call,
    Concurrent,
    Congested,
    FixedWindow,
    Latency,
    Provider,
    Reply,
)
from benchmarks.admission.scoring import CONTROLLERS, OURS, Score, course, score
from benchmarks.admission.simulation import Simulation
from benchmarks.runner import Setup

SURE = Latency(1.0, 0.0, network=0.0)
SHORT = Case("short", lambda sim: Concurrent(sim, lambda _: 8), lambda _: 8 / 2.27, seconds=60)


def replies(provider: Provider, times: list[float]) -> list[tuple[float, Reply]]:
    """What requests at these times are answered, and when."""
    answered: list[tuple[float, Reply]] = []
    sim = provider.sim

    def answer(reply: Reply) -> None:
        answered.append((sim.now, reply))

    for time in times:
        sim.at(time, partial(provider.send, Call(1.0, answer)))
    sim.run(1_000.0)
    return answered


def outcomes(provider: Provider, times: list[float]) -> list[str]:
    return [reply.outcome for _, reply in sorted(replies(provider, times), key=lambda one: one[0])]


def test_simulation_lets_things_happen_in_order() -> None:
    sim = Simulation(1)
    seen: list[str] = []
    sim.at(2.0, partial(seen.append, "b"))
    sim.at(1.0, partial(seen.append, "a"))
    sim.at(9.0, partial(seen.append, "never"))
    sim.run(5.0)

    assert seen == ["a", "b"]
    assert sim.now == 5.0


def test_concurrency_limit_refuses_above_it_and_accepts_after_an_end() -> None:
    provider = Concurrent(Simulation(1), lambda _: 2, SURE, retry_after=3.0)
    found = replies(provider, [0.0, 0.1, 0.2, 1.05])

    refused = [(time, reply.retry_after) for time, reply in found if reply.outcome is REFUSED]
    assert refused == [(0.2, 3.0)]
    assert sum(reply.outcome is OK for _, reply in found) == 3


def test_bucket_accepts_its_burst_and_then_its_rate() -> None:
    provider = Bucket(Simulation(1), 1.0, 2.0, latency=SURE)
    found = replies(provider, [0.0, 0.0, 0.5, 1.6])

    assert sum(reply.outcome is OK for _, reply in found) == 3
    assert [reply.retry_after for _, reply in found if reply.outcome is REFUSED] == [1.0]


def test_fixed_window_says_when_the_next_one_begins() -> None:
    provider = FixedWindow(Simulation(1), 1, says_when=True)
    found = replies(provider, [0.0, 12.0, 61.0])

    assert [reply.retry_after for _, reply in found if reply.outcome is REFUSED] == [48]


def test_congested_server_shares_its_speed() -> None:
    provider = Congested(Simulation(1), 2, 30.0)
    provider.latency = SURE
    found = replies(provider, [0.0] * 4)

    assert [time for time, _ in found] == pytest.approx([2.0] * 4)  # four at half speed


def test_congested_server_loses_what_takes_too_long() -> None:
    provider = Congested(Simulation(1), 1, 3.0)
    provider.latency = SURE
    assert set(outcomes(provider, [0.0] * 5)) == {TIMED_OUT}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_controller_has_a_course_that_its_seed_decides(name: str) -> None:
    first, again = (course(SHORT, name, 7)[0] for _ in range(2))

    assert first.ok == again.ok
    assert sum(first.ok.values()) > 0
    ended = sum(sum(each.values()) for each in (first.ok, first.refused, first.failed))
    in_flight = sum(first.sent.values()) - ended
    assert 0 <= in_flight <= 256


def test_nobody_is_better_than_the_oracle_at_a_concurrency_limit() -> None:
    for name in CONTROLLERS:
        assert score(SHORT, name, 7).goodput < 1.15


def test_worlds_are_drawn_by_their_seed() -> None:
    first, again, other = worlds(5, 1), worlds(5, 1), worlds(5, 2)

    assert [one.name for one in first] == [one.name for one in again]
    assert [one.name for one in first] != [one.name for one in other]


def test_sizes_have_the_mean_that_they_name() -> None:
    sim = Simulation(3)
    sizes = [Sizes().draw(sim.rand)[0] for _ in range(20_000)]

    assert sum(sizes) / len(sizes) == pytest.approx(1_500, rel=0.03)


def test_peer_that_is_ahead_with_few_refusals_is_told() -> None:
    cases = list(CASES[:1])
    name = cases[0].name
    found = {(name, OURS): Score(0.90, 0.0, 0.0), (name, "Vegas"): Score(0.95, 0.01, 0.0)}
    (check,) = quality._peers(cases, (OURS, "Vegas"), found)
    assert not check.ok

    found[name, "Vegas"] = Score(0.95, 0.06, 0.0)
    (check,) = quality._peers(cases, (OURS, "Vegas"), found)
    assert check.ok


def test_chart_is_an_svg_with_every_curve() -> None:
    text = draw("a < b", "unit", [Curve("one", [(0, 1), (1, 5)]), Curve("two", [(0, 2), (1, 3)])])
    root = ET.fromstring(text)

    labels = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "one", "two"} <= set(labels)


def test_smoke_run_draws_into_its_own_folder(tmp_path: Path) -> None:
    curves.measure(Setup(smoke=True, folder=tmp_path))

    assert [file.name for file in tmp_path.iterdir()] == [curves.DRAWINGS[0].file]

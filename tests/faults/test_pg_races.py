# SPDX-License-Identifier: Apache-2.0
"""Do operations that run side by side on PostgreSQL end as if one had come after the other?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.pg_pairs import ACTS, Fleet, at_random, fleet, preempt

pytestmark = pytest.mark.faults

#: Each pair that shares something: the first stops before each of its statements in turn.
CRITICAL = [
    ("after p, q", "ack q, p"),
    ("into e", "lease"),
    ("ack i", "ack g, lease"),
    ("ack i", "lease"),
    ("cap 2", "lease"),
    ("retry", "after f"),
    ("after f", "retry"),
    ("q fails", "retry"),
    ("after old", "purge"),
    ("cancel p", "ack p"),
    ("ack p", "q fails"),
    ("a", "a, b after a"),
    ("e commits s", "q commits s"),
]
POINTS = 4  # of each pair in a test run; `make soak-pg-races` takes all of all pairs
RANDOM = 20


@pytest.fixture(scope="module")
def world_of_two(
    request: pytest.FixtureRequest,
) -> Iterator[Fleet]:
    server = request.getfixturevalue("postgres_server")
    url = server.create_database("races_" + str(id(request)))
    with fleet(url) as made:
        yield made


@pytest.mark.parametrize(("first", "second"), CRITICAL, ids=lambda name: name.replace(" ", "-"))
def test_a_pair_ends_as_one_after_the_other(first: str, second: str, world_of_two: Fleet) -> None:
    allowed = world_of_two.serial(first, second)
    world_of_two.together(first, second, preempt(1))
    last = world_of_two.statements_of()

    for point in {2 + (last - 2) * part // (POINTS - 1) for part in range(POINTS)}:
        got = world_of_two.together(first, second, preempt(point))
        assert got in allowed, f"stopped before statement {point}"


@pytest.mark.parametrize("seed", range(RANDOM))
def test_any_pair_in_any_order_of_statements(seed: int, world_of_two: Fleet) -> None:
    names = sorted(ACTS)
    first, second = names[seed * 7 % len(names)], names[(seed * 11 + 3) % len(names)]
    if first == second:
        second = names[(seed * 11 + 4) % len(names)]

    assert world_of_two.together(first, second, at_random(seed)) in world_of_two.serial(
        first, second
    )

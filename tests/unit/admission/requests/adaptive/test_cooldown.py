# SPDX-License-Identifier: Apache-2.0
"""How long does everything stop, and when is a refusal forgiven?"""

from __future__ import annotations

from penstock.admission.requests.adaptive.limit import Cooldown


def nothing() -> float:
    return 0.0


def most() -> float:
    return 1.0


def test_provider_says_how_long() -> None:
    cooldown = Cooldown()
    cooldown.begin(10.0, 7.0, nothing)

    assert cooldown.until == 17.0


def test_jitter_is_only_added() -> None:
    cooldown = Cooldown()
    cooldown.begin(0.0, 1.0, most)
    assert cooldown.until == 1.1

    cooldown.begin(10.0, 60.0, most)
    assert cooldown.until == 70.25


def test_without_retry_after_it_doubles_up_to_ten_seconds() -> None:
    cooldown = Cooldown()
    pauses = []
    for _ in range(8):
        cooldown.begin(0.0, 0.0, nothing)
        cooldown.refused()
        pauses.append(cooldown.seconds)

    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_it_never_moves_earlier() -> None:
    cooldown = Cooldown()
    cooldown.begin(0.0, 60.0, nothing)
    cooldown.begin(1.0, 1.0, nothing)

    assert cooldown.until == 60.0


def test_first_strike_is_forgiven_and_a_second_one_near_it_is_not() -> None:
    cooldown = Cooldown()

    assert cooldown.strike(100.0, 5.0, 1.0)
    assert not cooldown.strike(104.0, 5.0, 1.0)


def test_strike_is_forgotten_after_retry_after_and_two_latencies() -> None:
    cooldown = Cooldown()
    cooldown.strike(100.0, 1.0, 4.0)

    assert cooldown.strike(108.1, 1.0, 4.0)


def test_what_was_sent_before_a_strike_belongs_to_it() -> None:
    cooldown = Cooldown()
    cooldown.strike(100.0, 1.0, 1.0)

    assert cooldown.belongs_to_strike(99.9)
    assert not cooldown.belongs_to_strike(100.1)


def test_requests_leave_evenly_while_a_strike_is_remembered() -> None:
    cooldown = Cooldown()
    cooldown.strike(100.0, 3.0, 0.2)
    cooldown.pace_evenly(100.0)

    assert cooldown.even_until == 103.0
    assert cooldown.until < 100.0


def test_breath_is_half_a_latency_and_never_shortens_a_pause() -> None:
    cooldown = Cooldown()
    cooldown.extend_pause(100.0, 0.2)
    assert cooldown.until == 100.1

    cooldown.begin(200.0, 60.0, nothing)
    cooldown.extend_pause(201.0, 0.2)
    assert cooldown.until == 260.0

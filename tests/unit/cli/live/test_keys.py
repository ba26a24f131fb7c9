# SPDX-License-Identifier: Apache-2.0
"""Do keys mean what was typed, and nothing else?"""

from __future__ import annotations

import pytest

from penstock.cli.live.display import STOP_SECONDS, StopKey, typed_keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"p", ["p"]),
        (b"pd?", ["p", "d", "?"]),
        (b"\x1b[A\x1b[Bq", ["q"]),  # arrows
        (b"\x1bOp", []),  # the keypad of some terminals
        (b"\x1b[200~", []),
        (b"\x1bq", []),  # Alt
        (b"\x1b", []),
        (b"\xff\xfe", []),
        (b"quite a paste", []),
    ],
)
def test_only_single_keys_count(data: bytes, keys: list[str]) -> None:
    assert typed_keys(data) == keys


def test_a_key_that_is_held_down_stops_once() -> None:
    key = StopKey()

    held = [key.counts(number * 0.03) for number in range(100)]
    later = key.counts(100 * 0.03 + STOP_SECONDS)

    assert held == [True] + [False] * 99
    assert later

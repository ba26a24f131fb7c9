# SPDX-License-Identifier: Apache-2.0
"""Does the guide show the live view as it is?"""

from __future__ import annotations

import pytest

from penstock.cli.live.layout import KEYS_HELP
from penstock.observe.providers import Binding
from tests.live_sample import GUIDE, guide_with_samples


def test_the_guide_shows_what_the_program_shows() -> None:
    assert GUIDE.read_text() == guide_with_samples(), "run python -m tests.live_sample"


@pytest.mark.parametrize("binding", Binding)
def test_the_guide_says_what_every_binding_limit_means(binding: Binding) -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]

    assert any(f"`{binding.value}" in row for row in rows)


def test_the_guide_lists_every_key() -> None:
    for text in KEYS_HELP[:4]:
        assert f"| `{text[0]}` |" in GUIDE.read_text()

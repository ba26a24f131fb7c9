# SPDX-License-Identifier: Apache-2.0
"""Do our tests find the bugs that they are there for?

Each mutant must be found by the test that it names, which must pass without it. The whole table,
with everything that finds each of them, is made by `make soak-mutants`.
"""

from __future__ import annotations

import pytest

from tests.faults.mutants import MUTANTS, Mutant, failure, killed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert killed(mutant), f"{mutant.killer} does not see that {mutant.name}"


@pytest.mark.parametrize("killer", sorted({mutant.killer for mutant in MUTANTS}))
def test_what_finds_a_bug_passes_without_it(killer: str) -> None:
    assert failure(killer) is None

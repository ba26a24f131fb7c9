# SPDX-License-Identifier: Apache-2.0
"""`make soak-mutants`: is each planted bug found by its test, and after how many random examples?

It fails if a test does not see the bug that names it: that is a hole in the tests. The random
machine gets every bug of the store; those that it does not find are told, and are no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from statistics import median

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.mutants import MUTANTS, Mutant, killed
from tests.simulation.test_store_machine import SqliteMachine


def examples_until_found(mutant: Mutant, most: int) -> int | None:
    """How many examples the random machine needs; None if it does not find the bug."""
    count = 0

    class Counting(SqliteMachine):
        def __init__(self) -> None:
            nonlocal count
            count += 1
            super().__init__()

    profile = settings(
        max_examples=most,
        stateful_step_count=50,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    with mutant.planted(), contextlib.redirect_stdout(io.StringIO()):
        try:
            run_state_machine_as_test(Counting, settings=profile)
        except Exception:
            return count
    return None


def survivors() -> list[str]:
    """The bugs that the test they name does not see."""
    missed = []
    for mutant in MUTANTS:
        if not killed(mutant):
            missed.append(mutant.name)
            print(f"SURVIVES: {mutant.name}: {mutant.killer} does not see it", flush=True)
    print(f"{len(MUTANTS) - len(missed)} of {len(MUTANTS)} bugs found by their tests", flush=True)
    return missed


def at_random(most: int) -> bool:
    """Count examples until the random machine finds each bug; whether it is sound without one."""
    sound = examples_until_found(Mutant("no bug at all", ""), most)
    if sound is not None:
        print(f"WITHOUT A BUG it fails after {sound} examples; mend that first", flush=True)
        most = sound - 1  # from there on it fails with or without a bug
    counts = []
    mutants = [mutant for mutant in MUTANTS if ":" not in mutant.killer]
    for mutant in mutants:
        examples = examples_until_found(mutant, most) if most else None
        counts += [] if examples is None else [examples]
        told = f"after {examples} examples" if examples else f"not in {most} examples"
        print(f"{mutant.name}: {told}", flush=True)
    middle = f", median {median(counts):g} examples" if counts else ""
    print(f"{len(counts)} of {len(mutants)} bugs of the store found at random{middle}", flush=True)
    return sound is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="at most, for each bug")
    most: int = parser.parse_args().examples
    began = time.monotonic()
    missed = survivors()
    sound = at_random(most)
    seconds = time.monotonic() - began
    print(f"{len(MUTANTS)} bugs, {len(missed)} survive, {seconds:.0f} s", flush=True)
    return 0 if sound and not missed else 1


if __name__ == "__main__":
    sys.exit(main())

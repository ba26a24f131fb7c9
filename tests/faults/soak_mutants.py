# SPDX-License-Identifier: Apache-2.0
"""`make soak-mutants`: which planted bug is found by what, and after how many examples?

The contract suite and the random machine each get every mutant of the store; a simulation gets
those of the worker. It fails if a mutant survives both.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import threading
from statistics import median

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.mutants import MUTANTS, Mutant, broken_rule, killed, rules
from tests.simulation.test_store_machine import SqliteMachine

HANG_SECONDS = 20.0  # a rule that takes longer has found the bug by hanging
SLOW = ("waiting_for_work",)  # rules that wait in real time


def found_by_rules(mutant: Mutant) -> list[str]:
    """The rules of the contract that fail with this bug, or hang."""
    found = []
    with mutant.planted():
        for name in rules():
            if any(word in name for word in SLOW):
                continue
            verdict: list[bool] = []
            thread = threading.Thread(
                target=lambda name=name, verdict=verdict: verdict.append(
                    broken_rule(name) is not None
                ),
                daemon=True,
            )
            thread.start()
            thread.join(HANG_SECONDS)
            if verdict != [False]:
                found.append(name)
    return found


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    most: int = parser.parse_args().examples
    survivors, counts = [], []
    sound = examples_until_found(Mutant("no bug at all", ""), most)
    if sound is not None:
        print(f"WITHOUT A BUG the machine fails after {sound} examples; mend that first.")
    for mutant in MUTANTS:
        if ":" in mutant.killer:
            dead = killed(mutant)
            print(f"{mutant.name}: {'simulation' if dead else 'SURVIVES'}", flush=True)
        else:
            by_rules = found_by_rules(mutant)
            examples = examples_until_found(mutant, most)
            if sound is not None and examples is not None and examples >= sound:
                examples = None  # it may have failed without the bug as well
            dead = bool(by_rules) or examples is not None
            counts += [] if examples is None else [examples]
            machine = "no" if examples is None else f"after {examples}"
            print(
                f"{mutant.name}: {len(by_rules)} rules of the contract; random examples: {machine}",
                flush=True,
            )
        if not dead:
            survivors.append(mutant.name)
    print(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} planted bugs found", flush=True)
    if counts:
        print(
            f"the random machine found {len(counts)} of the store's, median "
            f"{median(counts):g} examples",
            flush=True,
        )
    for name in survivors:
        print(f"SURVIVES: {name}", flush=True)
    os._exit(1 if survivors or sound is not None else 0)  # rules that hang are left behind


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Was a build left, by whom, and is the place still there that slices are kept in?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.model.doctor_finding import Finding, problem, well
from penstock.model.lock import LockView, PlanState
from penstock.model.views import QueueFacts
from penstock.observe.build_words import THE_SAME, again_command
from penstock.observe.phrases import counted, some


def build_findings(facts: QueueFacts, gone: Callable[[str], bool]) -> Iterator[Finding]:
    """Plans that nobody goes on with, and locks of processes that are gone."""
    dead = [lock for lock in facts.locks if gone(lock.mark)]
    yield _plans(facts, {lock.run_id for lock in dead})
    yield _locks(facts, dead)


def _plans(facts: QueueFacts, dead_runs: set[str]) -> Finding:
    holding = {lock.run_id for lock in facts.locks if lock.alive} - dead_runs
    left = [x for x in facts.plans if x.state is PlanState.LEFT or x.run_id not in holding]
    if not left:
        return well("builds", f"{counted(len(facts.plans), 'plan')} on the way, none of them left")
    first = left[0]
    again = again_command(first)
    command = THE_SAME if again is None else f"'{again}'"
    goes_on = "begins again" if first.state is PlanState.DRAFT else "goes on where it was"
    more = f"; {len(left) - 1:,} more were left before" if len(left) > 1 else ""
    return problem(
        "builds",
        f"The plan {first.id} was left before its end by the run {first.run_id!r}; {command} "
        f"{goes_on}{more}.",
    )


def _locks(facts: QueueFacts, dead: list[LockView]) -> Finding:
    text = f"{counted(len(facts.locks), 'dataset')} locked"
    if dead:
        names = some([repr(lock.name) for lock in dead])
        text += (
            f"; {names} by the run {dead[0].run_id!r}, whose process is gone: the next build "
            "takes over"
        )
    return well("locks", text)


def root_finding(path: str, root_id: str | None, facts: QueueFacts) -> Finding:
    """Is the output root there, and the one that open plans write to?"""
    if root_id is None:
        return problem(
            "output root",
            f"The output root {path} is not there or has no id, and the store knows slices that "
            "are kept in one; mount it again, or set datasets.root to the folder that they were "
            "built in.",
        )
    others = [plan for plan in facts.plans if plan.root != root_id]
    if others:
        return problem(
            "output root",
            f"The plan {others[0].id} writes to the output root {others[0].root}, and {path} is "
            f"{root_id}; set datasets.root to the folder of that plan, or build anew, which gives "
            "it up.",
        )
    return well("output root", f"{path} ({root_id})")

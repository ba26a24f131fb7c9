# SPDX-License-Identifier: Apache-2.0
"""Which answer comes first for a slice that several would be true of?"""

from __future__ import annotations

import msgspec

from penstock.model.dataset import SliceOutput
from penstock.model.job import AttemptError, ErrorCategory, JobState
from penstock.model.plan import LevelStates, LockView, PlanFacts, PlanRow, PlanState
from penstock.observe.phrases import LockHolder, format_level, rebuild_command
from penstock.observe.why.facts import Gate
from penstock.observe.why.slice import (
    CommittedSlice,
    SliceAttempt,
    SliceFacts,
    WantedSlice,
    explain_slice,
)
from penstock.stores.protocol import SliceRow
from tests.unit.observe.why.test_job import NOW, facts, job, seconds

OUTPUT = SliceOutput(at=1, path="prices/x", kind="raw", rows=None, bytes=7, checksum="c")
ROW = SliceRow(
    dataset="prices",
    at=1,
    built="1#root",
    basis=4,
    seq=5,
    plan_id="old",
    level=0,
    job_id=1,
    document="{}",
)
LOCK = LockView(
    name="prices", run_id="r1", mark="m", token=1, taken_at=NOW - seconds(30), alive=True
)
FACTS = PlanFacts(
    targets=("mean", "prices"), ranges=((0, 5), (0, 5)), datasets=("prices",), slices=1, fresh=0
)
PLAN = PlanRow(
    id="p1",
    app="shop",
    digest="d",
    state=PlanState.RUNNING,
    run_id="r1",
    root="root-1",
    document=FACTS.document(),
    levels=1,
    jobs=2,
)
HOLDER = LockHolder(lock=LOCK)


def asked(**known: object) -> SliceFacts:
    wanted = WantedSlice(
        dataset="prices", at=1, name="prices@1", version="1", batch=1, needed=(), command="build"
    )
    return SliceFacts(**({"wanted": wanted, "now": NOW} | known))  # type: ignore[arg-type]


def tried(state: PlanState = PlanState.RUNNING, **known: object) -> SliceAttempt:
    plan = msgspec.structs.replace(PLAN, state=state)
    given = {"plan": plan, "around": facts(job("k", plan_id="p1")), "holder": HOLDER}
    return SliceAttempt(**(given | known))  # type: ignore[arg-type]


def committed(**known: object) -> CommittedSlice:
    return CommittedSlice(row=ROW, output=OUTPUT, version="1", **known)  # type: ignore[arg-type]


def test_a_plan_on_its_way_comes_before_what_is_committed() -> None:
    found = explain_slice(asked(tried=tried(), committed=committed()))

    assert found.gate is Gate.TURN
    assert found.key == "prices@1"
    assert found.details[-1] == "Readers see an older one: prices/x."


def test_what_the_plan_itself_has_committed_is_fresh() -> None:
    own = CommittedSlice(row=msgspec.structs.replace(ROW, plan_id="p1"), output=OUTPUT, version="1")

    assert explain_slice(asked(tried=tried(), committed=own)).gate is Gate.FRESH


def test_a_plan_that_is_being_made_says_so() -> None:
    found = explain_slice(asked(tried=tried(PlanState.DRAFT)))

    assert found.gate is Gate.PLANNING
    assert "may run before all are enqueued" in found.sentence


def test_a_draft_of_a_gone_process_begins_again() -> None:
    gone = LockHolder(lock=LOCK, gone=True)
    found = explain_slice(asked(tried=tried(PlanState.DRAFT, holder=gone)))

    assert found.gate is Gate.PLAN_LEFT
    assert found.unblocks == "the same 'penstock build' command is started again, which plans anew"


def test_a_plan_whose_locks_are_not_renewed_is_left() -> None:
    late = LockHolder(lock=msgspec.structs.replace(LOCK, alive=False))
    found = explain_slice(asked(tried=tried(holder=late)))

    assert found.gate is Gate.PLAN_LEFT
    assert "which does not renew its locks" in found.sentence


def test_a_fresh_slice_is_fresh_whatever_was_tried_before() -> None:
    found = explain_slice(asked(tried=tried(PlanState.ENDED), committed=committed()))

    assert found.gate is Gate.FRESH


def test_a_slice_of_the_future_that_is_there_is_fresh() -> None:
    assert explain_slice(asked(now=0, committed=committed())).gate is Gate.FRESH
    assert explain_slice(asked(now=0)).gate is Gate.FUTURE


def test_a_last_try_comes_before_the_lock_of_another() -> None:
    error = AttemptError(ErrorCategory.OWN, "KeyError", "'close'")
    failed = facts(job("build:p1:prices@1", JobState.ERROR, plan_id="p1", last_error=error))
    last = tried(PlanState.ENDED, around=failed, again="penstock build prices")
    found = explain_slice(asked(tried=last, lock=HOLDER))

    assert (found.gate, found.command) == (Gate.FINISHED, "penstock build prices")
    assert found.sentence == "prices@1 failed in plan p1: KeyError: 'close'."


def test_a_stale_slice_that_is_locked_says_both() -> None:
    stale = committed(newer=("a@1",), newer_count=1)
    found = explain_slice(asked(committed=stale, lock=HOLDER))

    assert found.gate is Gate.LOCKED
    assert "is committed but stale (a@1 was built anew after it)" in found.sentence


def test_the_same_command_is_told_only_where_one_line_can_say_it() -> None:
    assert rebuild_command(PLAN) == (
        "penstock build mean prices --from 1970-01-01T00:00:00Z --to 1970-01-01T00:00:00.000005Z"
    )
    zones = msgspec.structs.replace(FACTS, ranges=((0, 5), (1, 6)))
    assert rebuild_command(msgspec.structs.replace(PLAN, document=zones.document())) is None
    assert rebuild_command(msgspec.structs.replace(PLAN, document="{}")) is None
    flags = msgspec.structs.replace(FACTS, eager=True, fail_fast=True)
    again = rebuild_command(msgspec.structs.replace(PLAN, document=flags.document()))
    assert again is not None
    assert again.endswith(" --eager --fail-fast")


def test_how_far_a_level_is() -> None:
    level = LevelStates(level=2, states={"done": 13, "error": 1, "queued": 6}, committed=False)

    assert format_level(level) == "14 of 20 jobs of level 2 have ended"

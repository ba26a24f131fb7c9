# SPDX-License-Identifier: Apache-2.0
"""Does `penstock why NAME@TIME` tell the truth about a slice, wherever it stands?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import JobState
from tests.processes import mark_of_the_dead
from tests.unit.cli.commands.dataset_shop import DATASETS, Shop
from tests.unit.cli.conftest import Command

SAME = "the same 'penstock build' command"


@pytest.fixture
def shop(project: Path) -> Iterator[Shop]:
    made = Shop(project)
    yield made
    made.close()


def why(command: Command, name: str) -> dict[str, Any]:
    ended = command("why", name, "--json")
    assert ended.code == 0, ended.err
    document: dict[str, Any] = ended.document
    return document


# Without any plan


def test_a_day_that_the_calendar_does_not_have_names_the_nearest(
    shop: Shop, command: Command
) -> None:
    found = why(command, "prices@2024-01-05T12:00:00Z")

    assert found["gate"] == "no_slice"
    assert "the nearest are prices@2024-01-05 and prices@2024-01-06" in found["sentence"]
    assert not (shop.folder / ".penstock").exists()


def test_a_day_with_many_slices_is_asked_for_one_of_them(shop: Shop, command: Command) -> None:
    found = why(command, "hours@2024-01-05")

    assert found["gate"] == "no_slice"
    assert found["sentence"].startswith("hours@2024-01-05 is 24 slices: ask for one of ")


def test_one_of_the_future_says_when_it_comes(shop: Shop, command: Command) -> None:
    found = why(command, "prices@2999-01-05")

    assert (found["gate"], found["when"]) == ("future", "2999-01-05T00:00:00.000000Z")


def test_an_unknown_dataset_is_told_with_the_nearest(shop: Shop, command: Command) -> None:
    ended = command("why", "price@2024-01-05")

    assert ended.code == 2
    assert "closest: 'prices'" in ended.sentence


@pytest.mark.parametrize("key", ["prices", "prices@yesterday"])
def test_a_dataset_alone_is_asked_for_a_slice(shop: Shop, command: Command, key: str) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-03")
    ended = command("why", key)

    assert ended.code == 1
    assert f"'prices' is a dataset, and {key!r} names no slice of it" in ended.sentence
    assert "penstock why prices@2024-01-05" in ended.sentence


def test_what_is_no_time_is_refused(shop: Shop, command: Command) -> None:
    ended = command("why", "prices@2024-02-31")

    assert ended.code == 2
    assert "'2024-02-31' is not a time" in ended.sentence


def test_one_that_was_never_built_names_what_it_needs_and_the_command(
    shop: Shop, command: Command
) -> None:
    found = why(command, "mean@2024-01-05")

    assert found["gate"] == "not_built"
    assert found["command"] == "penstock build mean --from 2024-01-05 --to 2024-01-06"
    assert found["details"] == [
        "It needs prices@2024-01-04 and prices@2024-01-05, which are missing or not up to date."
    ]
    hour = why(command, "hours@2024-01-05T07:00:00Z")
    assert hour["command"] == (
        "penstock build hours --from 2024-01-05T07:00:00Z --to 2024-01-05T07:00:01Z"
    )


def test_one_that_can_never_be_built_says_so(shop: Shop, command: Command) -> None:
    exact = DATASETS.replace("prices.lookback(2)", "prices.exact()")
    shop.write(exact.replace("Daily(), needs=[prices", 'Daily(at="07:30"), needs=[prices'))
    found = why(command, "mean@2024-01-05")

    assert found["gate"] == "not_built"
    assert "cannot be built: mean@2024-01-05 needs prices at exactly" in found["sentence"]
    assert found["command"] is None


# Committed


def test_a_fresh_one_says_when_by_which_plan_and_where(shop: Shop, command: Command) -> None:
    report = shop.build("mean", start="2024-01-02", end="2024-01-04")
    found = why(command, "mean@2024-01-03")

    assert (found["gate"], found["state"]) == ("fresh", "done")
    assert f"by plan {report.plan_id}" in found["sentence"]
    assert re.match(r"File: mean/2024-01-03T000000Z/part-\w+\.parquet", found["details"][0])
    lines = command("why", "mean@2024-01-03").out
    assert "is committed and up to date" in lines


def test_one_of_another_version_is_stale(shop: Shop, command: Command) -> None:
    shop.build("prices", start="2024-01-02", end="2024-01-03")
    shop.write(DATASETS.replace("VERSION = 1", "VERSION = 'new'"))
    found = why(command, "prices@2024-01-02")

    assert found["gate"] == "stale"
    assert "built by version '1' of the dataset, which is 'new' now" in found["sentence"]
    assert found["command"] == "penstock build prices --from 2024-01-02 --to 2024-01-03"


def test_one_whose_upstream_was_rebuilt_names_it(shop: Shop, command: Command) -> None:
    shop.build("mean", start="2024-01-02", end="2024-01-04")
    shop.build("prices", start="2024-01-03", end="2024-01-04", force=True)
    found = why(command, "mean@2024-01-03")

    assert found["gate"] == "stale"
    assert "prices@2024-01-03 was built anew after it" in found["sentence"]
    assert why(command, "mean@2024-01-02")["gate"] == "fresh"


def test_one_whose_upstream_is_of_another_version_names_what_comes_first(
    shop: Shop, command: Command
) -> None:
    shop.build("mean", start="2024-01-02", end="2024-01-03")
    shop.write(DATASETS.replace("VERSION = 1", "VERSION = 'new'"))
    found = why(command, "mean@2024-01-02")

    assert found["gate"] == "stale"
    assert "prices@2024-01-01 and prices@2024-01-02, which it needs, need" in found["sentence"]


# After a build that failed


def test_one_that_failed_says_with_what_and_the_command(shop: Shop, command: Command) -> None:
    shop.fails("prices@2024-01-02")
    report = shop.build("mean", start="2024-01-02", end="2024-01-04")
    found = why(command, "prices@2024-01-02")

    assert (found["gate"], found["state"]) == ("finished", "error")
    assert f"prices@2024-01-02 failed in plan {report.plan_id}" in found["sentence"]
    assert "ValueError: prices of 02 shall fail" in found["sentence"]
    assert found["command"] == (
        "penstock build mean --from 2024-01-02T00:00:00Z --to 2024-01-04T00:00:00Z"
    )


def test_one_that_was_skipped_names_the_root_of_it(shop: Shop, command: Command) -> None:
    shop.fails("prices@2024-01-02")
    shop.build("total", start="2024-01-02", end="2024-01-04")
    found = why(command, "total@2024-01-03")

    assert (found["gate"], found["state"]) == ("finished", "skipped")
    assert "because prices@2024-01-02 failed: ValueError" in found["sentence"]
    assert found["details"][0].startswith("Between them: mean@2024-01-0")


def test_one_that_misses_one_of_many_names_it(shop: Shop, command: Command) -> None:
    """It waits for a gate, which opens however its jobs end, and skips itself."""
    shop.write(DATASETS.replace("lookback(2)", "lookback(10)"))
    shop.fails("prices@2024-01-02")
    report = shop.build("mean", start="2024-01-05", end="2024-01-06")
    found = why(command, "mean@2024-01-05")

    assert found["state"] == "skipped"
    assert "because prices@2024-01-02 failed: ValueError" in found["sentence"]
    assert found["chain"][-1] == f"build:{report.plan_id}:prices@2024-01-02"


def test_one_that_was_built_after_it_had_failed_is_fresh(shop: Shop, command: Command) -> None:
    shop.fails("prices@2024-01-02")
    shop.build("prices", start="2024-01-02", end="2024-01-03")
    (shop.folder / "prices@2024-01-02 fails").unlink()
    shop.build("prices", start="2024-01-02", end="2024-01-03")

    assert why(command, "prices@2024-01-02")["gate"] == "fresh"


def test_the_job_of_a_build_is_told_without_retry_failed(shop: Shop, command: Command) -> None:
    shop.fails("prices@2024-01-02")
    report = shop.build("prices", start="2024-01-02", end="2024-01-03")
    found = why(command, f"build:{report.plan_id}:prices@2024-01-02")

    assert found["unblocks"] == "the same build is started again, which builds what is missing"
    assert found["command"].startswith("penstock build prices --from 2024-01-02T00:00:00Z")


# In a plan that is on its way


def test_the_gate_of_its_job_is_its_own(shop: Shop, command: Command) -> None:
    plan = shop.plan("mean", start="2024-01-02", end="2024-01-04")
    found = why(command, "prices@2024-01-02")
    assert (found["gate"], found["state"]) == ("no_worker", "queued")
    assert "dataset:prices'" in found["unblocks"]

    shop.worker()
    assert why(command, "prices@2024-01-02")["gate"] == "turn"
    shop.store.set_paused(True).result()
    found = why(command, "prices@2024-01-02")
    assert found["gate"] == "paused"
    assert found["details"][-1] == (
        f"Plan {plan.plan_id} of the run 'run-a': job build:{plan.plan_id}:prices@2024-01-02, "
        "level 0 of 2 levels."
    )
    shop.store.set_paused(False).result()
    shop.store.set_cap("feed:one", 0).result()
    assert why(command, "prices@2024-01-02")["gate"] == "keyed_limit"


def test_one_that_runs_says_where(shop: Shop, command: Command) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-04")
    worker = shop.worker()
    (job,) = shop.lease(worker)
    found = why(command, job.key.split(":", 2)[2])

    assert (found["state"], found["worker"]) == ("in_progress", worker)


def test_one_on_a_higher_level_waits_for_the_barrier(shop: Shop, command: Command) -> None:
    shop.plan("mean", start="2024-01-02", end="2024-01-04")
    worker = shop.worker()
    leased = {job.key.split(":", 2)[2]: job for job in shop.lease(worker, 3)}
    found = why(command, "mean@2024-01-03")
    assert found["gate"] == "dependency"
    assert len(found["waits_for"]) == 3

    for day in (2, 3):
        shop.end(worker, leased[f"prices@2024-01-0{day}"])
    found = why(command, "mean@2024-01-03")
    assert (found["gate"], found["state"]) == ("level", "waiting")
    assert found["sentence"].startswith(
        "mean@2024-01-03 waits until level 0 is committed: 2 of 3 jobs of level 0 have ended. "
    )
    assert "prices@2024-01-01" in found["sentence"]
    assert found["chain"][1].endswith(":level:0")


def test_in_eager_mode_it_waits_for_its_own_upstream(shop: Shop, command: Command) -> None:
    plan = shop.plan("mean", start="2024-01-02", end="2024-01-04", eager=True)
    shop.worker()
    found = why(command, "mean@2024-01-03")

    assert found["gate"] == "dependency"
    assert {one["key"].split(":", 2)[2] for one in found["waits_for"]} == {
        "prices@2024-01-02",
        "prices@2024-01-03",
    }
    assert plan.plan_id in found["sentence"]


def test_one_that_is_built_waits_for_the_rest_of_its_level(shop: Shop, command: Command) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-04")
    worker = shop.worker()
    (job,) = shop.lease(worker)
    shop.end(worker, job)
    found = why(command, job.key.split(":", 2)[2])

    assert (found["gate"], found["state"]) == ("level", "done")
    assert found["sentence"].endswith(
        "is built, but its level is not committed yet: 1 of 2 jobs of level 0 has ended."
    )
    assert found["unblocks"] == "the other 1 job of its level end, in any state"
    assert found["details"][0].startswith("What holds the level up: ")


def test_one_that_failed_in_a_plan_that_goes_on_waits_for_its_end(
    shop: Shop, command: Command
) -> None:
    plan = shop.plan("prices", start="2024-01-02", end="2024-01-04")
    worker = shop.worker()
    (job,) = shop.lease(worker)
    shop.end(worker, job, JobState.ERROR)
    found = why(command, job.key.split(":", 2)[2])

    assert (found["gate"], found["state"]) == ("finished", "error")
    assert found["unblocks"] == f"plan {plan.plan_id} ends, and {SAME} is started again"


def test_a_slice_of_a_batch_is_found_in_its_job(shop: Shop, command: Command) -> None:
    plan = shop.plan("total", start="2024-01-02", end="2024-01-07")
    shop.worker()

    for day, batch in ((3, "02..2024-01-03"), (4, "04..2024-01-05"), (6, "06")):
        found = why(command, f"total@2024-01-0{day}")
        assert f"job build:{plan.plan_id}:total@2024-01-{batch}, " in found["details"][-1]


def test_workers_with_another_output_root_do_not_count(shop: Shop, command: Command) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-03")
    shop.worker(["dataset:prices#root-of-others"])
    found = why(command, "prices@2024-01-02")

    assert found["gate"] == "no_worker"
    assert "keeps slices in another output root than its plan" in found["sentence"]


# Locks and plans of others


def test_a_plan_whose_process_is_gone_is_left(shop: Shop, command: Command) -> None:
    dead = mark_of_the_dead()
    plan = shop.plan("mean", start="2024-01-02", end="2024-01-04", mark=dead)
    found = why(command, "mean@2024-01-02")

    assert found["gate"] == "plan_left"
    assert f"in plan {plan.plan_id}, which was abandoned by the run 'run-a'" in found["sentence"]
    assert "whose process is gone (0 of 5 jobs are done)" in found["sentence"]
    assert found["unblocks"] == f"{SAME} is started again, which continues the plan"
    assert found["command"] == (
        "penstock build mean --from 2024-01-02T00:00:00Z --to 2024-01-04T00:00:00Z"
    )


def test_a_plan_that_let_its_locks_go_is_left(shop: Shop, command: Command) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-04")
    shop.store.release_locks("run-a", ["prices"]).result()

    assert why(command, "prices@2024-01-02")["gate"] == "plan_left"


def test_a_slice_that_a_running_build_leaves_out_is_locked(shop: Shop, command: Command) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-04")
    shop.worker()
    found = why(command, "prices@2024-02-01")

    assert found["gate"] == "locked"
    assert "the run 'run-a' on here, which is alive, since " in found["sentence"]
    assert found["command"] == "penstock build prices --from 2024-02-01 --to 2024-02-02"


def test_a_lock_of_a_gone_process_is_told_beside_the_answer(shop: Shop, command: Command) -> None:
    shop.plan("prices", start="2024-01-02", end="2024-01-04", mark=mark_of_the_dead())
    found = why(command, "prices@2024-02-01")

    assert found["gate"] == "not_built"
    assert "whose process is gone" in found["details"][-1]
    assert found["details"][-1].endswith("the next build does not wait for it.")

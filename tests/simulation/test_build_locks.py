# SPDX-License-Identifier: Apache-2.0
"""Does a build wait for who builds the same, and stop if its locks are gone?"""

from __future__ import annotations

import logging

import pytest

from penstock import process_identity
from penstock.errors import BuildLost
from penstock.model.plan import PlanState
from penstock.testing import Harness, harness
from tests.building import DAY_1, DAY_3, Chain


def take(test: Harness, run_id: str, seconds: float, gone: tuple[str, ...] = ()) -> None:
    locks = test.store.take_locks(["prices", "mean"], run_id, "a mark", seconds, gone).result()
    assert locks.taken


def test_a_wait_for_another_build_says_its_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.build")
    with harness(Chain().app) as test:
        take(test, "run-1", 15.0)
        assert test.build("prices", start=DAY_1, end=DAY_3).ok
        assert 15.0 <= test.clock.monotonic() < 20.0
    said = [r.getMessage() for r in caplog.records if "Waiting" in r.getMessage()]
    assert said == ["Waiting: prices is being built by run-1."]


def test_nobody_waits_for_a_process_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "is_gone", lambda mark: mark == "a mark")
    with harness(Chain().app) as test:
        take(test, "run-1", 600.0)
        assert test.build("prices", start=DAY_1, end=DAY_3).ok
        assert test.clock.monotonic() < 5.0


def test_builds_of_other_datasets_do_not_wait() -> None:
    with harness(Chain().app) as test:
        take(test, "run-1", 600.0)
        assert test.build("weather", start=DAY_1, end=DAY_3).ok
        assert test.clock.monotonic() < 5.0


def test_who_has_lost_the_locks_changes_nothing_more() -> None:
    chain = Chain()
    with harness(chain.app) as test:

        def steal(name: str) -> None:
            held = test.store.locks().result()
            if name == "mean@01":
                take(test, "thief", 600.0, tuple(lock.mark for lock in held))

        chain.calls.stop_at = steal
        with pytest.raises(BuildLost, match=r"mean, prices are being built by thief"):
            test.build("mean", start=DAY_1, end=DAY_3)
        assert len(test.read("prices")) == 3
        assert len(test.read("mean")) == 0
        (plan,) = test.store.open_plans().result()
        assert plan.state is PlanState.LEFT
        assert {lock.run_id for lock in test.store.locks().result()} == {"thief"}
        assert test.store.check().result() == []
        made = chain.calls.take()
        assert made.count("mean@01") == 1  # not again and again, each time for nothing
        test.store.release_locks("thief", ["prices", "mean"]).result()
        chain.calls.stop_at = lambda _: None
        report = test.build("mean", start=DAY_1, end=DAY_3)
        assert report.ok
        assert report.plan_id == plan.id
        assert chain.calls.take() == ["mean@01", "mean@02"]


def test_another_request_gives_up_a_plan_that_was_left() -> None:
    chain = Chain()
    with harness(chain.app) as test:

        def steal(name: str) -> None:
            held = test.store.locks().result()
            take(test, "thief", 600.0, tuple(lock.mark for lock in held))

        chain.calls.stop_at = steal
        with pytest.raises(BuildLost):
            test.build("mean", start=DAY_1, end=DAY_3)
        chain.calls.stop_at = lambda _: None
        test.store.release_locks("thief", ["prices", "mean"]).result()
        (left,) = test.store.open_plans().result()
        report = test.build("prices", start=DAY_1, end=DAY_3)
        assert report.ok
        assert report.plan_id != left.id
        assert test.store.open_plans().result() == []
        given_up = test.store.plan(left.id).result()
        assert given_up is not None
        assert given_up.state is PlanState.ABANDONED
        assert {test.states[key] for key in test.states if f":{left.id}:" in key} <= {
            "done",
            "cancelled",
        }
        test.drain()


def test_files_that_nobody_names_are_swept_when_a_plan_goes_on() -> None:
    chain = Chain()
    with harness(chain.app) as test:

        def steal(name: str) -> None:
            if name == "mean@01":
                held = test.store.locks().result()
                take(test, "thief", 600.0, tuple(lock.mark for lock in held))

        chain.calls.stop_at = steal
        with pytest.raises(BuildLost):
            test.build("mean", start=DAY_1, end=DAY_3)
        chain.calls.stop_at = lambda _: None
        folder = chain.app.datasets["prices"].files()[0].parents[2] / "mean"
        assert list(folder.glob("*/part-*"))  # written, and not acknowledged in time
        test.store.release_locks("thief", ["prices", "mean"]).result()
        assert test.build("mean", start=DAY_1, end=DAY_3).ok
        named = chain.app.datasets["mean"].files()
        assert sorted(folder.glob("*/part-*")) == sorted(named)

# SPDX-License-Identifier: Apache-2.0
"""What is kept of checks?"""

from __future__ import annotations

from penstock.errors import EnqueueRefused
from penstock.model.job import AttemptError, ErrorCategory
from penstock.model.schedule import ARM_UNITS_MAX, PreflightResult
from tests.contract.world import StoreWorld, refusal


def _result(
    partition: str, at: int = 1, value: str | None = None, error: AttemptError | None = None
) -> PreflightResult:
    return PreflightResult(
        unit=f"preflight:exists:{partition}",
        name="exists",
        partition=partition,
        value=value,
        error=error,
        checked_at=at,
    )


def _kept(world: StoreWorld, app: str = "watch") -> list[PreflightResult]:
    return world.store.preflights(app, "", 10_000).result()


def test_results_are_kept_as_they_are(store_world: StoreWorld) -> None:
    trouble = AttemptError(ErrorCategory.NODE, "ConnectError", 'no "route"', "x.py:3")
    results = [
        _result("", value="null"),
        _result("a", value='{"é":"\\\\"}'),
        _result("b", error=trouble),
        _result("c"),
    ]

    store_world.store.keep_preflights("watch", results[::-1]).result()

    assert _kept(store_world) == results
    assert _kept(store_world, "other") == []


def test_the_last_word_on_a_unit_counts(store_world: StoreWorld) -> None:
    store = store_world.store
    store.keep_preflights("watch", [_result("a", 1, "1"), _result("b", 1, "1")]).result()

    store.keep_preflights("watch", [_result("a", 2), _result("a", 3, "3")]).result()
    store.keep_preflights("other", [_result("b", 2, "2")]).result()
    store.keep_preflights("watch", []).result()

    assert _kept(store_world) == [_result("a", 3, "3"), _result("b", 1, "1")]
    assert _kept(store_world, "other") == [_result("b", 2, "2")]


def test_results_are_read_in_pages(store_world: StoreWorld) -> None:
    results = [_result(name) for name in ("B", "a", "b", "ä")]
    store_world.store.keep_preflights("watch", results).result()

    first = store_world.store.preflights("watch", "", 2).result()
    rest = store_world.store.preflights("watch", first[-1].unit, 10).result()

    assert (first, rest) == (results[:2], results[2:])


def test_results_of_some_units_are_read_together(store_world: StoreWorld) -> None:
    store = store_world.store
    results = [_result(name, value=f'"{name}"') for name in ("a", "b", 'c"ä')]
    store.keep_preflights("watch", results).result()
    store.keep_preflights("other", [_result("b", 2)]).result()

    wanted = [results[2].unit, "preflight:exists:nobody", results[1].unit, results[2].unit]
    found = store.checked("watch", wanted).result()

    assert sorted(found, key=lambda result: result.unit) == results[1:]
    assert store.checked("watch", []).result() == []


def test_old_results_of_an_app_are_forgotten(store_world: StoreWorld) -> None:
    store = store_world.store
    store.keep_preflights("watch", [_result("a", 1), _result("b", 2), _result("c", 3)]).result()
    store.keep_preflights("other", [_result("d", 1)]).result()

    assert store.forget_preflights("watch", 3).result() == 2

    assert _kept(store_world) == [_result("c", 3)]
    assert len(_kept(store_world, "other")) == 1


def test_too_many_results_are_refused(store_world: StoreWorld) -> None:
    results = [_result(f"{n:04}") for n in range(ARM_UNITS_MAX + 1)]

    refusal(store_world.store.keep_preflights("watch", results), EnqueueRefused)
    assert _kept(store_world) == []

    store_world.store.keep_preflights("watch", results[1:]).result()
    assert _kept(store_world) == results[1:]

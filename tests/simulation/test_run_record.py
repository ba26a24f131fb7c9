# SPDX-License-Identifier: Apache-2.0
"""Does a worker write down its part of a run, now and again, and hurt nobody if it cannot?"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from penstock import Context, Penstock
from penstock.errors import StoreBusy, StoreCorrupt
from penstock.model.run import RunDocument, RunPart, read_document
from penstock.observe.report import capacity_of, sections
from penstock.stores.store_future import Reply
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import ProviderRules, SimulatedProvider


def app_of(seconds: float) -> tuple[Penstock, object]:
    app = Penstock("shop")

    @app.task()
    async def nap(ctx: Context, n: int) -> None:
        await asyncio.sleep(seconds)

    return app, nap


def saved(t: Harness) -> list[RunDocument]:
    """Every word of the run so far is caught on its way to the store."""
    said: list[RunDocument] = []
    save = t.store.save_run

    def catch(part: RunPart) -> Reply[None]:
        document = read_document(part.document)
        assert document is not None
        said.append(document)
        return save(part)

    t.store.save_run = catch  # type: ignore[method-assign]
    return said


def test_a_worker_tells_of_its_run_at_once_and_then_less_often_up_to_ten_seconds() -> None:
    app, nap = app_of(34.0)

    with harness(app) as t:
        said = saved(t)
        t.enqueue_many(nap.job(n=n) for n in range(2))  # type: ignore[attr-defined]
        t.drain()
        parts = t.store.run_parts(None).result()

    assert [document.over for document in said] == [False] * 6 + [True]
    seconds = [(document.told_at - document.began_at) / 1e6 for document in said]
    assert seconds[:6] == pytest.approx([0, 1, 3, 7, 15, 25], abs=2)
    for before, after in itertools.pairwise(said[:6]):  # whoever dies loses no more than it says
        assert (after.told_at - before.told_at) / 1e6 <= before.within_seconds + 0.5
    assert len(parts) == 1  # its last word counts
    assert said[-1].ended == 2


def test_an_idle_worker_writes_nothing() -> None:
    app, nap = app_of(1.0)

    with harness(app) as t:
        said = saved(t)
        t.enqueue(nap.job(n=1), delay=100.0)  # type: ignore[attr-defined]
        t.drain()

    # It waits for a delay, which is news; but it is not written more often than every ten seconds,
    # but for the first ones.
    assert len(said) <= 15


@pytest.mark.parametrize("error", [StoreBusy("held"), StoreCorrupt("torn"), RuntimeError("ours")])
def test_a_record_that_cannot_be_saved_hurts_nobody(error: Exception) -> None:
    app, nap = app_of(25.0)

    with harness(app) as t:

        def refuse(part: RunPart) -> Reply[None]:
            raise error

        t.store.save_run = refuse  # type: ignore[method-assign]
        t.enqueue(nap.job(n=1), key="k")  # type: ignore[attr-defined]
        t.drain()

        assert t.states["k"] == "done"


def test_a_store_that_never_answers_is_not_waited_for() -> None:
    app, nap = app_of(1.0)

    with harness(app) as t:
        t.store.save_run = lambda part: Reply()  # type: ignore[method-assign]
        t.enqueue(nap.job(n=1), key="k")  # type: ignore[attr-defined]
        began = t.clock.monotonic()
        t.drain()

        assert t.states["k"] == "done"
        assert t.clock.monotonic() - began < 10


def test_the_capacity_plan_has_its_three_sections() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid", max_parallel=3)

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/{n}")

    settings = {"runtime": {"async_slots": 8}, "limits": {"host": {"*": 2}}}
    simulated = SimulatedProvider(ProviderRules(latency=1.0))
    with harness(app, settings=settings, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(30))
        t.drain()
        plan = capacity_of(t.store.run_parts(None).result())

    assert plan is not None
    configured = plan.configured
    assert configured["resource_limits.async"].value == 8
    assert configured["keyed_limits.host:*"].value == 2
    assert configured["static_caps.api.max_parallel"].value == 3
    assert configured["static_caps.api.aliases"].value == {"api": 3.0}
    assert configured["buffer_size"].missing_reason == "this version has no tables"
    assert configured["static_caps.api.rpm"].missing_reason is not None
    assert plan.runtime_snapshot["in_flight"].value == 0
    assert plan.observed_maxima["in_flight"].value == 3
    assert plan.observed_maxima["request_in_flight"].value == {"api/simulated.invalid": 3.0}
    assert plan.observed_maxima["row_groups_in_flight"].value is None
    leases = plan.observed_maxima["task_leases"].value
    assert isinstance(leases, dict)
    assert 3 <= leases["async"] <= 8
    assert [name for name, _ in sections(plan)] == [
        "configured",
        "runtime_snapshot",
        "observed_maxima",
    ]
    for _, rows in sections(plan):
        assert all(source for _, _, source in rows)


def test_what_was_observed_is_not_among_what_is_configured() -> None:
    app, nap = app_of(1.0)

    with harness(app, settings={"runtime": {"async_slots": 4}}) as t:
        t.enqueue_many(nap.job(n=n) for n in range(2))  # type: ignore[attr-defined]
        t.drain()
        plan = capacity_of(t.store.run_parts(None).result())

    assert plan is not None
    assert plan.configured["resource_limits.async"].value == 4
    assert plan.observed_maxima["task_leases"].value == {"submission": 2.0, "async": 2.0}

# SPDX-License-Identifier: Apache-2.0
"""Datasets: a plan of everything, a build, and plans that find nothing to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature
from typing import Any

from benchmarks.measuring import Answer, stopwatch
from benchmarks.paired.figures import rate_and_cpu, to_answer
from penstock import Context, Penstock
from penstock.calendars import Daily

FIRST = datetime(2000, 1, 1, tzinfo=UTC)
NEEDS = 3  # of a dataset of the large plan
BATCH = 50  # slices of a job of the second build


def plan(datasets: int, days: int) -> Answer:
    """Probe: a plan of datasets that each need others, of which nothing is built."""
    app = Penstock("bench", store="sqlite:///plan.db")
    for number in range(datasets):
        needs = [f"d{other}" for other in range(max(0, number - NEEDS), number)]
        _define(app, number, needs)
    asked: dict[str, Any] = {"start": FIRST, "end": FIRST + timedelta(days=days), "yes": True}
    app.plan_build("d0", start=FIRST, end=FIRST + timedelta(days=1))  # imports what it needs
    with stopwatch() as spent:
        found = app.plan_build(*(f"d{number}" for number in range(datasets)), **asked)
    app.close()
    if found.jobs != datasets * days:
        raise RuntimeError(f"{found.jobs} of {datasets * days} slices were planned")
    return to_answer(rate_and_cpu("plan of everything", "slice", found.jobs, spent))


def _define(app: Penstock, number: int, needs: Sequence[str]) -> None:
    """A dataset that is only planned; it takes what it needs by name."""

    def body(ctx: Context, at: datetime) -> bytes:
        raise NotImplementedError

    names = ("ctx", "at", *needs)
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    body.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app.dataset(calendar=Daily(), name=f"d{number}", needs=needs)(body)


def build(slices: int, plans: int) -> Answer:
    """Probe: build slices one a job and many a job, then plan again and again."""
    app = Penstock("bench", store="sqlite:///build.db")

    @app.dataset(calendar=Daily())
    def single(ctx: Context, at: datetime) -> list[dict[str, Any]]:
        return _rows(at)

    @app.dataset(calendar=Daily(), batch=BATCH)
    def batched(ctx: Context, at: Sequence[datetime]) -> Mapping[datetime, list[dict[str, Any]]]:
        return {one: _rows(one) for one in at}

    app.build(single, start=FIRST - timedelta(days=1), end=FIRST)  # imports what it needs
    asked: dict[str, Any] = {"start": FIRST, "end": FIRST + timedelta(days=slices)}
    with stopwatch() as level:
        built = app.build(single, **asked)
    with stopwatch() as eager:
        eagerly = app.build(batched, eager=True, **asked)
    with stopwatch() as nothing:
        left = sum(app.plan_build(single, batched, **asked).jobs for _ in range(plans))
    app.close()
    if (built.slices, eagerly.slices, left) != (slices, slices, 0):
        raise RuntimeError(f"{slices} slices should be built twice: {built}, {eagerly}, {left}")
    return to_answer(
        rate_and_cpu("build, level by level", "slice", slices, level),
        rate_and_cpu(f"build, eager, {BATCH} slices a job", "slice", slices, eager),
        rate_and_cpu("plan of nothing", "slice", 2 * slices * plans, nothing),
    )


def _rows(at: datetime) -> list[dict[str, Any]]:
    return [{"at": at, "item": number, "price": number * 0.5} for number in range(10)]

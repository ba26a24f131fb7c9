# SPDX-License-Identifier: Apache-2.0
"""How long does a plan of a million jobs take, and one that finds nothing to do?

The yardstick is `graphlib.TopologicalSorter` on the very jobs and edges of that plan, taken level
by level. It gets the graph ready made; the planner has to find it, and to name every job.
"""

from __future__ import annotations

import resource
import statistics
from array import array
from graphlib import TopologicalSorter

from benchmarks.measuring import Answer, fresh, interleaved, paired_ratio, pick, stopwatch
from benchmarks.planning.market import DAY, NOTHING, everything, market, nothing_built
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.dataset import SliceMarks
from penstock.model.plan import BuildPlan, Placement
from penstock.planning.build_plan import plan_build
from penstock.planning.graph import levels_of
from penstock.planning.plan_jobs import plan_jobs

SORTER = 3.0  # times graphlib, at most
MEMORY_MIB = 1_536
FRESH_SECONDS = 5.0


def measure_plan(setup: Setup) -> Outcome:
    """A plan of everything, beside graphlib; in turns, each in a process of its own."""
    datasets, days = setup.size(1_000, 100), setup.size(1_000, 200)
    where = setup.folder
    rounds = setup.size(3, 1)
    answers = interleaved(
        rounds,
        {
            "ours": lambda: fresh(plan_probe, where, datasets=datasets, days=days),
            "graphlib": lambda: fresh(sorter_probe, where, datasets=datasets, days=days),
        },
    )
    ours, theirs = answers["ours"], answers["graphlib"]
    ratio = paired_ratio(pick(ours, "cpu"), pick(theirs, "cpu"))
    peak = max(pick(ours, "peak_mib"))
    jobs, edges = ours[0]["jobs"], theirs[0]["edges"]
    submitted = fresh(submission_probe, where, datasets=datasets, days=days)
    rows = tuple(
        (what, statistics.median(pick(found, "wall")), statistics.median(pick(found, "cpu")), mib)
        for what, found, mib in (
            ("plan_build", ours, peak),
            ("graphlib", theirs, max(pick(theirs, "peak_mib"))),
            ("jobs of it, level by level", [submitted["level"]], submitted["peak_mib"]),
            ("jobs of it, eager", [submitted["eager"]], submitted["peak_mib"]),
        )
    )
    return Outcome(
        (
            Check("plan: CPU, ours ÷ graphlib", ratio, Sense.AT_MOST, SORTER),
            Check("plan: peak MiB", peak, Sense.BELOW, MEMORY_MIB, timing=False),
        ),
        (
            Table(
                f"A plan of {jobs:,} jobs and {edges:,} edges, {datasets:,} datasets",
                ("what", "seconds", "CPU seconds", "peak MiB"),
                rows,
            ),
        ),
    )


def measure_fresh(setup: Setup) -> Outcome:
    """Everything is committed: as many datasets as above, and all slices in one."""
    shapes = ((setup.size(1_000, 100), 1_000), (2, setup.size(500_000, 50_000)))
    found = [
        fresh(fresh_probe, setup.folder, datasets=datasets, days=days) for datasets, days in shapes
    ]
    rows = tuple(
        (
            f"{datasets:,} × {days:,}",
            answer["slices"],
            answer["wall"],
            answer["cpu"],
            answer["peak_mib"],
        )
        for (datasets, days), answer in zip(shapes, found, strict=True)
    )
    slowest = max(pick(found, "cpu"))
    return Outcome(
        (Check("fresh: CPU seconds of a plan of nothing", slowest, Sense.BELOW, FRESH_SECONDS),),
        (
            Table(
                "A plan that finds everything fresh, marks in memory",
                ("datasets × slices", "slices", "seconds", "CPU seconds", "peak MiB"),
                rows,
            ),
        ),
    )


def plan_probe(datasets: int, days: int) -> Answer:
    """Make the plan of everything."""
    specs = market(datasets)
    request = everything(specs, days)
    with stopwatch() as spent:
        plan = plan_build(specs, request, nothing_built, days * DAY)
    return {"wall": spent.wall, "cpu": spent.cpu, "jobs": plan.jobs, "peak_mib": _peak()}


def sorter_probe(datasets: int, days: int) -> Answer:
    """Sort the jobs of that plan with graphlib."""
    specs = market(datasets)
    graph = _graph(plan_build(specs, everything(specs, days), nothing_built, days * DAY))
    with stopwatch() as spent:
        sorter = TopologicalSorter(graph)
        sorter.prepare()
        levels = []
        while sorter.is_active():
            level = sorter.get_ready()
            levels.append(level)
            sorter.done(*level)
    edges = sum(map(len, graph.values()))
    return {"wall": spent.wall, "cpu": spent.cpu, "edges": edges, "peak_mib": _peak()}


def submission_probe(datasets: int, days: int) -> Answer:
    """Make the durable jobs of that plan, both ways, and keep none of them."""
    specs = market(datasets)
    plan = plan_build(specs, everything(specs, days), nothing_built, days * DAY)
    place = Placement(task="dataset:d", group="d")
    answer: Answer = {}
    for mode in ("level", "eager"):
        with stopwatch() as spent:
            for _ in plan_jobs(plan, lambda _name: place, place, eager=mode == "eager"):
                pass
        answer[mode] = {"wall": spent.wall, "cpu": spent.cpu}
    return {**answer, "peak_mib": _peak()}


def fresh_probe(datasets: int, days: int) -> Answer:
    """Plan where everything was committed day by day, level by level.

    So the newest inputs are newer than most slices that need others of them: numbers of commits
    have to be compared slice by slice, not once a dataset.
    """
    specs = market(datasets)
    levels = levels_of({name: [need.dataset for need in specs[name].needs] for name in specs})
    level_of = {name: number for number, level in enumerate(levels) for name in level}
    ats = array("q", range(0, days * DAY, DAY))
    end = days * len(levels)

    def marks(name: str, _start: int, _end: int, _version: str) -> SliceMarks:
        level = level_of[name]
        bases = array("q", range(level, end, len(levels)))
        seqs = array("q", range(level + 1, end + 1, len(levels)))
        return SliceMarks(ats=ats, seqs=seqs, bases=bases, outdated=NOTHING, seq=end)

    with stopwatch() as spent:
        plan = plan_build(specs, everything(specs, days), marks, days * DAY)
    slices = sum(counts.fresh for counts in plan.counts.values())
    return {"wall": spent.wall, "cpu": spent.cpu, "slices": slices, "peak_mib": _peak()}


def _graph(plan: BuildPlan) -> dict[str, list[str]]:
    """Each job with those that it needs, as graphlib wants it."""
    ids: dict[str, list[str]] = {}
    for level in plan.levels:
        for job in level:
            ids.setdefault(job.dataset, []).append(job.job_id)
    return {
        job.job_id: [key for run in job.needs for key in ids[run.dataset][run.first : run.last + 1]]
        for level in plan.levels
        for job in level
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

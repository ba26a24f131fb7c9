# SPDX-License-Identifier: Apache-2.0
"""How does one job wait for very many others with a few edges?

Through gates: each waits for a run of a dataset's jobs. Runs are of 8, 16, 32 … jobs and begin at
multiples of their size, so that those who need similar runs share them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence

from penstock.model.plan import JobDescriptor, Needed, SlicePayload

GATE_MAX = 1_024  # jobs that a gate waits for itself; a larger one waits for smaller gates
GATE_PARTS = 32  # of which it has so many

Gate = tuple[int, int]  # its size, and its number among those of its size


def gates_of(run: Needed) -> list[Gate]:
    """The gates that hold a run; at most three, and less than twice as many jobs again."""
    size = 1 << (run.last - run.first + 1).bit_length() - 1
    return [(size, number) for number in range(run.first // size, run.last // size + 1)]


def parts_of(gate: Gate, jobs: int) -> list[Gate]:
    """The smaller gates that a large one waits for, of a dataset with so many jobs."""
    size, number = gate
    small = size // GATE_PARTS
    end = min((number + 1) * size, jobs)
    return [(small, part) for part in range(number * GATE_PARTS, -(-end // small))]


class BuiltSlices:
    """Owns which slices of a dataset a plan builds, and where fresh ones lie between them."""

    def __init__(self, jobs: Sequence[JobDescriptor], fresh: Sequence[int]) -> None:
        self._batch = len(jobs[0].timestamps)  # of all of them, but perhaps the last
        self._moments = array("q", [at for job in jobs for at in job.timestamps])
        self._breaks = sorted({bisect_left(self._moments, at) for at in fresh})

    def ranges(self, run: Needed) -> list[tuple[int, int]]:
        """From when to when, both included, a run of jobs builds everything that is needed."""
        first = run.first * self._batch
        end = min((run.last + 1) * self._batch, len(self._moments))
        inner = self._breaks[bisect_right(self._breaks, first) : bisect_left(self._breaks, end)]
        moments = self._moments
        starts, ends = [first, *inner], [*inner, end]
        return [(moments[a], moments[b - 1]) for a, b in zip(starts, ends, strict=True)]


def unbuilt(
    payload: SlicePayload, dataset: str, needed: Iterable[int], of_this_plan: Container[int]
) -> int | None:
    """The first needed slice that this plan was to build and has not; None: all are there.

    Args:
        needed: the slices of a dataset that the job needs.
        of_this_plan: those of them whose committed manifest is of the job's plan.
    """
    ranges = payload.built.get(dataset, ())
    for at in needed:
        if at not in of_this_plan and any(first <= at <= last for first, last in ranges):
            return at
    return None

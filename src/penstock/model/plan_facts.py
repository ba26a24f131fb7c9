# SPDX-License-Identifier: Apache-2.0
"""What is kept of a plan besides its jobs?"""

from __future__ import annotations

from typing import Self

import msgspec

from penstock.model.plan import BuildPlan, BuildRequest, SliceCounts


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a plan besides its jobs: the document of its row."""

    targets: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    datasets: tuple[str, ...]  # whose locks it has
    slices: int  # to be built
    fresh: int
    force: bool = False
    eager: bool = False
    fail_fast: bool = False
    counts: dict[str, SliceCounts] = {}

    @classmethod
    def of(cls, plan: BuildPlan, request: BuildRequest, datasets: tuple[str, ...]) -> Self:
        """The facts of a new plan."""
        return cls(
            targets=request.targets,
            ranges=request.ranges,
            datasets=datasets,
            slices=sum(len(job.timestamps) for level in plan.levels for job in level),
            fresh=sum(counts.fresh for counts in plan.counts.values()),
            force=request.force,
            eager=request.eager,
            fail_fast=request.fail_fast,
            counts=plan.counts,
        )

    @classmethod
    def read(cls, document: str) -> Self:
        """The facts of a plan that is kept."""
        return msgspec.json.decode(document, type=cls)

    def document(self) -> str:
        return msgspec.json.encode(self).decode()

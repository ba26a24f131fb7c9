# SPDX-License-Identifier: Apache-2.0
"""Plans a build or a backfill: which slices of which datasets, as jobs in levels.

From the targets up, the slices that are needed are collected; from the sources down, what is fresh
is left out; what remains is batched into jobs, and each job is one level above all that it needs.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from penstock.errors import UsageError
from penstock.model.dataset import SLICES_UNASKED_MAX, DatasetSpec, SliceMarks
from penstock.model.plan import BuildPlan, BuildRequest
from penstock.planning.freshness import DatasetState, assess_freshness
from penstock.planning.graph import closure
from penstock.planning.needs import CalendarReader, needed_moments, too_many_slices
from penstock.planning.plan_jobs import describe_jobs

PLAN_ID_LENGTH = 12  # hexadecimal digits
DIGEST_LENGTH = 32  # hexadecimal digits

#: (dataset, start, end, version) → what is committed in [start, end).
MarksOf = Callable[[str, int, int, str], SliceMarks]


def plan_build(
    specs: Mapping[str, DatasetSpec], request: BuildRequest, marks_of: MarksOf, now: int
) -> BuildPlan:
    """Plan what brings the targets up to date. The same request on the same state, the same plan.

    Args:
        specs: all datasets, by name.
        marks_of: what is committed; asked once for each dataset of which something is needed.
        now: slices of the targets after it are left out and counted.

    Raises:
        UsageError: a name is unknown, a range ends before it starts, a slice needs one that its
            calendar does not have, or there are more slices than are planned without --yes.
    """
    order = closure(specs, request.targets)
    most = None if request.yes else SLICES_UNASKED_MAX
    moments, future = _collect(specs, order, request, now, most)
    wanted: dict[str, DatasetState] = {}
    for name in order:
        spec, needed = specs[name], moments[name]
        marks = marks_of(name, needed[0], needed[-1] + 1, spec.version) if needed else None
        needs = [(need, wanted[need.dataset]) for need in spec.needs]
        wanted[name] = assess_freshness(
            needed, needs, marks, force=request.force, future=future.get(name, 0)
        )
    plan_id = _plan_id(_digest(specs, order, request, ""), wanted)
    return BuildPlan(
        plan_id=plan_id,
        targets=request.targets,
        levels=describe_jobs(plan_id, specs, wanted),
        counts={name: found.counts for name, found in wanted.items()},
        fresh={name: _fresh(found) for name, found in wanted.items()},
    )


def check_build(specs: Mapping[str, DatasetSpec], request: BuildRequest, now: int) -> None:
    """Refuse what cannot be planned, whatever is committed: before anything is opened or written.

    Raises:
        UsageError: as `plan_build`.
    """
    most = None if request.yes else SLICES_UNASKED_MAX
    _collect(specs, closure(specs, request.targets), request, now, most)


def request_digest(specs: Mapping[str, DatasetSpec], request: BuildRequest, root: str = "") -> str:
    """The digest of a request and its definitions: an equal one may continue an abandoned plan.

    Args:
        root: the id of the place that outputs go to.
    """
    if request.to_now:
        starts = tuple((start, start) for start, _ in request.ranges)
        request = msgspec.structs.replace(request, ranges=starts)
    return _digest(specs, closure(specs, request.targets), request, root)


def _digest(
    specs: Mapping[str, DatasetSpec], names: Sequence[str], request: BuildRequest, root: str
) -> str:
    definitions = [
        (
            name,
            specs[name].calendar.text,
            specs[name].version,
            specs[name].batch,
            [(need.dataset, need.rule, need.count, need.micros) for need in specs[name].needs],
        )
        for name in sorted(names)
    ]
    asked = (
        request.targets,
        request.ranges,
        request.force,
        request.eager,
        request.fail_fast,
        root,
    )
    told = msgspec.json.encode((asked, definitions))
    return blake2b(told, digest_size=DIGEST_LENGTH // 2).hexdigest()


def _collect(
    specs: Mapping[str, DatasetSpec],
    order: Sequence[str],
    request: BuildRequest,
    now: int,
    most: int | None,
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The moments that are needed of each dataset, and how many of each lie in the future."""
    reader = CalendarReader(most)
    asked: dict[str, list[list[int]]] = {name: [] for name in order}
    future: dict[str, int] = {}
    if len(request.targets) != len(request.ranges):
        raise UsageError(
            f"A build of {len(request.targets)} datasets has {len(request.ranges)} ranges: "
            "give each of them one."
        )
    for name, (start, end) in zip(request.targets, request.ranges, strict=True):
        if start > end:
            raise UsageError(f"The range of {name!r} ends before it starts: swap start and end.")
        found = reader.between(specs[name], start, end)
        if found and found[-1] > now:
            past = reader.between(specs[name], start, max(start, min(end, now + 1)))
            future[name] = future.get(name, 0) + len(found) - len(past)
            found = past
        asked[name].append(found)
    moments: dict[str, list[int]] = {}
    total = 0
    for name in reversed(order):
        needed = moments[name] = _union(asked.pop(name))
        total += len(needed)
        if most is not None and total > most:
            raise too_many_slices(f"at least {total:,} slices, {len(needed):,} of {name!r}", most)
        spec = specs[name]
        for need in spec.needs:
            asked[need.dataset].append(
                needed_moments(spec, needed, need, specs[need.dataset], reader)
            )
    return {name: moments[name] for name in order}, future


def _union(parts: list[list[int]]) -> list[int]:
    """All moments of some sorted lists, each once."""
    parts = [part for part in parts if part]
    if not parts:
        return []
    first = max(parts, key=len)
    if all(part is first or part == first for part in parts):
        return first
    return sorted(set().union(*parts))


def _plan_id(digest: str, wanted: Mapping[str, DatasetState]) -> str:
    sums = blake2b(digest.encode(), digest_size=PLAN_ID_LENGTH // 2)
    for name, found in wanted.items():
        built = array("q", map(found.moments.__getitem__, found.build))
        if sys.byteorder == "big":
            built.byteswap()
        sums.update(f"{name}:{len(built)}:".encode())
        sums.update(built.tobytes())
    return sums.hexdigest()


def _fresh(found: DatasetState) -> array[int]:
    if len(found.build) == len(found.moments):
        return array("q")
    if not found.build:
        return array("q", found.moments)
    building = set(found.build)
    return array("q", [at for i, at in enumerate(found.moments) if i not in building])

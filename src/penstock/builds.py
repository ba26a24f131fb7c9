# SPDX-License-Identifier: Apache-2.0
"""How is a build put together: from targets and settings to a request, a root and tasks?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from penstock.clock import Clock, SystemClock
from penstock.config.settings import Settings
from penstock.definitions.dataset import Dataset
from penstock.definitions.moments import Moment, micros_of
from penstock.definitions.task import Task
from penstock.errors import UsageError
from penstock.ids import IdSource, SystemIds
from penstock.model.calendar import Calendar
from penstock.model.plan import BuildRequest, Placement
from penstock.outputs.root import OutputRoot, find_root, open_root
from penstock.planning.build_plan import plan_build
from penstock.planning.calendars.slice_names import moment_of
from penstock.runtime.building import Aside, Build
from penstock.runtime.messages import BuildSpec
from penstock.runtime.slicing import SliceSite, slice_task, slice_tasks
from penstock.stores.memory import MemoryStore
from penstock.stores.store import Store

NOW = "now"

Datasets = Mapping[str, Dataset[..., Any]]


def root_folder(settings: Settings, folder: Path | None = None) -> Path:
    """Where slices are kept; a relative root lies in the folder of the project."""
    return (folder or Path.cwd()) / settings.datasets.root


def build_request(
    datasets: Datasets,
    targets: Collection[str],
    start: Moment,
    end: Moment,
    *,
    force: bool = False,
    eager: bool = False,
    fail_fast: bool = False,
    yes: bool = False,
) -> BuildRequest:
    """What is asked for; dates are days of the calendar of each target."""
    if not targets:
        raise UsageError("A build needs at least one target: the name of a dataset.")
    names = tuple(sorted(set(targets)))
    zones = [datasets[name].calendar.tz for name in names]
    ranges = tuple((micros_of("start", start, tz), micros_of("end", end, tz)) for tz in zones)
    if any(first > last for first, last in ranges):
        raise UsageError(f"The start {start} lies after the end {end}; exchange them.")
    return BuildRequest(
        targets=names, ranges=ranges, force=force, eager=eager, fail_fast=fail_fast, yes=yes
    )


def typed_request(datasets: Datasets, spec: BuildSpec, now: int) -> BuildRequest:
    """What was typed on a command line; every target is a dataset of the app."""
    names = tuple(sorted(set(spec.targets)))
    ranges = tuple(_typed_range(datasets[name].calendar, spec, now) for name in names)
    return BuildRequest(
        targets=names,
        ranges=ranges,
        force=spec.force,
        eager=spec.eager,
        fail_fast=spec.fail_fast,
        yes=spec.yes,
    )


def check_first(
    datasets: Datasets, request: BuildRequest, settings: Settings, folder: Path | None, now: int
) -> None:
    """Refuse what can never be planned before a store or a root is made for it.

    Where there is a root, slices may be there: then only the plan itself knows.
    """
    if found_root(settings, folder) is None:
        specs = {name: dataset.spec for name, dataset in datasets.items()}
        store = empty_store()
        plan_build(specs, request, lambda *asked: store.slice_marks(*asked).result(), now)


def _typed_range(calendar: Calendar, spec: BuildSpec, now: int) -> tuple[int, int]:
    start = moment_of(spec.start, calendar, now)
    end = moment_of(spec.end, calendar, now)
    if start > end:
        raise UsageError(f"The start {spec.start} lies after the end {spec.end}; exchange them.")
    if spec.end.strip() == NOW:  # the same words, the same request, until there is a new slice
        last = calendar.before(end, 1)
        end = max(start, last[0] + 1 if last else start)
    return start, end


def placements(datasets: Datasets, root: OutputRoot) -> dict[str, Placement]:
    """Where the jobs of each dataset go."""
    return {
        name: Placement(
            task=slice_task(name, root.id),
            group=dataset.task.options.group or name,
            priority=dataset.task.options.priority,
            limit_keys=dataset.task.scheduling.limit_keys,
        )
        for name, dataset in datasets.items()
    }


def made_build(
    app: str,
    run_id: str,
    datasets: Datasets,
    request: BuildRequest,
    root: OutputRoot,
    store: Store,
    clock: Clock,
    settings: Settings,
    *,
    mark: str,
    aside: Aside,
    now_at: int | None = None,
    locked: Callable[[], None] = lambda: None,
) -> Build:
    """A build of an app, still to be prepared."""
    return Build(
        app,
        run_id,
        {name: dataset.spec for name, dataset in datasets.items()},
        request,
        placements(datasets, root),
        root,
        store,
        clock,
        ttl_seconds=settings.runtime.lease_ttl_seconds,
        mark=mark,
        aside=aside,
        now_at=now_at,
        locked=locked,
    )


def build_tasks(
    datasets: Datasets, root: OutputRoot, names: Collection[str]
) -> dict[str, Task[..., Any]]:
    """What the workers of a build serve: the datasets that it has locked, and steps of plans."""
    return slice_tasks(SliceSite(root, datasets), names)


def served_tasks(
    datasets: Datasets, settings: Settings, folder: Path | None = None
) -> dict[str, Task[..., Any]]:
    """What every other worker of an app serves of builds, if there is a root to write to."""
    root = found_root(settings, folder) if datasets else None
    return {} if root is None else slice_tasks(SliceSite(root, datasets), datasets)


def found_root(settings: Settings, folder: Path | None = None) -> OutputRoot | None:
    """The root of an app; None if nothing was ever built there."""
    return find_root(root_folder(settings, folder))


def new_root(settings: Settings, ids: IdSource, folder: Path | None = None) -> OutputRoot:
    """The root of an app; made if it is not there."""
    return open_root(root_folder(settings, folder), ids)


def empty_store() -> Store:
    """A store in memory, for whoever plans where there is none yet."""
    return MemoryStore(SystemClock(), SystemIds())

# SPDX-License-Identifier: Apache-2.0
"""Puts a build together: from targets and settings to a request, its scope and its tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from penstock.app.dataset_reader import found_root
from penstock.app.registry import Registry
from penstock.builds.build import Aside, BuildScope
from penstock.builds.kept import DatasetKeeper
from penstock.builds.slice import SliceSite, slice_task, slice_tasks
from penstock.clock import Clock, SystemClock
from penstock.config.settings import Settings
from penstock.definitions.dataset import Dataset, Moment
from penstock.definitions.schedule import KeptDatasets, Schedule
from penstock.definitions.task import Task
from penstock.errors import UsageError
from penstock.ids import IdSource
from penstock.model.dataset import ROWS, Calendar, SliceOutput
from penstock.model.plan import BuildRequest, Placement
from penstock.outputs.root import OutputRoot
from penstock.planning.build_plan import check_build
from penstock.planning.calendars.timestamps import parse_moment
from penstock.planning.graph import closure
from penstock.stores.protocol import Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.supervisor.protocol import BuildSpec

if TYPE_CHECKING:
    from penstock.app.app import Penstock

NOW = "now"

Datasets = Mapping[str, Dataset[..., Any]]


class BuildOptions(TypedDict, total=False):
    """How something is built, besides what and from when to when."""

    force: bool  # build what is up to date as well
    eager: bool  # start each job as soon as what it needs is there, and commit it by itself
    fail_fast: bool  # begin nothing more after a level in which something failed
    yes: bool  # more than SLICES_UNASKED_MAX slices are allowed


def build_request(
    datasets: Datasets,
    targets: Iterable[str],
    start: Moment,
    end: Moment,
    now: int,
    **options: Unpack[BuildOptions],
) -> BuildRequest:
    """What is asked for; dates are days of the calendar of each target."""
    names = tuple(sorted(set(targets)))
    if not names:
        raise UsageError("A build needs at least one target: the name of a dataset.")
    if options.get("eager") and options.get("fail_fast"):
        raise UsageError(
            "An eager build has no levels, so fail-fast has nowhere to stop; leave out one of the "
            "two."
        )
    ranges = tuple(_range(datasets[name].calendar, start, end, now) for name in names)
    return BuildRequest(targets=names, ranges=ranges, **options)


def _range(calendar: Calendar, start: Moment, end: Moment, now: int) -> tuple[int, int]:
    first, last = parse_moment(start, calendar, now), parse_moment(end, calendar, now)
    if first > last:
        raise UsageError(f"The start {start} lies after the end {end}; swap them.")
    if isinstance(end, str) and end.strip() == NOW:
        newest = calendar.before(last, 1)  # the same words, the same request, until there is more
        last = max(first, newest[0] + 1 if newest else first)
    return first, last


def typed_request(datasets: Datasets, spec: BuildSpec, now: int) -> BuildRequest:
    """What was typed on a command line; every target is a dataset of the app."""
    if spec.rows is not None:
        return rows_request(spec.targets[0], spec.rows, force=spec.force)
    return build_request(
        datasets,
        spec.targets,
        spec.start,
        spec.end,
        now,
        force=spec.force,
        eager=spec.eager,
        fail_fast=spec.fail_fast,
        yes=spec.yes,
    )


def rows_request(table: str, rows: int, *, force: bool = False) -> BuildRequest:
    """The rows of a table that are to be there, from the first on."""
    return BuildRequest(targets=(table,), ranges=((0, rows),), force=force, eager=True, yes=True)


def spec_datasets(app: Penstock, spec: BuildSpec) -> Datasets:
    """What a build of a command line may name: the datasets of the app, or one of its tables."""
    if spec.rows is None:
        return app.datasets
    table = app.registry.find_table(spec.targets[0])
    return {table.name: table.dataset}


def check_parquet(datasets: Datasets, names: Collection[str]) -> None:
    """Refuse datasets whose rows nobody could write, once and before any is computed."""
    if find_spec("pyarrow") is not None:
        return
    rows = sorted(name for name in names if datasets[name].returns_rows)
    if rows:
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        raise UsageError(
            f"Rows of the dataset {rows[0]!r}{more} are kept as Parquet, and pyarrow is not "
            "installed: install it with 'pip install pyarrow', or return bytes."
        )


def build_scope(
    app: str,
    datasets: Datasets,
    root: OutputRoot,
    rows: int | None = None,
    *,
    retry_dropped: bool = False,
) -> BuildScope:
    """What a build of an app is about: its datasets, and where their jobs and slices go.

    Args:
        app: its name.
        datasets: all of them.
        root: where slices are kept.
        rows: of a table: a part that has fewer of them than it may is outdated.
        retry_dropped: so is one of which rows were dropped.
    """
    placements = {
        name: Placement(
            task=slice_task(name, root.id),
            group=dataset.task.options.group or dataset.task.identity_group or name,
            priority=dataset.task.options.priority,
            limit_keys=dataset.task.scheduling.limit_keys,
        )
        for name, dataset in datasets.items()
    }
    specs = {name: dataset.spec for name, dataset in datasets.items()}
    is_whole = None if rows is None else partial(_has_rows, rows, not retry_dropped)
    return BuildScope(app, specs, placements, root, lambda name: datasets[name].code, is_whole)


def _has_rows(rows: int, may_lack: bool, output: SliceOutput) -> bool:
    """Whether a part of a table has as many rows as it may."""
    part = output.part
    if part is None or (part.dropped_count and not may_lack):
        return False
    return part.asked >= min(part.size, rows - output.at)


def build_tasks(
    datasets: Datasets, root: OutputRoot, names: Collection[str]
) -> dict[str, Task[..., Any]]:
    """What the workers of a build serve: the datasets that it has locked, and steps of plans."""
    if any(datasets[name].calendar.tz == ROWS for name in names):
        from penstock.tables.row_group import slice_task_of  # not there unless there is a table

        return slice_tasks(SliceSite(root, datasets), names, slice_task_of)
    return slice_tasks(SliceSite(root, datasets), names)


def served_tasks(
    datasets: Datasets, settings: Settings, folder: Path | None = None
) -> dict[str, Task[..., Any]]:
    """What every other worker of an app serves of builds, if there is a root to write to."""
    root = found_root(settings, folder) if datasets else None
    return {} if root is None else slice_tasks(SliceSite(root, datasets), datasets)


def current_request(datasets: Datasets, keeps: KeptDatasets, now: int) -> BuildRequest:
    """What a schedule of datasets wants to be there at a time."""
    starts = [parse_moment(keeps.since, datasets[x].calendar, now) for x in keeps.targets]
    return BuildRequest(
        targets=keeps.targets,
        ranges=tuple((start, max(start, now + 1)) for start in starts),
        eager=keeps.eager,
        yes=keeps.yes,
        to_now=True,
    )


def kept_datasets(registry: Registry) -> dict[str, KeptDatasets]:
    """What schedules of an app keep current, by their names."""
    return {name: one.keeps for name, one in registry.schedules.items() if one.keeps is not None}


def served_schedules(
    registry: Registry,
    root: Callable[[], OutputRoot],
    settings: Settings,
    store: Store,
    clock: Clock,
    ids: IdSource,
    aside: Aside,
) -> dict[str, Schedule[..., Any]]:
    """The schedules of an app as a daemon ticks them; the root is made if one keeps datasets."""
    served = dict(registry.schedules)
    kept = kept_datasets(registry)
    if not kept:
        return served
    scope = build_scope(registry.name, registry.datasets, root())
    for name, keeps in kept.items():
        keeper = DatasetKeeper(
            served[name],
            scope,
            partial(current_request, registry.datasets, keeps),
            store,
            clock,
            ids,
            settings.runtime.lease_ttl_seconds,
            aside,
        )
        served[name] = served[name].bound(keeper.tick)
    return served


def schedule_problems(registry: Registry, now: int) -> Iterator[str]:
    """What no tick of a schedule of datasets could do, whatever is committed."""
    specs = registry.dataset_specs
    for schedule, keeps in kept_datasets(registry).items():
        try:
            for name in keeps.targets:
                registry.find_dataset(name)
            check_build(specs, current_request(registry.datasets, keeps, now), now)
            check_parquet(registry.datasets, closure(specs, keeps.targets))
        except UsageError as error:
            yield f"{schedule}: {error}"


def empty_store() -> Store:
    """A store in memory, for whoever plans where there is none yet."""
    return InProcessStore(SystemClock())

# SPDX-License-Identifier: Apache-2.0
"""Registry of an app: tasks, providers, partitions, schedules, preflights, datasets, tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.definitions.dataset import Dataset
from penstock.definitions.partitions import Partitions
from penstock.definitions.preflight import Preflight
from penstock.definitions.provider import Provider
from penstock.definitions.schedule import Schedule
from penstock.definitions.task import Task
from penstock.errors import UnknownTask, UsageError
from penstock.model.dataset import DatasetSpec
from penstock.model.job import PREFLIGHT, SCHEDULE, SLICE, JobKind, kind_of_name
from penstock.model.names import check_app_name
from penstock.planning.graph import validate
from penstock.retry.policy import RetryPolicy

if TYPE_CHECKING:
    from penstock.app.table import AppTable

D = TypeVar("D")


class Registry:
    """Owns what one app has defined, each kind of thing by name. Knows no store."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        check_app_name(name)
        self.name = name
        self._code_settings: dict[str, Any] = {} if store is None else {"store": store}
        self.tasks: dict[str, Task[..., Any]] = {}
        self.providers: dict[str, Provider] = {}
        self.dimensions: dict[str, Partitions[Any]] = {}
        self.preflights: dict[str, Preflight[..., Any]] = {}  # by task: preflight:NAME
        self.schedules: dict[str, Schedule[..., Any]] = {}  # by task: schedule:NAME
        self.datasets: dict[str, Dataset[..., Any]] = {}
        self.tables: dict[str, AppTable] = {}
        self._folders: dict[str, str] = {}  # datasets and tables, by their names without case
        self.retry_policy = RetryPolicy()

    @property
    def code_settings(self) -> dict[str, Any]:
        """What the app says in code, as it would stand in a file of settings."""
        tables = {name: provider.options.table() for name, provider in self.providers.items()}
        return {**self._code_settings, "providers": tables}

    @property
    def all_tasks(self) -> dict[str, Task[..., Any]]:
        """Tasks, preflights, schedules and datasets, by the names of their jobs' tasks."""
        datasets = {dataset.task.name: dataset.task for dataset in self.datasets.values()}
        return {**self.tasks, **self.preflights, **self.schedules, **datasets}

    @property
    def dataset_specs(self) -> dict[str, DatasetSpec]:
        """All datasets, as planning sees them."""
        return {name: dataset.spec for name, dataset in self.datasets.items()}

    def check_datasets(self) -> None:
        """Refuse unknown needs and cycles of the whole graph, in one UsageError."""
        validate(self.dataset_specs.values())

    def add_provider(self, provider: Provider) -> None:
        self._add(self.providers, provider.name, provider, "providers", "")

    def add_task(self, task: Task[..., Any]) -> None:
        """Refuses names that belong to other kinds of definitions, too."""
        if kind_of_name(task.name) is not JobKind.JOB:
            raise UsageError(
                f"Task {task.name!r}: names that begin with {SCHEDULE!r}, {PREFLIGHT!r} or "
                f"{SLICE!r} belong to schedules, preflights and datasets; rename it."
            )
        self._add(self.tasks, task.name, task, "tasks")

    def add_partitions(self, dimension: Partitions[Any]) -> None:
        self._add(self.dimensions, dimension.name, dimension, "partitions", "")

    def add_schedule(self, schedule: Schedule[..., Any]) -> None:
        self._check_dimensions(schedule.over)
        self._add(self.schedules, schedule.name, schedule, "schedules")

    def add_preflight(self, preflight: Preflight[..., Any]) -> None:
        self._check_dimensions(preflight.over)
        self._add(self.preflights, preflight.name, preflight, "preflights")

    def add_dataset(self, dataset: Dataset[..., Any]) -> None:
        """Refuses a name that a table has, or that differs in case only from another."""
        self._take_folder("dataset", dataset.name, self.tables)
        self._add(self.datasets, dataset.name, dataset, "datasets")

    def add_table(self, table: AppTable) -> None:
        """Refuses a name that a dataset has, or that differs in case only from another."""
        self._take_folder("table", table.name, self.datasets)
        self._add(self.tables, table.name, table, "tables", "")

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of this name; UnknownTask with the nearest ones."""
        task = self.tasks.get(name)
        if task is None:
            raise UnknownTask(
                f"No task named {name!r} is registered in app {self.name!r} ({len(self.tasks)} "
                f"are{_closest(name, self.tasks)}). Correct the name, or define the task."
            )
        return task

    def find_dataset(self, name: str | Dataset[..., Any]) -> Dataset[..., Any]:
        """The dataset of this name; UsageError with the nearest ones."""
        if isinstance(name, Dataset):
            name = name.name
        dataset = self.datasets.get(name)
        if dataset is None:
            raise UsageError(
                f"No dataset named {name!r:.150} is registered in app {self.name!r} "
                f"({len(self.datasets)} are{_closest(name, self.datasets)}). Correct the name, or "
                "define the dataset."
            )
        return dataset

    def find_table(self, name: str) -> AppTable:
        """The table of this name; UsageError with the nearest ones."""
        table = self.tables.get(name)
        if table is None:
            raise UsageError(
                f"No table named {name!r:.150} is registered in app {self.name!r} "
                f"({len(self.tables)} are{_closest(name, self.tables)}). Correct the name, or "
                "define the table."
            )
        return table

    def _take_folder(self, kind: str, name: str, others: Iterable[str]) -> None:
        """Where a file system ignores case, two folders would be one, and be swept as one."""
        if name in others:
            other = "table" if kind == "dataset" else "dataset"
            raise UsageError(
                f"The app {self.name!r} has a {other} named {name!r}, and a {kind} of that name "
                "would have the same folder; rename one."
            )
        other = self._folders.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"The {kind}s {name!r} and {other!r} differ in case only, and would be one "
                "folder on some file systems; rename one."
            )

    def _add(
        self, table: dict[str, D], key: str, made: D, kind: str, hint: str = ", or give it a name="
    ) -> None:
        if key in table:
            name = key.removeprefix(SCHEDULE).removeprefix(PREFLIGHT)
            raise UsageError(
                f"The app {self.name!r} has two {kind} named {name!r}; rename one{hint}."
            )
        table[key] = made

    def _check_dimensions(self, over: tuple[Partitions[Any], ...]) -> None:
        for dimension in over:
            if self.dimensions.get(dimension.name) is not dimension:
                raise UsageError(
                    f"The partitions {dimension.name!r} belong to another app; define them with "
                    f"partitions() of {self.name!r}."
                )


def _closest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1)
    return f"; closest: {near[0]!r}" if near else ""

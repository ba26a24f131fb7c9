# SPDX-License-Identifier: Apache-2.0
"""What does a user define for builds? Datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.app.app_daemon import DaemonDefinitions
from penstock.clock import Duration
from penstock.definitions.dataset import Dataset, DatasetDecorator
from penstock.definitions.moments import Moment
from penstock.definitions.provider import Uses
from penstock.definitions.task import (
    CONFIGURED,
    LimitValue,
    Task,
    TaskOptions,
    check_attempts,
    checked_limits,
    limit_seconds,
)
from penstock.errors import UsageError
from penstock.model.calendar import Calendar
from penstock.model.dataset import DatasetSpec, Need
from penstock.model.scheduling import MetadataSource
from penstock.planning.graph import validate

if TYPE_CHECKING:
    import pyarrow


class DatasetDefinitions(DaemonDefinitions, ABC):
    """The datasets of an application, by name."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        super().__init__(name, store=store)
        self.datasets: dict[str, Dataset[..., Any]] = {}
        self._folders: dict[str, str] = {}  # names of datasets, by what they are without case

    @property
    def all_tasks(self) -> dict[str, Task[..., Any]]:
        """Tasks, preflights, schedules and datasets, by the names of their jobs' tasks."""
        tasks = {dataset.task.name: dataset.task for dataset in self.datasets.values()}
        return {**super().all_tasks, **tasks}

    @property
    def dataset_specs(self) -> dict[str, DatasetSpec]:
        """All datasets, as planning sees them."""
        return {name: dataset.spec for name, dataset in self.datasets.items()}

    def check_datasets(self) -> None:
        """Refuse unknown needs and cycles of the whole graph, in one UsageError."""
        validate(self.dataset_specs.values())

    def find_dataset(self, name: str | Dataset[..., Any]) -> Dataset[..., Any]:
        """The dataset of this name; UsageError with the nearest ones."""
        if isinstance(name, Dataset):
            name = name.name
        dataset = self.datasets.get(name)
        if dataset is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.datasets, 1)
            hint = f"; closest: {near[0]!r}" if near else ""
            raise UsageError(
                f"No dataset named {name!r:.150} is registered in app {self.name!r} "
                f"({len(self.datasets)} are{hint}). Correct the name, or define the dataset."
            )
        return dataset

    def dataset(
        self,
        function: None = None,
        /,
        *,
        calendar: Calendar,
        needs: Iterable[Dataset[..., Any] | Need | str] = (),
        version: int | str = 1,
        batch: int = 1,
        name: str | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        limits: Mapping[str, LimitValue] | None = None,
        group: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = CONFIGURED,
        executor: Literal["process"] | None = None,
        metadata: MetadataSource | None = None,
    ) -> DatasetDecorator:
        """Make a function a dataset: it returns one slice for each moment of a calendar.

        It takes `ctx: Context`, `at: datetime`, and the slices that it needs, as arguments named
        like their datasets. It returns rows (a list of dicts), an Arrow table, a pandas or polars
        frame, or bytes; with `batch`, a mapping from timestamp to one of these.

        Args:
            calendar: when there are slices; one of penstock.calendars.
            needs: what it is built from: a dataset, or `.latest()`, `.exact()`, `.lookback(20)` or
                `.window(timedelta(days=7))` of one.
            version: of the function; slices of another version are built anew.
            batch: how many slices one job builds at once; above 1, `at` is a sequence.
            name: what it is called; the function's name otherwise.
            uses: the providers that it calls, or their names.
            limits: keyed concurrency limits; their values are texts.
            group: the unit of fairness; the dataset's name otherwise.
            priority: higher goes first, inside a group.
            max_attempts: how many of its own faults a job may have.
            timeout: of one attempt; None for no limit.
            executor: "process" runs it in another process, where its output is written, too.
            metadata: how its jobs share with others.
        """
        if function is not None:
            raise UsageError("Write @app.dataset(calendar=...) with parentheses.")
        options = TaskOptions(
            group=group,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=limit_seconds(timeout),
            has_timeout=timeout is not None,
            limits=checked_limits(limits),
            executor=executor,
            metadata=metadata,
            uses=uses,
        )
        asked: Any = needs
        if isinstance(needs, Iterator):
            asked = tuple(needs)  # it can be read once only

        def decorate(function: Callable[..., Any]) -> Dataset[..., Any]:
            own_name = name or function.__name__
            check_attempts(f"Dataset {own_name!r}", max_attempts)
            made: Dataset[..., Any] = Dataset(
                own_name, function, calendar, asked, version, batch, options, self
            )
            if own_name in self.datasets:
                raise UsageError(
                    f"The app {self.name!r} has two datasets named {own_name!r}; rename one, or "
                    "give it a name=."
                )
            self._refuse_twin(own_name)
            self.datasets[own_name] = made
            return made

        return decorate  # type: ignore[return-value]  # the function's parameters are kept

    def _refuse_twin(self, name: str) -> None:
        """Where a file system ignores case, two folders would be one, and be swept as one."""
        other = self._folders.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"The datasets {name!r} and {other!r} differ in case only, and would be one "
                "folder on some file systems; rename one."
            )

    @abstractmethod
    def read_slices(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> pyarrow.Table:
        """What is committed of a dataset, as a table."""

    @abstractmethod
    def slice_files(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> list[Path]:
        """The files of what is committed of a dataset."""

# SPDX-License-Identifier: Apache-2.0
"""Tables: kinds of columns, samplers, rubrics, and what became of cells and rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from enum import StrEnum
from typing import Any

import msgspec

#: The values of one row so far, by column.
Row = Mapping[str, Any]


class ColumnKind(StrEnum):
    """How the values of a column are made."""

    SEED = "seed"  # read from a source
    SAMPLE = "sample"  # drawn
    EXPRESSION = "expression"  # a template
    LLM = "llm"  # the answer of a language model
    JUDGE = "judge"  # scores by a language model
    CHECK = "check"  # whether a row is as it should be
    FUNCTION = "function"  # code of the user


class OnFail(StrEnum):
    """What follows a cell that has failed for good, or a check that a row does not pass."""

    AGAIN = "again"  # what a check has looked at is made anew, then the row is dropped
    DROP = "drop"  # the row is not made
    NULL = "null"  # the cell is empty
    KEEP = "keep"  # a check: the row stays as it is, and is marked
    STOP = "stop"  # the run ends


class SeedOrder(StrEnum):
    """In which order the records of a seed become rows."""

    ORDERED = "ordered"
    SHUFFLED = "shuffled"  # anew in each cycle


class Choices(msgspec.Struct, frozen=True, tag="choices"):
    """One of these values, as likely as its weight."""

    values: tuple[Any, ...]
    weights: tuple[float, ...] | None = None  # None: all alike


class ChoicesBy(msgspec.Struct, frozen=True, tag="choices_by"):
    """One of the values that belong to the value of another column."""

    column: str
    values: tuple[tuple[Any, tuple[Any, ...]], ...]


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """A number from low up to high, each as likely."""

    low: float
    high: float
    decimals: int | None = None  # None: not rounded


class Integers(msgspec.Struct, frozen=True, tag="integers"):
    """A whole number from low to high, both included."""

    low: int
    high: int


class Normal(msgspec.Struct, frozen=True, tag="normal"):
    """A number of a normal distribution, of its part from low to high if they are said."""

    mean: float
    deviation: float
    low: float | None = None
    high: float | None = None
    decimals: int | None = None


class Dates(msgspec.Struct, frozen=True, tag="dates"):
    """A day, both ends included, or a time in whole seconds before its end."""

    start: date | datetime
    end: date | datetime

    @property
    def has_time(self) -> bool:
        return isinstance(self.start, datetime)


class Ids(msgspec.Struct, frozen=True, tag="ids"):
    """A text that holds the number of the row or what no other row has."""

    form: str  # such as "order-{row:05}", "{uuid}", "{hex}"


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """Always the same value; None: nothing."""

    value: Any


Sampler = Choices | ChoicesBy | Uniform | Integers | Normal | Dates | Ids | Constant


class Criterion(msgspec.Struct, frozen=True):
    """One line of a rubric: a score in whole numbers, and what it is about."""

    name: str
    low: int
    high: int
    meaning: str = ""


class TouchedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of a table touches, by column."""

    kept: tuple[str, ...]
    changed: tuple[str, ...]  # by what is said of them, or new
    following: tuple[str, ...]  # because of what they need
    gone: tuple[str, ...]


class CellFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one cell cost; None: nobody knows."""

    model: str | None = None
    fingerprint: str | None = None  # of the last request
    attempts: int = 1
    input_tokens: int | None = None
    cached_tokens: int | None = None  # of the input
    output_tokens: int | None = None
    micros: int | None = None  # millionths of a dollar
    calls: int = 0  # that have cost something, now or before
    reused: int = 0  # of them: those that were bought before
    waited_seconds: float | None = None
    served_seconds: float | None = None
    verdict: str | None = None  # what was wrong with its last answer


class CellError(msgspec.Struct, frozen=True):
    """Why a cell has failed for good. Quotes neither prompts nor answers."""

    column: str
    kind: str  # a word such as "template", "raised", "schema"
    message: str

    @property
    def text(self) -> str:
        """Both, for people."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


class DroppedRow(msgspec.Struct, frozen=True):
    """A row that was not made: one line of `dropped.jsonl`."""

    row: int
    column: str
    reason: str
    values: Mapping[str, Any]  # those that it had


class ColumnFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the cells of a column have cost together; None: of one of them nobody knows."""

    cells: int = 0
    failed: int = 0  # of these: without a value
    calls: int = 0
    reused: int = 0
    input_tokens: int | None = 0
    cached_tokens: int | None = 0
    output_tokens: int | None = 0
    micros: int | None = 0
    waited_seconds: float = 0.0
    served_seconds: float = 0.0

    def plus(self, other: ColumnFigures) -> ColumnFigures:
        names = self.__struct_fields__
        return ColumnFigures(
            **{name: _sum(getattr(self, name), getattr(other, name)) for name in names}
        )


def _sum(first: Any, second: Any) -> Any:  # noqa: ANN401 (numbers)
    return None if first is None or second is None else first + second

# SPDX-License-Identifier: Apache-2.0
"""A table as declared: its columns, what each needs, and what each is identified by.

A column may be declared before those that it needs. So names are looked up when the table is
whole: `validate` refuses unknown columns, cycles, and hidden columns that nothing needs.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from penstock.definitions.column import (
    CheckColumn,
    Column,
    ExpressionColumn,
    FunctionColumn,
    JudgeColumn,
    LlmColumn,
    SampleColumn,
    SeedColumn,
    SkipRule,
    digest,
    json_schema,
)
from penstock.definitions.provider import Model, Uses, check_parameters, endpoints_of
from penstock.definitions.row_function import RowFunction, row_function
from penstock.definitions.sampler import SamplerOptions, read_otherwise, read_sampler
from penstock.definitions.template import GLOBALS, Condition, Template
from penstock.errors import SchedulingMetadataError, StrictJsonError, UsageError
from penstock.model import strict_json
from penstock.model.dataset import check_dataset_name
from penstock.model.table import ColumnKind, Criterion, OnFail, SeedOrder, TouchedColumns
from penstock.model.task import MetadataSource, metadata_of

C = TypeVar("C", bound=Column)
F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound=StrEnum)

BUFFER_SIZE_MAX = 100_000  # rows of a row group
ROW_GROUPS_MAX = 10_000  # in flight at once
WINDOW_MAX = 1_000_000  # cells that the early stop looks at
ATTEMPTS_MAX = 100
SCORES_MAX = 1_000  # how far apart the ends of a score may be

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RANGE = re.compile(r"\s*(-?\d{1,6})\s*(?:to|–|-)\s*(-?\d{1,6})\b[\s:,;.-]*(.*)", re.DOTALL)
_RESERVED = {"ctx", "context", "row", "rows", "loop", "true", "false", "none", *GLOBALS}
_TYPES = (str, int, float, bool)
_FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_FRAMES = ("__arrow_c_stream__", "__arrow_c_array__")  # what frames of any library have
_REMADE = (ColumnKind.LLM, ColumnKind.JUDGE, ColumnKind.FUNCTION)


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an author may say about a whole table."""

    seed: int = 0  # of everything that is drawn
    buffer_size: int = 64  # rows of a row group
    max_row_groups: int = 4  # in flight at once
    early_stop: float | None = 0.5  # the part of failed cells that ends a run; None: no part does
    early_stop_window: int = 50  # of so many finished cells


def check_installed(what: str) -> None:
    """Refuse tables where their extra is missing: once, and before anything is declared."""
    missing = [name for name in ("jinja2", "jsonschema", "pyarrow") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"{what} needs {', '.join(missing)}, which {verb} not installed; install what "
            f"tables need with 'pip install {' '.join(missing)}'."
        )


class ColumnOptions(TypedDict, total=False):
    """What may be said about every column."""

    keep: bool
    on_fail: str
    attempts: int
    skip_when: str
    skip_value: Any
    skip_dependants: bool
    version: int | str


class Table:
    """Rows to be made, column by column."""

    def __init__(self, name: str, options: TableOptions | None = None) -> None:
        check_dataset_name(name)
        self.name = name
        self.options = options or TableOptions()
        _check_options(f"Table {name!r}", self.options)
        self._columns: dict[str, Column] = {}

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    @property
    def columns(self) -> Mapping[str, Column]:
        """All of them by name, in order of declaration."""
        return self._columns

    def seed(
        self,
        name: str,
        *,
        source: Any,  # noqa: ANN401 (a path, rows, a frame, a dataset)
        order: str = "ordered",
        records: range | None = None,
        fields: Iterable[str] | None = None,
        expand: Callable[..., Iterable[Any]] | None = None,
        keep: bool = True,
    ) -> SeedColumn:
        """Take a record of a source for each row; when they are used up, they begin again.

        Args:
            name: of the column; templates read `{{ name.field }}`.
            source: a file (.csv, .tsv, .jsonl, .ndjson, .parquet) or several, rows (mappings or
                values), a frame of polars, pandas or Arrow, a dataset, or a function that gives
                one of them.
            order: "ordered", or "shuffled": another order in each cycle.
            records: which of them, such as `range(100)`.
            fields: of a record; all otherwise.
            expand: makes several records of one: a function of one record, named as it likes.
            keep: whether it is in the output.
        """
        what = self._what(name)
        function = None if expand is None else _expanding(what, expand)
        made = SeedColumn(
            name=name,
            source=_source(what, list(source) if isinstance(source, Iterator) else source),
            order=_one_of(what, "order", SeedOrder, order),
            records=_records(what, records),
            fields=None if fields is None else _names(what, "fields", fields),
            expand=function,
            keep=_truth(what, "keep", keep),
        )
        return self._add(made)

    def sample(
        self,
        name: str,
        *,
        when: str | None = None,
        otherwise: Any = None,  # noqa: ANN401 (of the kind that is drawn)
        keep: bool = True,
        **options: Unpack[SamplerOptions],
    ) -> SampleColumn:
        """Draw a value for each row: the same for the same row, whatever ran before it.

        Args:
            name: of the column.
            when: a condition such as "{{ stars > 3 }}"; where it does not hold, `otherwise` is
                drawn.
            otherwise: what is drawn then: of the same kind, or one value.
            keep: whether it is in the output.
            options: one of `choices=[...]` (with `weights=[...]`, or with `by="column"` a mapping
                from the values of that column to lists), `uniform=(low, high)`,
                `integers=(low, high)`, `normal=(mean, deviation)` (with `within=(low, high)`),
                `dates=(first, last)`, `ids="order-{row:05}"`; `decimals=` rounds numbers.
        """
        what = self._what(name)
        sampler = read_sampler(what, options)
        if when is None and otherwise is not None:
            raise UsageError(f"{what}: otherwise= needs when=, the condition for the other values.")
        condition = None if when is None else Condition(when, f"{what}, when=")
        instead = None if condition is None else read_otherwise(what, sampler, otherwise)
        by = (options["by"],) if "by" in options else ()
        made = SampleColumn(
            name=name,
            needs=_joined(_read_by(condition), by),
            sampler=sampler,
            when=condition,
            otherwise=instead,
            keep=_truth(what, "keep", keep),
        )
        return self._add(made)

    def expression(
        self,
        name: str,
        template: str,
        *,
        type: type[str | int | float | bool] = str,
        **options: Unpack[ColumnOptions],
    ) -> ExpressionColumn:
        """Write a value from other columns.

        Args:
            name: of the column.
            template: such as "{{ stars }} stars for {{ product.name }}".
            type: what the text is read as: str, int, float or bool.
            options: see ColumnOptions; without attempts.
        """
        what = self._what(name)
        if type not in _TYPES:
            raise UsageError(f"{what}: type= is str, int, float or bool, got {type!r:.100}.")
        text = Template(template, what)
        common = _common(what, options, text.variables, attempts=None)
        return self._add(ExpressionColumn(name=name, template=text, type=type, **common))

    def llm(
        self,
        name: str,
        *,
        model: Model,
        prompt: str,
        system: str | None = None,
        schema: Any = None,  # noqa: ANN401 (a pydantic model or JSON)
        parameters: Mapping[str, Any] | None = None,
        images: str | Iterable[str] = (),
        documents: str | Iterable[str] = (),
        **options: Unpack[ColumnOptions],
    ) -> LlmColumn:
        """Ask a language model.

        Args:
            name: of the column.
            model: such as `openai.model("gpt-5", temperature=0.9)`.
            prompt: a template over other columns.
            system: another, for the system's message.
            schema: a pydantic model or a JSON schema: the answer is JSON of it, and asked for
                again if it is not, up to `attempts` times in all.
            parameters: of its requests, above those of the model.
            images: columns that name files which go with the prompt.
            documents: the same for documents.
            options: see ColumnOptions.
        """
        what = self._what(name)
        text = Template(prompt, f"{what}, prompt=")
        told = None if system is None else Template(system, f"{what}, system=")
        pictures, papers = _names(what, "images", images), _names(what, "documents", documents)
        needs = _joined(_read_by(text, told), pictures, papers)
        made = LlmColumn(
            name=name,
            model=_model(what, model),
            prompt=text,
            system=told,
            schema=None if schema is None else _schema(what, schema),
            parameters=_parameters(what, parameters),
            images=pictures,
            documents=papers,
            **_common(what, options, needs),
        )
        return self._add(made)

    def judge(
        self,
        name: str,
        *,
        model: Model,
        of: str | Iterable[str],
        rubric: Mapping[str, str],
        prompt: str | None = None,
        system: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        **options: Unpack[ColumnOptions],
    ) -> JudgeColumn:
        """Let a language model score other columns: `{criterion: {"score": …, "reason": …}}`.

        Args:
            name: of the column.
            model: who judges.
            of: the columns that are judged.
            rubric: a range for each criterion, and what it means: "1 to 5, where 5 is best".
            prompt: a template for what the judge is told besides.
            system: another, for the system's message.
            parameters: of its requests, above those of the model.
            options: see ColumnOptions.
        """
        what = self._what(name)
        judged = _names(what, "of", of)
        if not judged:
            raise UsageError(f"{what}: of= names the columns that are judged, and there is none.")
        text = None if prompt is None else Template(prompt, f"{what}, prompt=")
        told = None if system is None else Template(system, f"{what}, system=")
        needs = _joined(judged, _read_by(text, told))
        made = JudgeColumn(
            name=name,
            model=_model(what, model),
            of=judged,
            rubric=_rubric(what, rubric),
            prompt=text,
            system=told,
            parameters=_parameters(what, parameters),
            **_common(what, options, needs),
        )
        return self._add(made)

    def check(
        self,
        name: str,
        predicate: Callable[..., Any] | None = None,
        *,
        of: str | None = None,
        schema: Any = None,  # noqa: ANN401 (a pydantic model or JSON)
        sql: str | None = None,
        needs: str | Iterable[str] = (),
        **options: Unpack[ColumnOptions],
    ) -> CheckColumn:
        """Check each row, by one of three; its column says whether the row has passed.

        Args:
            name: of the column.
            predicate: a function of `row`, or of columns by name: true if all is well; a text says
                why it is not.
            of: the column whose value must fit `schema`.
            schema: a pydantic model or a JSON schema.
            sql: an expression of DuckDB over the rows of the group (the relation `rows`), such as
                "count(*) OVER (PARTITION BY title) = 1".
            needs: the columns that are read, where the predicate's code does not say it, and
                always with sql.
            options: see ColumnOptions. With `on_fail="again"` the answers that it read are made
                anew, up to `attempts` times in all.
        """
        what = f"Check {name!r} of table {self.name!r}"
        said = [way for way in (predicate, schema, sql) if way is not None]
        if len(said) != 1:
            raise UsageError(
                f"{what} takes one of these: a function, schema= with of=, or sql=; it has "
                f"{len(said)}."
            )
        if (of is None) is not (schema is None):
            raise UsageError(f"{what}: schema= and of=, the column that it is about, go together.")
        named = _names(what, "needs", needs)
        function = None if predicate is None else _predicate(what, predicate, named)
        if sql is not None:
            _check_sql(what, sql, named)
        columns = () if function is None else function.columns
        read = _joined(columns, named, () if of is None else (of,))
        made = CheckColumn(
            name=name,
            predicate=function,
            of=of,
            schema=None if schema is None else _schema(what, schema),
            sql=sql,
            **_common(what, options, read, attempts=2, again=True),
        )
        return self._add(made)

    def column(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        needs: str | Iterable[str] = (),
        batch: bool = False,
        metadata: MetadataSource | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        **options: Unpack[ColumnOptions],
    ) -> Callable[[F], F]:
        """Make a function a column: an `async def` on the loop, a `def` in a thread.

        Its parameters are columns, by name; a first one called `ctx` is given the context. It
        keeps its name, and can be called as before.

        Args:
            name: of the column; the function's name otherwise.
            needs: the columns of a parameter `row`, where its code does not say them.
            batch: call it once for a row group, with lists; it returns a list.
            metadata: how its cells share with others.
            uses: the providers that it calls, or their names.
            options: see ColumnOptions.
        """
        if function is not None:
            raise UsageError("Write @table.column() with parentheses.")

        def decorate(function: F) -> F:
            own_name = getattr(function, "__name__", "") if name is None else name
            what = self._what(own_name)
            read = row_function(what, function, _names(what, "needs", needs), batch=batch)
            common = _common(what, options, _joined(read.columns, _names(what, "needs", needs)))
            if read.returns is None and common["keep"]:
                returned = "list[str]" if batch else "str"
                raise UsageError(
                    f"{what}: nothing says what its function returns, so it has no type in the "
                    f"output; annotate it, such as `-> {returned}`, or hide it with keep=False."
                )
            made = FunctionColumn(
                name=own_name,
                function=read,
                batch=_truth(what, "batch", batch),
                metadata=_metadata(what, metadata),
                uses=endpoints_of(own_name, uses),
                **common,
            )
            self._add(made)
            return function

        return decorate

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the columns, each after those that it needs."""
        self.validate()
        return self._walk[0]

    @property
    def version(self) -> str:
        """A digest of all that makes its rows, the content of seeds left out."""
        self.validate()
        columns = [
            (name, column.kind, self.identities[name], column.keep, column.on_fail)
            for name, column in self._columns.items()
        ]
        return digest(columns)

    @cached_property
    def identities(self) -> Mapping[str, str]:
        """A digest for each column of what makes its values, and those that it needs."""
        self.validate()
        found: dict[str, str] = {}
        for name in self._walk[0]:
            column = self._columns[name]
            drawn = self.options.seed if column.kind is ColumnKind.SAMPLE else None
            needs = sorted((need, found[need]) for need in column.needs)
            found[name] = digest(column.definition, drawn, needs)
        return found

    def touched_since(self, before: Mapping[str, str]) -> TouchedColumns:
        """What has changed since a table had these identities: what is made anew, and why."""
        new = self.identities
        anew = {name for name in new if new[name] != before.get(name)}
        changed = {n for n in anew if n not in before or not anew & set(self._columns[n].needs)}
        return TouchedColumns(
            kept=tuple(name for name in new if name not in anew),
            changed=tuple(name for name in new if name in changed),
            following=tuple(name for name in new if name in anew - changed),
            gone=tuple(name for name in before if name not in new),
        )

    @property
    def group_columns(self) -> frozenset[str]:
        """The columns whose values depend on all rows of a group: made for it, or needing such."""
        found: set[str] = set()
        for name in self.order:
            column = self._columns[name]
            if column.needs_group or not found.isdisjoint(column.needs):
                found.add(name)
        return frozenset(found)

    def judged(self, check: str) -> tuple[str, ...]:
        """The columns that are made anew when a check fails: the nearest answers that it read."""
        found: dict[str, None] = {}
        todo = list(self._columns[check].needs)
        while todo:
            column = self._columns[todo.pop(0)]
            if column.kind in _REMADE:
                found[column.name] = None
            else:
                todo += column.needs
        return tuple(name for name in self._columns if name in found)

    def validate(self) -> None:
        """Refuse, in one UsageError, what can be seen only when all columns are there."""
        problems = self._problems
        if len(problems) == 1:
            raise UsageError(problems[0])
        if problems:
            listed = "\n".join(f"  - {problem}" for problem in problems)
            raise UsageError(f"Table {self.name!r} has {len(problems)} mistakes:\n{listed}")

    def _what(self, name: str) -> str:
        return f"Column {name!r} of table {self.name!r}"

    def _add(self, column: C) -> C:
        """Take in a column whose name is free, also for readers that ignore case."""
        what = self._what(column.name)
        given: object = column.name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise UsageError(
                f"{what}: a name is a letter and then at most 63 letters, digits and '_', so that "
                "templates and functions can use it."
            )
        if column.name.casefold() in _RESERVED or keyword.iskeyword(column.name):
            raise UsageError(
                f"{what}: this name means something in templates or functions; choose another."
            )
        for name in self._columns:
            if name.casefold() == column.name.casefold():
                raise UsageError(
                    f"{what} is there already"
                    + ("" if name == column.name else f" as {name!r}, which differs in case only")
                    + "; rename one."
                )
        self._columns[column.name] = column
        for kept in ("_walk", "_problems", "identities"):
            self.__dict__.pop(kept, None)
        return column

    @cached_property
    def _walk(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """An order in which each column follows what it needs, and the circles that are left."""
        done: dict[str, None] = {}
        circles: list[tuple[str, ...]] = []

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                circles.append((*path[path.index(name) :], name))
            elif name not in done:
                for need in self._columns[name].needs:
                    if need in self._columns:
                        visit(need, (*path, name))
                done[name] = None

        for name in self._columns:
            visit(name, ())
        return tuple(done), tuple(circles)

    @cached_property
    def _problems(self) -> list[str]:
        if not self._columns:
            return [f"Table {self.name!r} has no columns; declare one, such as with sample()."]
        found = [problem for column in self._columns.values() for problem in self._unknown(column)]
        for circle in self._walk[1]:
            found.append(
                f"Columns of table {self.name!r} need each other in a circle: "
                f"{' → '.join(map(repr, circle))}; remove one of these needs."
            )
        if not found:
            found = [*self._unused(), *self._hopeless()]
        return found

    def _unknown(self, column: Column) -> Iterable[str]:
        what = self._what(column.name)
        for need in column.needs:
            if need not in self._columns:
                near = get_close_matches(need, list(self._columns), 1)
                closest = f"; closest: {near[0]!r}" if near else ""
                yield f"{what} needs {need!r}, which is no column of it{closest}."
        for name, read in fields_read(column):
            seed = self._columns.get(name)
            if isinstance(seed, SeedColumn) and seed.fields is not None:
                for field in read:
                    if field not in seed.fields:
                        known = ", ".join(map(repr, seed.fields))
                        yield f"{what} reads {name}.{field}, and {name!r} has the fields {known}."

    def _unused(self) -> Iterable[str]:
        needed = {need for column in self._columns.values() for need in column.needs}
        for name, column in self._columns.items():
            if column.keep or column.kind in (ColumnKind.CHECK, ColumnKind.FUNCTION):
                continue  # they may do more than to give a value
            if name not in needed:
                yield (
                    f"{self._what(name)} is hidden (keep=False) and nothing needs it; remove it, "
                    "or keep it."
                )
            elif isinstance(column, SeedColumn) and column.fields is not None:
                yield from self._unused_fields(column)
        if not any(column.keep for column in self._columns.values()):
            yield f"Table {self.name!r} keeps no column (keep=False); keep one at least."

    def _unused_fields(self, seed: SeedColumn) -> Iterable[str]:
        """Fields of a hidden seed that nothing reads, where all that needs it names fields."""
        read: set[str] = set()
        for column in self._columns.values():
            if seed.name in column.needs:
                named = dict(fields_read(column)).get(seed.name)
                if named is None:
                    return
                read.update(named)
        for field in seed.fields or ():
            if field not in read:
                yield (
                    f"{self._what(seed.name)} is hidden, and nothing reads its field {field!r}; "
                    "remove it from fields=."
                )

    def _hopeless(self) -> Iterable[str]:
        for name, column in self._columns.items():
            if column.on_fail is OnFail.AGAIN and not self.judged(name):
                yield (
                    f"Check {name!r} of table {self.name!r} has on_fail='again', and nothing that "
                    "it reads could turn out otherwise; use 'drop', 'null', 'keep' or 'stop'."
                )


def fields_read(column: Column) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Which fields a column takes of which records, as far as its templates say."""
    readers = [getattr(column, name, None) for name in ("template", "prompt", "system", "when")] + [
        column.skip and column.skip.when
    ]
    for reader in readers:
        if reader is not None:
            yield from reader.fields.items()


def _joined(*parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part))


def _read_by(*readers: Template | Condition | None) -> tuple[str, ...]:
    return _joined(*(reader.variables for reader in readers if reader is not None))


def _common(
    what: str,
    options: Mapping[str, Any],
    needs: tuple[str, ...],
    *,
    attempts: int | None = 3,
    again: bool = False,
) -> dict[str, Any]:
    """What every column has, from what was said about it."""
    for name in options:
        if name not in ColumnOptions.__annotations__:
            near = get_close_matches(name, list(ColumnOptions.__annotations__), 1)
            closest = f"; closest: {near[0]!r}" if near else ""
            raise UsageError(f"{what} has no option {name!r}{closest}.")
    if attempts is None and "attempts" in options:
        raise UsageError(f"{what}: attempts= is for what may turn out otherwise; leave it out.")
    on_fail = _one_of(what, "on_fail", OnFail, options.get("on_fail", "drop"))
    if on_fail is OnFail.AGAIN and not again:
        raise UsageError(f"{what}: on_fail='again' is for checks; use attempts=N for a column.")
    skip = _skip(what, options)
    tries = options.get("attempts", attempts or 1)
    return {
        "needs": _joined(needs, () if skip is None else skip.when.variables),
        "keep": _truth(what, "keep", options.get("keep", True)),
        "on_fail": on_fail,
        "attempts": _whole(what, "attempts", tries, 1, ATTEMPTS_MAX),
        "skip": skip,
        "version": _version(what, options.get("version")),
    }


def _skip(what: str, options: Mapping[str, Any]) -> SkipRule | None:
    when = options.get("skip_when")
    if when is None:
        for name in ("skip_value", "skip_dependants"):
            if name in options:
                raise UsageError(f"{what}: {name}= needs skip_when=, a condition.")
        return None
    value = options.get("skip_value")
    _check_json(what, "skip_value", value)
    dependants = _truth(what, "skip_dependants", options.get("skip_dependants", False))
    return SkipRule(Condition(when, f"{what}, skip_when="), value, dependants)


def _check_json(what: str, name: str, value: object) -> None:
    try:
        strict_json.check(value)
    except StrictJsonError as error:
        raise UsageError(f"{what}: {name}= is JSON, and {error.path} is {error.problem}.") from None


def _version(what: str, version: object) -> str | None:
    if version is not None and (isinstance(version, bool) or not isinstance(version, int | str)):
        raise UsageError(f"{what}: version= is a whole number or a text, got {version!r:.100}.")
    return None if version is None else str(version)


def _one_of(what: str, name: str, kinds: type[K], given: object) -> K:
    for kind in kinds:
        if given == kind:
            return kind
    known = ", ".join(repr(kind.value) for kind in kinds)
    raise UsageError(f"{what}: {name}= is one of {known}, got {given!r:.100}.")


def _truth(what: str, name: str, given: object) -> bool:
    if isinstance(given, bool):
        return given
    raise UsageError(f"{what}: {name}= is True or False, got {given!r:.100}.")


def _whole(what: str, name: str, given: object, least: int, most: int) -> int:
    if type(given) is int and least <= given <= most:
        return given
    raise UsageError(
        f"{what}: {name}= is a whole number from {least:,} to {most:,}, got {given!r:.100}."
    )


def _names(what: str, name: str, given: object) -> tuple[str, ...]:
    """One name, or several."""
    if isinstance(given, str):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(one, str) for one in found):
        raise UsageError(f"{what}: {name}= is a name or a list of names, got {given!r:.100}.")
    return _joined(found)


def _model(what: str, model: object) -> Model:
    if isinstance(model, Model):
        return model
    raise UsageError(
        f"{what}: model= is a model of a provider, such as openai.model('gpt-5'), got "
        f"{model!r:.100}."
    )


def _parameters(what: str, parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    given = {} if parameters is None else parameters
    check_parameters(what, given)
    return dict(given)


def _schema(what: str, schema: object) -> object:
    """A pydantic model, or a JSON schema of an object."""
    try:
        found = json_schema(schema)
    except Exception as error:  # of pydantic: a type that has no JSON schema
        raise UsageError(
            f"{what}: schema={schema!r:.100} has no JSON schema ({type(error).__name__}); use "
            "types that JSON has."
        ) from None
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{what}: schema= is a pydantic model or a JSON schema (a mapping), got "
            f"{schema!r:.100}."
        )
    _check_json(what, "schema", dict(found))
    return schema


def _rubric(what: str, rubric: object) -> tuple[Criterion, ...]:
    if not isinstance(rubric, Mapping) or not rubric:
        raise UsageError(
            f"{what}: rubric= is a mapping such as {{'helpful': '1 to 5'}}, got {rubric!r:.100}."
        )
    return tuple(_criterion(what, name, text) for name, text in rubric.items())


def _criterion(what: str, name: object, text: object) -> Criterion:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"{what}: a criterion of a rubric is a printable text, got {name!r:.100}.")
    match = _RANGE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(
            f"{what}: the criterion {name!r} says its range first, such as '1 to 5, where 5 is "
            f"best', got {text!r:.100}."
        )
    low, high = int(match[1]), int(match[2])
    if not 1 <= high - low <= SCORES_MAX:
        raise UsageError(
            f"{what}: the range of criterion {name!r} goes from low to high, at most "
            f"{SCORES_MAX:,} apart, got {text!r:.100}."
        )
    return Criterion(name, low, high, match[3].strip())


def _predicate(what: str, predicate: Callable[..., Any], needs: tuple[str, ...]) -> RowFunction:
    function = row_function(what, predicate, needs)
    if function.is_async:
        raise UsageError(
            f"{what} is an `async def`, and a check decides at once; make it a plain function, or "
            "let a column fetch what it needs."
        )
    if function.context is not None:
        raise UsageError(f"{what} takes a context, and a check has none; use a column for calls.")
    return function


def _check_sql(what: str, sql: object, needs: tuple[str, ...]) -> None:
    if not isinstance(sql, str) or not sql.strip():
        raise UsageError(
            f"{what}: sql= is an expression such as 'count(*) OVER (PARTITION BY title) = 1', got "
            f"{sql!r:.100}."
        )
    if not needs:
        raise UsageError(f"{what}: say which columns the SQL reads, such as needs=['title'].")
    if find_spec("duckdb") is None:
        raise UsageError(
            f"{what}: sql= needs duckdb, which is not installed; install it with `pip install "
            "duckdb`."
        )


def _expanding(what: str, expand: Callable[..., Any]) -> RowFunction:
    """A function of one record, whatever its parameter is called."""
    function = row_function(f"{what}, expand=", expand, ("record",))
    if function.is_async or len(function.columns) != 1 or function.context is not None:
        raise UsageError(f"{what}: expand= is a plain function of one record.")
    return function


def _records(what: str, records: object) -> range | None:
    if records is None:
        return None
    if not isinstance(records, range) or records.step != 1 or not 0 <= records.start < records.stop:
        raise UsageError(
            f"{what}: records= is a range such as range(100) or range(100, 200), got "
            f"{records!r:.100}."
        )
    return records


def _metadata(what: str, metadata: MetadataSource | None) -> MetadataSource | None:
    if metadata is not None:
        try:
            metadata_of(metadata)
        except SchedulingMetadataError as error:
            if error.fallback is None:
                raise UsageError(f"{what}: {error.message}") from None
    return metadata


def _source(what: str, source: object) -> object:
    """A source of a seed; a file must be of a known kind, and may come later."""
    several = source if isinstance(source, list | tuple) else [source]
    paths = [one for one in several if isinstance(one, Path)]
    if isinstance(source, str):
        paths = [Path(source)]
    for path in paths:
        if path.suffix.lower() not in _FILES:
            raise UsageError(
                f"{what}: the source {str(path)!r:.200} is no file of a known kind "
                f"({', '.join(_FILES)})."
            )
    if paths and len(paths) < len(several):
        raise UsageError(f"{what}: source= has files and other things; give it one kind.")
    if several is source and several and all(_is_file_name(one) for one in several):
        raise UsageError(
            f"{what}: a list of texts is a list of values, and these look like files; write "
            f"[Path({several[0]!r:.100}), …], or a pattern such as 'data/*.csv'."
        )
    fits = paths or isinstance(source, Iterable) or callable(source)
    fits = fits or any(hasattr(source, name) for name in ("files", *_FRAMES))
    if isinstance(source, set | frozenset):
        raise UsageError(
            f"{what}: a set has another order at every start; write source=sorted(...)."
        )
    if isinstance(source, Mapping | bytes) or not fits:
        raise UsageError(
            f"{what}: source= is a file, rows, a frame, a dataset or a function that gives one of "
            f"them, got {source!r:.100}."
        )
    return source


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value.lower().endswith(_FILES)


def _check_options(what: str, options: TableOptions) -> None:
    _whole(what, "seed", options.seed, -(2**63), 2**63 - 1)
    _whole(what, "buffer_size", options.buffer_size, 1, BUFFER_SIZE_MAX)
    _whole(what, "max_row_groups", options.max_row_groups, 1, ROW_GROUPS_MAX)
    _whole(what, "early_stop_window", options.early_stop_window, 1, WINDOW_MAX)
    part: object = options.early_stop
    if part is not None and not (isinstance(part, float) and 0 < part < 1):
        raise UsageError(
            f"{what}: early_stop= is a part of the finished cells above 0 and below 1, or None, "
            f"got {part!r:.100}."
        )
